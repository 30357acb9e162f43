"""The job's secrets, which the server sends: variables, or files that only this task can read.

The server sends them before data is fetched, because a download may need them, and again at registration. From then on
their values are blanked in everything that leaves the task. A secret without a value there is one of the platform: a
variable of the agent has it, which no user's process inherits.
"""

from __future__ import annotations

import os

from oarlock.agent import environment, files
from oarlock.agent.protocol import blanking
from oarlock.agent.transfers import helpercommand

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Mapping

    from oarlock.agent.agentstate import AgentState
    from oarlock.agent.assignment import Assignment


def received(
    told: dict[str, dict[str, Any]] | None, task: Assignment, own: Mapping[str, str]
) -> dict[str, dict[str, str]]:
    """Return the secrets of an answer of the server, each with its value. `own` are the agent's variables.

    Raises Failed for a secret that this task was made without.
    """
    found = {}
    for name, secret in (told or {}).items():
        value = secret.get("value")
        if value is None:
            value = own.get(task.secret_variables.get(name, ""))
        if value is None:
            raise helpercommand.Failed(
                "secret_missing",
                f"the secret {name} was changed after this task was made, so that the task has no value for it",
            )
        found[name] = {"as": str(secret.get("as")), "value": str(value)}
    return found


def place(task: Assignment, state: AgentState) -> dict[str, str]:
    """Write the files and return the variables: a secret's value, or the path of its file. Idempotent."""
    values, env = [], {}
    for name, secret in sorted(state.secrets.items()):
        value, variable = secret["value"], environment.secret_variable(name)
        values.append(value)
        if secret["as"] == "file":
            os.makedirs(task.path("secrets"), mode=0o700, exist_ok=True)
            path = files.inside(task.path("secrets"), name.replace("/", "_"))
            files.write_atomically(path, value)
            env[variable + "_FILE"] = path
        else:
            env[variable] = value
    state.blanker = blanking.Blanker(values)
    return env
