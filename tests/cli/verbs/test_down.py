"""`oarlock down` ends a server, and nothing that only bears the number of one."""

from __future__ import annotations

import fcntl
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli import typed

from oarlock.cli.launching import localserver


@pytest.fixture
def stranger(home: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that has the number which a server that crashed has left in its file. No server listens at its URL."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    home.mkdir()
    (home / "server.json").write_text(json.dumps({"url": "http://127.0.0.1:1", "pid": process.pid}))
    (home / "server.lock").touch()
    yield process
    process.kill()
    process.wait()


def test_a_stranger_with_the_number_of_a_dead_server_is_left_alone(
    home: Path, stranger: subprocess.Popen[bytes]
) -> None:
    done = typed.run("down")
    assert done.returncode == 0, done.stderr
    assert "is another program" in done.stderr
    assert stranger.poll() is None


def test_a_server_that_does_not_answer_is_ended_by_a_signal(home: Path, stranger: subprocess.Popen[bytes]) -> None:
    with (home / "server.lock").open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert localserver.holds(home)
        with subprocess.Popen(
            [*typed.COMMAND, "down"], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        ) as down:
            stranger.wait(timeout=typed.TIMEOUT_S)
            assert down.wait(timeout=typed.TIMEOUT_S) == 0
            assert down.stderr is not None
            assert "with a signal" in down.stderr.read()
    assert not localserver.holds(home)
