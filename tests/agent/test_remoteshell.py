"""The remote shell of MPI: the launcher's words run in a worker's task, for no other task."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from oarlock.agent import remoteshell, zipapp


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("agent") / "agent.pyz"
    zipapp.build(place)
    return place


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        port: int = found.getsockname()[1]
        return port


def task(folder: Path, role: str, port: int, token: str) -> Path:
    folder.mkdir()
    fields = {
        "key": f"j/1/{role}/0/1",
        "command": "true",
        "address": "127.0.0.1",
        "ports": [port],
        "env": {remoteshell.TOKEN: token},
    }
    (folder / "assignment.json").write_text(json.dumps(fields))
    return folder


class Gang:
    """A worker that serves, and a launcher that asks."""

    def __init__(self, agent: Path, place: Path) -> None:
        self._agent, self._place, self._port = agent, place, free_port()
        worker = task(place / "worker", "worker", self._port, "secret")
        self.launcher = task(place / "launcher", "launcher", self._port, "secret")
        self.server = subprocess.Popen([sys.executable, "-I", str(agent), "--serve-shell", str(worker)], cwd=worker)

    def command(self, *words: str, launcher: Path | None = None) -> list[str]:
        return [sys.executable, "-I", str(self._agent), "--shell", str(launcher or self.launcher), "127.0.0.1", *words]

    def run(self, *words: str, launcher: Path | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(self.command(*words, launcher=launcher), capture_output=True, text=True, check=False)

    def stranger(self) -> Path:
        return task(self._place / "stranger", "launcher", self._port, "another secret")


@pytest.fixture
def gang(agent: Path, tmp_path: Path) -> Iterator[Gang]:
    found = Gang(agent, tmp_path)
    yield found
    found.server.kill()
    found.server.wait()


def test_output_and_exit_status_come_back(gang: Gang) -> None:
    """As with ssh, the words are one command line for a shell there."""
    done = gang.run("echo", "out;", "pwd;", "echo err >&2;", "exit 7")
    assert done.stdout.split() == ["out", str(gang.launcher.parent / "worker")]
    assert (done.stderr, done.returncode) == ("err\n", 7)
    assert gang.run("kill -9 $$").returncode == 137


def test_much_output_comes_whole(gang: Gang) -> None:
    assert len(gang.run("head -c 3000000 /dev/zero | tr '\\0' x").stdout) == 3_000_000


def test_a_command_without_the_token_does_not_run(gang: Gang, tmp_path: Path) -> None:
    done = gang.run(f"touch {tmp_path}/ran", launcher=gang.stranger())
    assert done.returncode == remoteshell.FAILED
    assert "cannot run a command" in done.stderr
    assert gang.run("true").returncode == 0, "the worker goes on"
    assert not (tmp_path / "ran").exists()


def test_a_daemon_outlives_the_command_that_started_it(gang: Gang, tmp_path: Path) -> None:
    """`mpirun` starts its daemons so: the shell returns, the daemon stays."""
    started = gang.run(f"(sleep 1; touch {tmp_path}/later) >/dev/null 2>&1 </dev/null & echo started")
    assert started.stdout == "started\n"
    until(lambda: (tmp_path / "later").exists())


def test_a_command_ends_with_the_launcher(gang: Gang, tmp_path: Path) -> None:
    asking = subprocess.Popen(gang.command(f"echo $$ > {tmp_path}/pid; exec sleep 600"))
    until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text().strip().isdigit())
    pid = int((tmp_path / "pid").read_text())
    asking.kill()
    asking.wait()
    until(lambda: not lives(pid))


def lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def until(holds: object) -> None:
    assert callable(holds)
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)
