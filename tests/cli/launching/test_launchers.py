"""Programs that start their own processes get a hint, and others none."""

from __future__ import annotations

from pathlib import Path

import pytest

from oarlock.cli.launching import launchers, submitting
from oarlock.spec.input import validation

SPAWNS = "import torch.multiprocessing as mp\n\nif __name__ == '__main__':\n    mp.spawn(main, nprocs=4)\n"
LIGHTNING = "trainer = L.Trainer(\n    max_epochs=3,\n    devices=2,\n)\n"
ONE = "trainer = L.Trainer(max_epochs=3, devices=1)\npool = mp.Pool(4)\n"

HINTS = [
    ("{command: torchrun --nproc-per-node 2 train.py}", "", "`oarlock run --nproc 2 -- python train.py`"),
    (
        "{command: [torchrun, --standalone, --nproc_per_node=4, train.py], roles: {worker: {count: 2}}}",
        "",
        "`oarlock run --workers 2 --nproc 4 -- python train.py`",
    ),
    ("{command: python -m torch.distributed.run train.py}", "", "torchrun starts processes of its own in each task."),
    ("{command: accelerate launch --num_processes 2 x.py}", "", "`oarlock run --nproc 2 -- python x.py`"),
    ("{command: python train.py, roles: {worker: {count: 2}}}", SPAWNS, "in each task (mp.spawn, line 4)"),
    ("{command: python train.py}", LIGHTNING, "(devices=..., line 1)"),
    ("{command: mpirun -n 2 python train.py}", "", "`--framework mpi`"),
    ("{command: python train.py}", ONE, ""),
    ("{command: python train.py}", "", ""),
    ("{command: accelerate config}", "", ""),
    ("{command: 'mpirun -n 2 python train.py', framework: mpi}", "", ""),
    ("{command: 'python train.py', framework: mpi}", "", "`mpirun python ...` starts a rank"),
    ("{command: bash train.sh}", SPAWNS.replace("mp.spawn", "spawn"), ""),
]


@pytest.mark.parametrize(("spec", "script", "says"), HINTS, ids=range(len(HINTS)))
def test_the_hint(spec: str, script: str, says: str) -> None:
    told = launchers.hint(validation.load(spec), "train.py" if script else None, script)
    assert (says in told) if says else (told == "")
    assert "\n" not in told


def test_it_is_told_once_before_the_job_is_submitted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "train.py").write_text(SPAWNS)
    submitting.tell_launcher(validation.load("command: python train.py"), tmp_path)
    assert capsys.readouterr().err.startswith(
        "Hint: train.py starts processes of its own in each task (mp.spawn, line 4)."
    )
    submitting.tell_launcher(validation.load("command: python other.py"), tmp_path)
    assert capsys.readouterr().err == ""
