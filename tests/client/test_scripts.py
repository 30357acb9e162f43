"""A script that a job would not find is noticed before anything is sent: by both clients, as by the command line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.client import driven, live

from oarlock.client import scripts
from oarlock.spec import errors, jobs


@pytest.fixture
def run(new_client: driven.NewClient) -> Callable[..., jobs.Job]:
    """Submit with each client in turn."""

    def submitted(*arguments: Any, **named: Any) -> jobs.Job:
        with new_client() as client:
            return client.run(*arguments, **named)

    return submitted


def test_a_missing_script_is_refused_at_once(
    server: live.LiveServer, tmp_path: Path, run: Callable[..., jobs.Job]
) -> None:
    place = tmp_path / "code"
    place.mkdir()
    (place / "train.py").touch()
    with pytest.raises(errors.InvalidInput, match=r"there is no 'trian\.py'") as caught:
        run("python trian.py", directory=place)
    assert (caught.value.path, caught.value.hint) == ("command", "Did you mean `train.py`?")
    with pytest.raises(errors.InvalidInput, match=r"no file 'needs.txt'"):
        run("python train.py", directory=place, dependencies="needs.txt")
    with pytest.raises(errors.InvalidInput, match="the requirements file must be in the snapshot"):
        run("python train.py", directory=None, dependencies="needs.txt")
    (place / ".gitignore").write_text("train.py\n")
    with pytest.raises(errors.InvalidInput, match=r"'train.py' is left out of the snapshot"):
        run("python train.py", directory=place)
    assert server.jobs() == []
    assert run("python train.py", directory=place, in_place=True).directory == str(place)
    assert run("python other.py", directory=None).snapshot is None


@pytest.mark.parametrize("command", ["train.py --epochs 2", ["train.py", "--epochs", "2"], "./train.py --epochs 2"])
def test_a_python_file_that_is_no_program_is_refused_with_the_command_that_works(
    tmp_path: Path, command: str | list[str]
) -> None:
    script = tmp_path / "train.py"
    script.write_text("print('hello')\n")
    with pytest.raises(errors.InvalidInput, match=r"train\.py' is a Python file, which cannot be started") as caught:
        scripts.check_program(command, tmp_path)
    assert caught.value.hint.endswith("train.py --epochs 2")
    assert "python " in caught.value.hint


def test_programs_may_be_python_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "train.py"
    script.write_text("#!/usr/bin/env python3\n")
    script.chmod(0o755)
    scripts.check_program(["./train.py"], tmp_path)
    scripts.check_program(["other.py"], tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    scripts.check_program(["train.py"], tmp_path)


def test_the_job_knows_the_files_that_the_snapshot_lacks(
    server: live.LiveServer, tmp_path: Path, run: Callable[..., jobs.Job]
) -> None:
    place = tmp_path / "code"
    (place / "data" / "deep").mkdir(parents=True)
    (place / ".git").mkdir()
    (place / "train.py").touch()
    (place / "a.log").touch()
    (place / "data" / "rows.csv").touch()
    (place / ".gitignore").write_text("data/\n")
    (place / ".oarlockignore").write_text("*.log\n")
    job = run("python train.py", directory=place)
    assert [(one.path, one.why) for one in job.left_out] == [("data/", ".gitignore"), ("a.log", ".oarlockignore")]


def test_many_files_are_remembered_by_their_kind(
    server: live.LiveServer, tmp_path: Path, run: Callable[..., jobs.Job]
) -> None:
    place = tmp_path / "code"
    (place / "data").mkdir(parents=True)
    (place / "train.py").touch()
    for number in range(60):
        (place / "data" / f"{number}.csv").touch()
    (place / "README").touch()
    (place / ".gitignore").write_text("*.csv\nREADME\n")
    job = run("python train.py", directory=place)
    assert [one.path for one in job.left_out] == ["README", "data/*.csv"]


COMMANDS = [
    ("python train.py", "train.py"),
    ("python -u sub/train.py --lr 1", "sub/train.py"),
    (("torchrun", "train.py"), "train.py"),
    (("/usr/bin/python3", "train.py"), "train.py"),
    ("python train.py > log", None),
    ("python -m train", None),
    ("python -c 1", None),
    ("bash train.sh", None),
]


@pytest.mark.parametrize(("command", "script"), COMMANDS)
def test_only_a_certain_script_is_looked_for(command: str | tuple[str, ...], script: str | None) -> None:
    assert scripts.script_of(command) == script
