"""The job's secrets, as the server tells them: variables, or files that only this task can read. They lie nowhere else.

Told before data is fetched, since fetching may need them, and again at registration. From then on their values are
blanked in everything that leaves the task.
"""

from __future__ import annotations

import os

from oarlock.agent import blanking, environment, files

TYPE_CHECKING = False
if TYPE_CHECKING:
    from oarlock.agent.assignment import Assignment
    from oarlock.agent.board import Board


def place(task: Assignment, board: Board) -> dict[str, str]:
    """Write the files and return the variables: a secret's value, or the path of its file. Again: the same."""
    values, env = [], {}
    for name, secret in sorted(board.secrets.items()):
        value, variable = str(secret.get("value", "")), environment.secret_variable(name)
        values.append(value)
        if secret.get("as") == "file":
            os.makedirs(task.path("secrets"), mode=0o700, exist_ok=True)
            path = files.inside(task.path("secrets"), name.replace("/", "_"))
            files.write_atomically(path, value)
            env[variable + "_FILE"] = path
        else:
            env[variable] = value
    board.blanker = blanking.Blanker(values)
    return env
