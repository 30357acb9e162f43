"""The remote shell of MPI: the launcher's words run in a worker's task, for no other task."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests import needs

from oarlock.agent import remoteshell, zipapp


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("agent") / "agent.pyz"
    zipapp.build(place)
    return place


def free_port(address: str) -> int:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.create_server((address, 0), family=family) as found:
        port: int = found.getsockname()[1]
        return port


def task(folder: Path, role: str, address: str, port: int, token: str) -> Path:
    folder.mkdir()
    fields = {
        "key": f"j/1/{role}/0/1",
        "command": "true",
        "address": address,
        "ports": [port],
        "env": {remoteshell.TOKEN: token},
    }
    (folder / "assignment.json").write_text(json.dumps(fields))
    return folder


class Gang:
    """A worker that serves, and a launcher that asks."""

    def __init__(self, agent: Path, place: Path, address: str = "127.0.0.1") -> None:
        self._agent, self._place, self.address, self.port = agent, place, address, free_port(address)
        worker = task(place / "worker", "worker", address, self.port, "secret")
        self.launcher = task(place / "launcher", "launcher", address, self.port, "secret")
        self.server = subprocess.Popen([sys.executable, "-I", str(agent), "--serve-shell", str(worker)], cwd=worker)

    def command(self, *words: str, launcher: Path | None = None) -> list[str]:
        return [sys.executable, "-I", str(self._agent), "--shell", str(launcher or self.launcher), self.address, *words]

    def run(self, *words: str, launcher: Path | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(self.command(*words, launcher=launcher), capture_output=True, text=True, check=False)

    def stranger(self) -> Path:
        return task(self._place / "stranger", "launcher", self.address, self.port, "another secret")


@pytest.fixture
def gang(agent: Path, tmp_path: Path) -> Iterator[Gang]:
    with opened(Gang(agent, tmp_path)) as found:
        yield found


@contextlib.contextmanager
def opened(gang: Gang) -> Iterator[Gang]:
    try:
        yield gang
    finally:
        gang.server.kill()
        gang.server.wait()


def test_output_and_exit_status_come_back(gang: Gang) -> None:
    """As with ssh, the words are one command line for a shell there."""
    done = gang.run("echo", "out;", "pwd;", "echo err >&2;", "exit 7")
    assert done.stdout.split() == ["out", str(gang.launcher.parent / "worker")]
    assert (done.stderr, done.returncode) == ("err\n", 7)
    assert gang.run("kill -9 $$").returncode == 137


@pytest.mark.parametrize(
    ("said", "heard"),
    [
        (
            ["proxy", "--control-port", "pod-a:39", "--rmk", "user"],
            ["proxy", "--control-port", "10.0.0.7:39", "--rmk", "user"],
        ),
        (["proxy", "--upstream-host", "pod-a", "--n", "1"], ["proxy", "--upstream-host", "10.0.0.7", "--n", "1"]),
        (["proxy", "--control-port", "pod-ab:39"], ["proxy", "--control-port", "pod-ab:39"]),
        (["echo", "pod-a:39", "--control-port"], ["echo", "pod-a:39", "--control-port"]),
    ],
)
def test_daemons_of_hydra_call_back_at_an_address(said: list[str], heard: list[str]) -> None:
    """Nobody can look up the name of a pod. The words of other commands stay."""
    assert remoteshell.with_address(said, "pod-a", "10.0.0.7") == heard


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


def test_idle_connections_keep_no_launcher_out(gang: Gang) -> None:
    """The worker may open fewer descriptors than there are connections."""
    assert gang.run("true").returncode == 0, "it listens"
    resource.prlimit(gang.server.pid, resource.RLIMIT_NOFILE, (128, 128))
    with contextlib.ExitStack() as stack:
        for _ in range(3 * remoteshell.UNPROVED):
            stack.enter_context(socket.create_connection((gang.address, gang.port)))
        assert gang.run("echo here").stdout == "here\n"
    assert gang.server.poll() is None


def test_a_slow_stranger_has_one_bound_for_all_its_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remoteshell, "HANDSHAKE_S", 0.5)
    mine, its = socket.socketpair()

    def drip() -> None:
        with contextlib.suppress(OSError):
            for _ in range(36 + 2):  # a proof, a length, and the command `""`
                its.sendall(b"\0")
                time.sleep(0.1)

    dripping = threading.Thread(target=drip)
    with mine, its:
        dripping.start()
        with pytest.raises(TimeoutError):
            remoteshell._hear(mine, b"secret")
    dripping.join()


def test_a_command_runs_where_many_files_are_open(tmp_path: Path) -> None:
    """A worker that has many connections has descriptors above those that `select` takes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 2048:
        needs.skip("descriptors", f"the hard limit is {hard}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2048), hard))
    try:
        with contextlib.ExitStack() as stack:
            for _ in range(1100):
                stack.enter_context((tmp_path / "file").open("w"))
            mine, its = socket.socketpair()
            with mine, its:
                remoteshell._run(mine, "echo here")
                mine.shutdown(socket.SHUT_WR)
                assert b"here\n" in b"".join(iter(lambda: its.recv(65536), b""))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_worker_may_have_an_address_of_ipv6(agent: Path, tmp_path: Path) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError as error:
        needs.skip("IPv6", str(error))
    with opened(Gang(agent, tmp_path, "::1")) as gang:
        assert gang.run("echo here").stdout == "here\n"


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
