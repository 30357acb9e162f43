"""A hint for programs that start processes of their own, such as torchrun: `oarlock run` can do that for them.

`--workers` and `--nproc` start the processes of a job. A launcher, or a script that spawns, starts further processes in
every task, often as a separate world in each. This may be intended, so it is never refused.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from oarlock.spec import jobfile, roles

_LAUNCHERS = {
    "torchrun": "torchrun",
    "accelerate": "accelerate launch",
    "deepspeed": "deepspeed",
    "horovodrun": "horovodrun",
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torch.distributed.launch",
    "accelerate.commands.launch": "accelerate launch",
}
_COUNTS = re.compile(r"--(?:nproc[-_]per[-_]node|num_processes|num-processes|num_gpus|np)(?:=|\s+)(\d+)")
_SPAWNS = (
    (re.compile(r"\b(?:mp|multiprocessing)\.spawn\s*\("), "mp.spawn"),
    (re.compile(r"\bnotebook_launcher\s*\("), "notebook_launcher"),
    (re.compile(r"\bTrainer\s*\([^)]*\bdevices\s*=\s*(?:[2-9]|1\d|-1|\[[^\]]*,|[\"']auto)", re.DOTALL), "devices=..."),
)
_MPI = frozenset({"mpirun", "mpiexec", "orterun", "prterun", "mpiexec.hydra"})
_RANKED = frozenset({roles.RoleName.WORKER, roles.RoleName.CHIEF})


def hint(spec: jobfile.JobSpec, script: str | None, text: str) -> str:
    """Return the command to type instead, or an empty text for a program without a known launcher.

    `script` is the path of the program's script, and `text` its content.
    """
    words = spec.command.split() if isinstance(spec.command, str) else list(spec.command)
    shown = script or next((word for word in words if word.endswith(".py")), "SCRIPT")
    if words and words[0].rpartition("/")[2] in _MPI and spec.framework is not roles.Framework.MPI:
        return f"{words[0]} runs in each task; with `--framework mpi` it runs once, and the workers are its slots."
    if spec.framework is roles.Framework.MPI and words and words[0].rpartition("/")[2].startswith("python"):
        return (
            f"with --framework mpi the command runs once. `mpirun {words[0]} ...` starts a rank in each worker's slot."
        )
    name = _launcher(words)
    if name is not None:
        asked = _COUNTS.search(" ".join(words))
        return _told(spec, f"{name} starts processes of its own in each task", shown, int(asked[1]) if asked else 1)
    for pattern, call in _SPAWNS:
        found = pattern.search(text)
        if found is not None:
            line = text.count("\n", 0, found.start()) + 1
            return _told(spec, f"{shown} starts processes of its own in each task ({call}, line {line})", shown, 1)
    return ""


def _launcher(words: Sequence[str]) -> str | None:
    if not words:
        return None
    program = words[0].rpartition("/")[2]
    if program.startswith("python") and "-m" in words[:-1]:
        return _LAUNCHERS.get(words[words.index("-m") + 1])
    if program == "accelerate" and words[1:2] != ["launch"]:
        return None
    return _LAUNCHERS.get(program)


def _told(spec: jobfile.JobSpec, found: str, script: str, nproc: int) -> str:
    tasks = sum(role.count for name, role in spec.roles.items() if name in _RANKED)
    flags = [f"--workers {tasks}"] if tasks > 1 else []
    flags += [f"--nproc {nproc}"] if nproc > 1 else [] if flags else ["--nproc N"]
    command = f"oarlock run {' '.join(flags)} -- python {script}"
    return f"{found}. `{command}` starts them itself, and gives each its RANK and WORLD_SIZE."
