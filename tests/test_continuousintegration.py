"""`.ci/run` runs every kind of test, or its last lines say which it has left out, and why."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
KINDS = set(re.findall(r"^(test[a-z-]*):.*##", (ROOT / "Makefile").read_text(), re.MULTILINE))
TOOK = re.compile(r"took: ([\w-]+) \d+ s, processors \d+ s, kernel \d+ s")
STAND_INS = {
    "make": 'echo "31.2s call     tests/of/$1.py::test_slow"; [ "$1" != "$FAILS" ]',
    "apt-get": "exit 1",
    "chromium": "exit 1",
    "nvidia-smi": "exit 1",
    "id": "echo 1000",
}


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with this script, and programs that do nothing in the places of those that it calls."""
    for folder in (".ci", ".venv/bin", "programs"):
        (tmp_path / "oarlock" / folder).mkdir(parents=True)
    shutil.copy(ROOT / ".ci" / "run", tmp_path / "oarlock" / ".ci" / "run")
    (tmp_path / "oarlock" / ".venv" / "bin" / "python").symlink_to(sys.executable)
    for name, body in STAND_INS.items():
        program = tmp_path / "oarlock" / "programs" / name
        program.write_text(f"#!/bin/sh\n{body}\n")
        program.chmod(0o755)
    return tmp_path / "oarlock"


def run(repository: Path, **env: str) -> tuple[int, list[str]]:
    path = f"{repository / 'programs'}{os.pathsep}{os.environ['PATH']}"
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("KUBE", "OARLOCK"))}
    done = subprocess.run(
        [str(repository / ".ci" / "run")],
        env={**kept, "PATH": path, "FAILS": "", **env},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout.splitlines()


def test_every_kind_of_test_is_run_or_said_to_be_left_out(repository: Path) -> None:
    code, said = run(repository)
    assert code == 0
    left_out = {found[2]: found[1] for line in said if (found := re.fullmatch(r"left out, (.+): make ([\w-]+)", line))}
    took = {found[1] for line in said if (found := TOOK.fullmatch(line))}
    assert took | left_out.keys() == KINDS
    assert not took & left_out.keys()
    assert {f"slow: 31.2s call     tests/of/{stage}.py::test_slow" for stage in took} <= {*said}
    assert {"test", "test-long", "test-guests"} <= took
    assert left_out["test-gpu"] == left_out["test-node"] == "this machine lacks what it needs"
    assert left_out["test-node-long"] == "it takes longer than this run may"


def test_a_machine_that_has_more_leaves_less_out(repository: Path) -> None:
    _, said = run(repository, KUBECONFIG="a cluster", KUBEBUILDER_ASSETS="programs of Kubernetes")
    left_out = {line.split()[-1] for line in said if line.startswith("left out, ")}
    assert left_out == {"test-gpu", "test-node-long"}
    assert sorted(found[1] for line in said if (found := TOOK.fullmatch(line))) == sorted(KINDS - left_out)


def test_a_stage_that_fails_is_named_and_the_others_run(repository: Path) -> None:
    code, said = run(repository, FAILS="test-long")
    assert code == 1
    assert "failed: make test-long" in said
    assert any(line.startswith("took: test-guests ") for line in said)
