"""The first example, run as its README says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from oarlock.spec import roles
from oarlock.spec.input import validation

EXAMPLE = Path(__file__).parents[2] / "examples" / "01-digits"
ALONE = [sys.executable, str(EXAMPLE / "train.py")]
TORCHRUN = [
    sys.executable,
    "-m",
    "torch.distributed.run",
    "--standalone",
    "--nproc-per-node",
    "2",
    str(EXAMPLE / "train.py"),
]


def run(command: list[str], folder: Path, **env: str) -> tuple[float, str]:
    """(test accuracy, stderr) of the example, which is to print its accuracy once."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **env}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=280
    )
    assert done.returncode == 0, done.stderr
    (accuracy,) = re.findall(r"test accuracy (\S+) on 359 images", done.stdout)
    return float(accuracy), done.stderr


@pytest.mark.long
def test_two_workers_under_torchrun_learn_to_read(tmp_path: Path) -> None:
    accuracy, said = run(TORCHRUN, tmp_path)
    assert accuracy >= 0.97
    assert "step 440/440" in said
    assert (tmp_path / "checkpoints" / "attempt-1-round-1-step-440" / "manifest.json").is_file()


@pytest.mark.long
def test_alone_it_learns_too_and_a_finished_run_is_not_trained_again(tmp_path: Path) -> None:
    results = tmp_path / "results"
    results.mkdir()
    accuracy, _ = run(ALONE, tmp_path, OARLOCK_RESULTS=str(results))
    assert accuracy >= 0.97
    assert (results / "model.pt").is_file()
    again, said = run(ALONE, tmp_path)
    assert again == accuracy
    assert "resumed from attempt-1-round-1-step-440" in said


def test_its_job_file_is_one() -> None:
    spec = validation.load((EXAMPLE / "oarlock.yaml").read_text())
    assert spec.name == "digits"
    assert spec.roles[roles.RoleName.WORKER].count == 2
