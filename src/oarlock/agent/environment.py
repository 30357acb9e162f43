"""The environment of a user's process, from the assignment, the secrets and the rendezvous. Pure."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Mapping

    from oarlock.agent.assignment import Assignment
    from oarlock.agent.protocol.rendezvous import Rendezvous

LINES = "lines"
"""The value of PYTHONUNBUFFERED. For Python any value means unbuffered: a system call for each argument of `print`.
The hook reads this value and makes it one call for each line.
"""

MARK = "OARLOCK_TASK_KEY"
# A process needs these from its machine if the submitting shell did not set them.
OF_THE_MACHINE = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "TZ", "TMPDIR")


def build(
    task: Assignment,
    inherited: Mapping[str, str],
    secrets: Mapping[str, str],
    rendezvous: Rendezvous,
    process: int,
    virtual_env: str | None = None,
) -> dict[str, str]:
    """Return the environment of process number `process`. Later layers win; Oarlock's own variables come last.

    `inherited` is the agent's own environment. In a pod it is the image's, and all of it counts. Locally it is the
    server's: only the names of OF_THE_MACHINE are taken, and the submitting shell's (`path_env`) replaces the rest.
    """
    env = {name: value for name, value in inherited.items() if not name.startswith("OARLOCK_")}
    if task.path_env:
        env = {name: env[name] for name in OF_THE_MACHINE if name in env}
        env.update(task.path_env)
    if virtual_env:
        env["VIRTUAL_ENV"] = virtual_env
        env["PATH"] = os.path.join(virtual_env, "bin") + os.pathsep + env.get("PATH", os.defpath)
        env.pop("PYTHONHOME", None)
    env["PYTHONUNBUFFERED"] = LINES
    env.update(task.env)
    env.update(secrets)
    env.update(rendezvous.environment(process, task.directory))
    env.update(_own_variables(task, rendezvous, process, env))
    path = [task.hook_path, env.get("PYTHONPATH"), task.train_path]
    if any(path):
        env["PYTHONPATH"] = os.pathsep.join(part for part in path if part)
    if task.gpus is not None:
        env["CUDA_VISIBLE_DEVICES"] = ",".join(str(index) for index in task.gpus)
    return {name: value for name, value in env.items() if name and "=" not in name and "\0" not in name + value}


def secret_variable(name: str) -> str:
    """Return the variable of a secret: `HUB_TOKEN` for `hub-token`. A valid variable name stays as it is."""
    plain = "".join(c if c.isascii() and (c.isalnum() or c == "_") else "_" for c in name)
    return plain if plain == name and not name[:1].isdigit() else plain.upper()


def _own_variables(task: Assignment, rendezvous: Rendezvous, process: int, env: Mapping[str, str]) -> dict[str, str]:
    found = {
        "OARLOCK_JOB": task.key.job,
        "OARLOCK_ATTEMPT": task.key.attempt,
        "OARLOCK_ROLE": task.key.role,
        "OARLOCK_INDEX": task.key.index,
        "OARLOCK_INCARNATION": task.key.incarnation,
        "OARLOCK_ROUND": str(rendezvous.round),
        "OARLOCK_PROCESS": str(process),
        MARK: task.key.text,
        "OARLOCK_TASK_DIR": task.directory,
        "OARLOCK_REPORT": task.report,
        "OARLOCK_RESULTS": task.results,
        **({"OARLOCK_TENSORBOARD": os.path.join(task.results, "tensorboard")} if task.tensorboard else {}),
    }
    if rendezvous.restore:
        found["OARLOCK_RESTORE"] = os.pathsep.join(rendezvous.restore)
    if "OARLOCK_CHECKPOINTS" not in env:
        found["OARLOCK_CHECKPOINTS"] = task.checkpoints
    return found
