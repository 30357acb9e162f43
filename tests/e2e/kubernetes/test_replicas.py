"""Two servers on one database and one cluster: both answer, one leads, and the other one takes over when that one dies.

Pods reach the servers at one address, as through a Service: a relay that leads to a server that lives. The folders of
data (snapshots, logs, metrics, files, results) lie on a volume that both share.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from tests.backends.kubernetes.testcluster import apiserver
from tests.backends.kubernetes.testcluster.apiserver import api_server  # noqa: F401  (a fixture)
from tests.e2e import stalls
from tests.e2e.kubernetes import pods
from tests.store import postgresql

from oarlock.spec import events
from oarlock.store.sql import database

pytestmark = apiserver.needed

WITHIN_S = 15.0
"""The time after the death of the leader by which the other server has admitted a job. The lease lasts 10 s."""
SHARED = ("blobs", "logs", "metrics", "files", "results")
SECRETS = ("token", "task-secret")
RUN = ["run", "--detach", "--framework", "plain", "--image", "registry.example/any:1", "--grace", "1s"]


class ReplicaShell(pods.PodShell):
    """A user of the first server; `second` is the environment of the other one."""

    def __init__(self, folder: Path, api_server: apiserver.ApiServer, url: str) -> None:  # noqa: F811
        super().__init__(folder, api_server)
        self.url = url
        self.first = self.port, self.home
        self.second = apiserver.free_ports(1)[0], folder / "second"
        (self.service,) = apiserver.free_ports(1)
        self._relay: asyncio.Server | None = None

    async def _open(self) -> None:
        await super()._open()
        self._relay = await asyncio.start_server(self._leads, "127.0.0.1", self.service)

    async def _close(self) -> None:
        if self._relay is not None:
            self._relay.close()
        await super()._close()

    async def _leads(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for port in (self.first[0], self.second[0]):
            with contextlib.suppress(OSError):
                inner = await asyncio.open_connection("127.0.0.1", port)
                await asyncio.gather(_pump(reader, inner[1]), _pump(inner[0], writer))
                return
        writer.close()

    def configure(self, more: str = "") -> None:
        super().configure(more)
        own = (self.home / "config.toml").read_text()
        _, second = self.second
        second.mkdir()
        for port, home in (self.first, self.second):
            text = own.replace(f"127.0.0.1:{self.port}", f"127.0.0.1:{self.service}")
            text = text.replace(f"port = {self.port}", f'port = {port}\n            database = "{self.url}"')
            (home / "config.toml").write_text(text)

    def use(self, place: tuple[int, Path]) -> None:
        """Let commands talk to this server."""
        _, self.home = place
        self.env["OARLOCK_HOME"] = str(self.home)

    def start_second(self) -> None:
        _, first = self.first
        _, second = self.second
        for name in SHARED:
            (second / name).symlink_to(first / name)
        for name in SECRETS:
            (second / name).write_bytes((first / name).read_bytes())
            (second / name).chmod(0o600)
        self.use(self.second)
        self.do("up", "--backend", "kubernetes", "--detach")

    def epoch(self, place: tuple[int, Path]) -> float:
        """Return the epoch of the leader, as this server tells it."""
        text = httpx.get(f"http://127.0.0.1:{place[0]}/metrics", trust_env=False, timeout=60).text
        (line,) = [line for line in text.splitlines() if line.startswith("oarlock_leader_epoch ")]
        return float(line.split()[1])

    def admitted_at(self, name: str) -> float:
        """Return when the job was admitted, as its record tells."""

        async def read() -> list[events.Record]:
            store = database.open_store(self.url)
            try:
                return await store.read(lambda view: view.records(0, limit=10_000))
            finally:
                await store.close()

        job = self.job(name)["id"]
        return next(one.at for one in asyncio.run(read()) if (one.job, one.kind) == (job, "admitted"))


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    writer.close()


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory, api_server: apiserver.ApiServer) -> Iterator[ReplicaShell]:  # noqa: F811
    with postgresql.running() as postgres:
        one = ReplicaShell(tmp_path_factory.mktemp("user"), api_server, postgres.url(postgres.make()))
        try:
            one.open()
            one.start_second()
            yield one
        finally:
            for place in (one.first, one.second):
                one.use(place)
                one.do("down", code=None)
            one.close()


def test_another_server_takes_over_when_the_leader_dies(shell: ReplicaShell) -> None:
    """It answers before that, too. The job that runs goes on in the same pod, and a new one is launched."""
    release = shell.home.parent / "release"
    shell.use(shell.first)
    epoch = shell.epoch(shell.first)
    waits = f"echo before; while [ ! -e {release} ]; do sleep 0.1; done; echo after"
    shell.do(*RUN, "--name", "outlives", "--", "sh", "-c", waits)
    shell.wait_phase("outlives", "PROCESSING")
    pid = shell.server_pid()
    shell.use(shell.second)
    assert "outlives" in shell.do("ps").stdout, "the server that does not lead answers, too"
    assert shell.epoch(shell.second) == epoch
    with stalls.Stalls() as late:
        killed_at = time.time()
        os.kill(pid, signal.SIGKILL)
        shell.do(*RUN, "--name", "late", "--", "true")
        job = shell.wait_phase("late", "COMPLETED", "FAILED")
    assert job["phase"] == "COMPLETED"
    assert shell.epoch(shell.second) == epoch + 1
    took_s = shell.admitted_at("late") - killed_at
    assert took_s <= WITHIN_S + late.late_s, f"{took_s:.1f} s, of which this machine was late {late.late_s:.1f} s"
    release.touch()
    job = shell.wait_phase("outlives", "COMPLETED", "FAILED")
    assert job["phase"] == "COMPLETED"
    assert len(job["attempts"]) == 1
    assert shell.starts("outlives") == 1
    assert shell.do("logs", "outlives").stdout.split() == ["before", "after"]


def test_the_server_that_died_comes_back_and_follows(shell: ReplicaShell) -> None:
    """After the test above: the second server leads, and jobs that are submitted to the first one run."""
    epoch = shell.epoch(shell.second)
    shell.use(shell.first)
    shell.do("up", "--backend", "kubernetes", "--detach")
    shell.do(*RUN, "--name", "back", "--", "true")
    assert shell.wait_phase("back", "COMPLETED", "FAILED")["phase"] == "COMPLETED"
    assert shell.epoch(shell.first) == epoch
