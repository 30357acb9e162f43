"""The helper in a container of its own: a request gets one of its commands, and our interpreter as it is."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

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


def test_whether_the_agent_lives(tmp_path: Path) -> None:
    """It has begun, and holds its lock no more."""
    assert not mailboxes.agent_has_begun(tmp_path)
    assert not mailboxes.agent_lives(tmp_path)
    (tmp_path / mailboxes.AGENT_STARTED).touch()
    assert mailboxes.agent_has_begun(tmp_path)
    assert not mailboxes.agent_lives(tmp_path), "its directory is being removed"
    with (tmp_path / mailboxes.AGENT_LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert mailboxes.agent_lives(tmp_path)
    assert not mailboxes.agent_lives(tmp_path)


def test_the_end_of_a_pod_waits_for_its_agent_and_for_no_other(tmp_path: Path) -> None:
    """A pod that is deleted before its agent has begun, as while an image is pulled, ends without the grace."""
    helper = mailboxes.Helper(tmp_path / "mailbox", tmp_path)
    waits = 0

    def sleep(_: float) -> None:
        nonlocal waits
        waits += 1
        assert waits < 3, "the helper waits for an agent that cannot come"
        helper.ask_to_end()

    helper.run(sleep)
    assert waits == 1, "it waited for the agent until it was asked to end"
    with (tmp_path / mailboxes.AGENT_LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        helper.run(lambda _: fcntl.flock(lock, fcntl.LOCK_UN))


def test_a_request_that_is_canceled_ends_with_all_of_its_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It leads a session, so that its children end with it. No process is started here."""
    asked: list[dict[str, Any]] = []
    killed: list[tuple[int, int]] = []

    class Started:
        pid = 4242

        def __init__(self, argv: list[str], **more: Any) -> None:
            asked.append(more)

        def poll(self) -> int | None:
            return -signal.SIGKILL if killed else None

        def wait(self) -> None: ...

    monkeypatch.setattr(subprocess, "Popen", Started)
    monkeypatch.setattr(os, "killpg", lambda pid, signum: killed.append((pid, signum)))
    helper = mailboxes.Helper(tmp_path / "mailbox", tmp_path, ("helper",))
    request = {"arguments": ["store", "a"], "env": {}, "stdout": f"{tmp_path}/out", "stderr": f"{tmp_path}/err"}
    (tmp_path / "mailbox" / mailboxes.REQUESTS / "1.json").write_text(json.dumps(request))
    helper.look()
    answer = tmp_path / "mailbox" / mailboxes.ANSWERS / "1.json"
    assert (len(asked), asked[0]["start_new_session"], answer.exists()) == (1, True, False)
    (tmp_path / "mailbox" / mailboxes.CANCELS / "1").touch()
    (tmp_path / "mailbox" / mailboxes.CANCELS / "unknown").touch()
    helper.look()
    assert killed == [(4242, signal.SIGKILL)]
    assert json.loads(answer.read_text()) == {"code": None, "signal": signal.SIGKILL}
    assert not list((tmp_path / "mailbox" / mailboxes.CANCELS).iterdir())
