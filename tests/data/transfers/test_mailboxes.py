"""The helper in a container of its own: a request gets one of its commands, and our interpreter as it is."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from oarlock.agent.transfers import helpercommand
from oarlock.data.transfers import mailboxes

PROGRAM = "import json, os, sys; print(json.dumps([sys.argv[1:], dict(os.environ)]))"


def answered(folder: Path, *arguments: str, **env: str) -> tuple[dict[str, int | None], str, str]:
    """Return the answer to one request, and its output."""
    one = mailboxes.Helper(folder / "mailbox", folder, (sys.executable, "-c", PROGRAM))
    out, err = folder / "out", folder / "err"
    request = {"arguments": arguments, "env": env, "stdout": str(out), "stderr": str(err)}
    (folder / "mailbox" / "requests" / "1.json").write_text(json.dumps(request))
    answer = folder / "mailbox" / "answers" / "1.json"
    while not answer.exists():
        one.look()
    return json.loads(answer.read_text()), out.read_text() if out.exists() else "", err.read_text()


def test_a_request_changes_no_variable_of_our_interpreter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/ours")
    monkeypatch.delenv("PYTHONPATH", raising=False)
    wrong = {"PYTHONPATH": "/theirs", "LD_PRELOAD": "", "PATH": "/theirs", "OARLOCK_HOME": "/theirs"}
    answer, out, _ = answered(tmp_path, "store", "a", "b", TOKEN="t", **wrong)
    assert answer == {"code": 0, "signal": None}
    arguments, env = json.loads(out)
    assert arguments == ["--task", str(tmp_path), "store", "a", "b"]
    assert (env["TOKEN"], env["PATH"], env["PYTHONUNBUFFERED"]) == ("t", "/ours", "1")
    assert "/theirs" not in env.values()
    assert "LD_PRELOAD" not in env


@pytest.mark.parametrize("arguments", [(), ("serve", "x"), ("--home", "/", "store"), ("--task", "/", "store")])
def test_another_command_is_refused(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    answer, out, err = answered(tmp_path, *arguments)
    assert answer == {"code": 2, "signal": None}
    assert out == ""
    assert "knows no such command" in err


def test_both_sides_keep_the_same_variables_back() -> None:
    assert mailboxes.NOT_FOR_HELPERS == helpercommand.NOT_FOR_HELPERS
