"""What a user's process finds in its environment: pure, from the assignment, the secrets and the rendezvous."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Mapping

    from oarlock.agent.assignment import Assignment
    from oarlock.agent.rendezvous import Rendezvous

LINES = "lines"
"""To Python any text here means unbuffered: a system call for each argument of `print`. The hook reads the word and
makes it one for each line.
"""

MARK = "OARLOCK_TASK_KEY"
# A process needs these from the machine it runs on where the submitting shell did not say them.
OF_THE_MACHINE = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "TZ", "TMPDIR")


def build(
    task: Assignment,
    inherited: Mapping[str, str],
    secrets: Mapping[str, str],
    rendezvous: Rendezvous,
    process: int,
    virtual_env: str | None = None,
) -> dict[str, str]:
    """The environment of process number `process`. Later layers win; what Oarlock says of itself comes last.

    `inherited` is the agent's own environment: in a pod the image's, which counts as a whole; locally the server's, of
    which only OF_THE_MACHINE is taken, because the submitting shell's (`path_env`) stands in its place.
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
    env.update(_of_oarlock(task, rendezvous, process, env))
    path = [task.hook_path, env.get("PYTHONPATH"), task.train_path]
    if any(path):
        env["PYTHONPATH"] = os.pathsep.join(part for part in path if part)
    if task.gpus is not None:
        env["CUDA_VISIBLE_DEVICES"] = ",".join(str(index) for index in task.gpus)
    return {name: value for name, value in env.items() if name and "=" not in name and "\0" not in name + value}


def secret_variable(name: str) -> str:
    """`hub-token` -> `HUB_TOKEN`; a name that a shell would take as it is stays."""
    plain = "".join(c if c.isascii() and (c.isalnum() or c == "_") else "_" for c in name)
    return plain if plain == name and not name[:1].isdigit() else plain.upper()


def _of_oarlock(task: Assignment, rendezvous: Rendezvous, process: int, env: Mapping[str, str]) -> dict[str, str]:
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
