"""The job's secrets, which the server sends: variables, or files that only this task can read.

The server sends them before data is fetched, because a download may need them, and again at registration. From then on
their values are blanked in everything that leaves the task.
"""

from __future__ import annotations

import os

from oarlock.agent import environment, files
from oarlock.agent.protocol import blanking

TYPE_CHECKING = False
if TYPE_CHECKING:
    from oarlock.agent.agentstate import AgentState
    from oarlock.agent.assignment import Assignment


def place(task: Assignment, state: AgentState) -> dict[str, str]:
    """Write the files and return the variables: a secret's value, or the path of its file. Idempotent."""
    values, env = [], {}
    for name, secret in sorted(state.secrets.items()):
        value, variable = str(secret.get("value", "")), environment.secret_variable(name)
        values.append(value)
        if secret.get("as") == "file":
            os.makedirs(task.path("secrets"), mode=0o700, exist_ok=True)
            path = files.inside(task.path("secrets"), name.replace("/", "_"))
            files.write_atomically(path, value)
            env[variable + "_FILE"] = path
        else:
            env[variable] = value
    state.blanker = blanking.Blanker(values)
    return env
