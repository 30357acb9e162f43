"""The steps that make a virtual environment, and when none is needed. No step is run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from oarlock.data.transfers import virtualenvs
from oarlock.spec import errors

ABOUT = {"version": "3", "prefix": "/usr", "base": "/usr", "paths": []}


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[str], Path]]:
    """The steps that would be run, and the folder of each."""
    told: list[tuple[list[str], Path]] = []
    monkeypatch.setattr(virtualenvs, "call", lambda argv, folder: told.append((argv, folder)))
    monkeypatch.setattr(virtualenvs, "probed", lambda python: ABOUT)
    monkeypatch.setattr(subprocess, "run", lambda argv, **_: subprocess.CompletedProcess(argv, 0))
    return told


def test_an_environment_is_made_once_for_the_same_requirements(
    tmp_path: Path, steps: list[tuple[list[str], Path]]
) -> None:
    wanted = tmp_path / "code" / "requirements.txt"
    wanted.parent.mkdir()
    wanted.write_text("numpy\n")
    cache = tmp_path / "cache"
    place = virtualenvs.run(str(wanted), str(cache), "/usr/bin/python3")
    assert place.parent == cache
    own = f"{place}/bin/python"
    quiet = ["--disable-pip-version-check", "--no-input", "--progress-bar", "off"]
    assert steps == [
        (["/usr/bin/python3", "-I", "-m", "venv", "--system-site-packages", "--without-pip", str(place)], cache),
        ([own, "-m", "pip", "install", *quiet, "--requirement", str(wanted)], wanted.parent),
    ]
    assert virtualenvs.run(str(wanted), str(cache), "/usr/bin/python3") == place
    assert len(steps) == 2, "it is in the cache"
    wanted.write_text("numpy<3\n")
    assert virtualenvs.run(str(wanted), str(cache), "/usr/bin/python3") != place


def test_without_a_pip_of_the_python_one_is_put_in(
    tmp_path: Path, steps: list[tuple[list[str], Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subprocess, "run", lambda argv, **_: subprocess.CompletedProcess(argv, 1))
    virtualenvs.make(tmp_path / "env", tmp_path / "requirements.txt", sys.executable, dict(ABOUT))
    assert [argv[1:3] for argv, _ in steps] == [["-I", "-m"], ["-m", "ensurepip"], ["-m", "pip"]]


class Failed:
    """A step that prints two lines and fails."""

    def __init__(self, argv: list[str], **asked: Any) -> None:
        assert "PYTHONPATH" not in asked["env"]
        self.stdout, self.returncode = iter(["one\n", "\n", "two\n"]), 1

    def __enter__(self) -> Failed:
        return self

    def __exit__(self, *_: object) -> None: ...


@pytest.mark.parametrize(
    ("argv", "shown", "hinted"),
    [
        (
            ["/p", "-m", "pip", "install", "--requirement", "/x/wanted.txt"],
            "pip install --requirement wanted.txt",
            False,
        ),
        (["/p", "-I", "-m", "venv", "/x"], "-I -m venv", True),
    ],
)
def test_a_step_that_fails_is_told_with_its_last_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, argv: list[str], shown: str, hinted: bool
) -> None:
    monkeypatch.setenv("PYTHONPATH", "/theirs")
    monkeypatch.setattr(subprocess, "Popen", Failed)
    with pytest.raises(errors.Unavailable) as caught:
        virtualenvs.call(argv, tmp_path)
    assert caught.value.message == f"`{shown}` failed:\none\ntwo"
    assert ("python3-venv" in caught.value.hint) is hinted, "pip's own words are enough"
