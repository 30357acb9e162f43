"""A job reads nothing of what is piped into `oarlock run`: a hint says so where something was."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from oarlock.cli.launching import submitting
from oarlock.cli.output import terminal


def test_input_that_waits_is_noticed_and_left_there(tmp_path: Path) -> None:
    (tmp_path / "numbers").write_text("3\n")
    with (tmp_path / "numbers").open() as file:
        assert terminal.holds_input(file)
        assert file.read() == "3\n"
        assert not terminal.holds_input(file)
    out, into = os.pipe()
    with os.fdopen(out) as reading:
        assert not terminal.holds_input(reading)
        os.write(into, b"3\n")
        assert terminal.holds_input(reading)
        os.close(into)
        assert reading.read() == "3\n"
        assert not terminal.holds_input(reading)
    assert not terminal.holds_input(reading)  # closed
    one, other = socket.socketpair()
    with one, other, one.makefile() as reading:
        assert not terminal.holds_input(reading)
        other.sendall(b"3\n")
        assert terminal.holds_input(reading)
    with Path(os.devnull).open() as nothing:
        assert not terminal.holds_input(nothing)
    assert not terminal.holds_input(None)


def test_the_hint_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "numbers").write_text("3\n")
    with (tmp_path / "numbers").open() as file:
        monkeypatch.setattr("sys.stdin", file)
        submitting.tell_input()
        assert capsys.readouterr().err == (
            "Hint: stdin is not sent to a job, and the job's own is closed."
            " Put the input into a file of the directory.\n"
        )
        file.read()
        submitting.tell_input()
    assert capsys.readouterr().err == ""
