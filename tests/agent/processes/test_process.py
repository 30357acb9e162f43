"""A user's process as the agent starts it and records its end. `Popen` is replaced: no process is started."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest

from oarlock.agent.processes import cgroups, process


class Started:
    """The arguments of `Popen`, with the files of its output while they are open."""

    asked: dict[str, Any]
    outputs: tuple[str, str]

    def __init__(self, argv: list[str], **asked: Any) -> None:
        if argv == ["missing"]:
            raise FileNotFoundError(2, "missing")
        Started.asked = {"argv": argv, **asked}
        os.write(asked["stdout"], b"out\n")
        os.write(asked["stderr"], b"err\n")
        if asked["preexec_fn"] is not None:
            asked["preexec_fn"]()
        self.pid, self.returncode = 4242, None


@pytest.fixture(autouse=True)
def _no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "Popen", Started)


@pytest.fixture
def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[int, str]:
    """The descriptors of files in the test's folder that are open, with their names."""
    known: dict[int, str] = {}
    really_open, really_close = os.open, os.close

    def open_one(path: Any, flags: int, mode: int = 0o777, **more: Any) -> int:
        fd = really_open(path, flags, mode, **more)
        if Path(path).parent == tmp_path:
            known[fd] = Path(path).name
        return fd

    def close_one(fd: int) -> None:
        really_close(fd)
        known.pop(fd, None)

    monkeypatch.setattr(os, "open", open_one)
    monkeypatch.setattr(os, "close", close_one)
    return known


def test_the_output_is_appended_to_two_files_of_the_user_alone(tmp_path: Path, opened: dict[int, str]) -> None:
    out, err = tmp_path / "stdout.0", tmp_path / "stderr.0"
    out.write_text("before\n")
    made = process.start(["a", "b"], {"X": "1"}, "/tmp", str(out), str(err))
    assert opened == {}, "none stays open"
    assert (made.pid, made.running) == (4242, True)
    assert (out.read_text(), err.read_text()) == ("before\nout\n", "err\n")
    assert stat.S_IMODE(err.stat().st_mode) == 0o600
    asked = Started.asked
    assert (asked["argv"], asked["env"], asked["cwd"]) == (["a", "b"], {"X": "1"}, "/tmp")
    assert asked["start_new_session"] is True
    assert (asked["stdin"], asked["preexec_fn"]) == (subprocess.DEVNULL, None)


def test_one_file_may_take_both_outputs(tmp_path: Path) -> None:
    both = str(tmp_path / "log")
    process.start(["a"], {}, "/", both, both)
    assert Started.asked["stdout"] == Started.asked["stderr"]
    assert Path(both).read_text() == "out\nerr\n"


def test_the_process_enters_its_cgroup_before_the_command_runs(tmp_path: Path, opened: dict[int, str]) -> None:
    (tmp_path / "cgroup.procs").touch()
    process.start(["a"], {}, "/", str(tmp_path / "o"), str(tmp_path / "e"), cgroups.Cgroup(str(tmp_path)))
    assert (tmp_path / "cgroup.procs").read_text() == "0\n"
    assert opened == {}


def test_a_command_that_cannot_be_started_leaves_nothing_open(tmp_path: Path, opened: dict[int, str]) -> None:
    with pytest.raises(FileNotFoundError):
        process.start(["missing"], {}, "/", str(tmp_path / "o"), str(tmp_path / "e"))
    assert opened == {}


@pytest.mark.parametrize(
    ("code", "signum", "by_us", "returncode", "failed"),
    [(0, None, False, 0, False), (3, None, False, 3, True), (None, 9, False, -9, True), (None, 15, True, -15, False)],
)
def test_an_end_is_told_to_subprocess_too(
    tmp_path: Path, code: int | None, signum: int | None, by_us: bool, returncode: int, failed: bool
) -> None:
    """Otherwise its finalizer would wait for a process that the agent has reaped, and warn of it."""
    made = process.start(["a"], {}, "/", str(tmp_path / "o"), str(tmp_path / "e"))
    popen = made._popen
    assert popen is not None
    made.signalled = by_us
    made.end(code, signum)
    assert (popen.returncode, made.failed, made.running, made.ended_by_us) == (returncode, failed, False, by_us)


@pytest.mark.parametrize(
    ("command", "missing", "advised"),
    [("train --lr 1", "/bin/sh", True), (["/bin/sh", "x"], "/bin/sh", False), (["train"], "train", False)],
)
def test_an_image_without_a_shell_is_told_with_the_next_step(tmp_path, command, missing, advised):
    error = FileNotFoundError(errno.ENOENT, "No such file or directory", missing)
    why = process.why_not(error, command, str(tmp_path))
    assert why.startswith(f"the command cannot be started: {missing}: No such file or directory")
    assert ("give `command` as a list of words" in why) is advised


@pytest.mark.parametrize(("command", "argv"), [("a | b", ["/bin/sh", "-c", "a | b"]), (["a", "b c"], ["a", "b c"])])
def test_a_text_is_run_by_a_shell_and_a_list_as_it_is(command: str | list[str], argv: list[str]) -> None:
    assert process.argv_of(command) == argv
