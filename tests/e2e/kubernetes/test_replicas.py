"""Two servers on one database and one cluster: both answer, one leads, and the other one takes over when that one dies.

Pods reach the servers at one address, as through a Service: a relay that leads to a server that lives. The folders of
data (snapshots, logs, metrics, files, results) lie on a volume that both share, and either server may get the next
request of an agent, or of a browser.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from tests.backends.kubernetes.testcluster import apiserver
from tests.data.metrics import test_metricfiles as rows
from tests.e2e.kubernetes import pods
from tests.store import postgresql

from oarlock.spec import attempts
from oarlock.spec.protocol import tasktokens

pytestmark = apiserver.needed

SHARED = ("blobs", "logs", "metrics", "files", "results")
SECRETS = ("token", "task-secret")
REST_S = 0.02
TAKEOVER_S = 15.0
"""Another server leads within this time."""
LINES = 600
"""The lines of a job that goes on while a server is killed: some 15 s."""
RUN = ["run", "--detach", "--framework", "plain", "--image", "registry.example/any:1", "--grace", "1s"]


class ReplicaShell(pods.PodShell):
    """A user of the first server; `second` is the environment of the other one."""

    def __init__(self, folder: Path, api_server: apiserver.ApiServer, url: str) -> None:
        super().__init__(folder, api_server)
        self.url = url
        self.first = self.port, self.home
        self.second = apiserver.free_ports(1)[0], folder / "second"
        (self.service,) = apiserver.free_ports(1)
        self.led: Counter[int] = Counter()  # the connections of agents, by the port of the server
        self.ready = [self.first[0], self.second[0]]  # the servers that a Service would lead to, the first choice first
        self.alternates = False
        self._relay: asyncio.Server | None = None

    async def _open(self) -> None:
        await super()._open()
        self._relay = await asyncio.start_server(self._leads, "127.0.0.1", self.service)

    async def _close(self) -> None:
        if self._relay is not None:
            self._relay.close()
        await super()._close()

    async def _leads(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Lead a connection to a server. If they alternate, it ends after its answer, and the next one goes on at the
        other server.
        """
        ports = list(self.ready)
        if self.alternates and self.led.total() % 2:
            ports.reverse()
        for port in ports:
            with contextlib.suppress(OSError):
                inner = await asyncio.open_connection("127.0.0.1", port)
                self.led[port] += 1
                await Relayed(reader, writer, *inner).pump(REST_S if self.alternates else None)
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
            (first / name).mkdir(exist_ok=True)  # as share.sh of the installation does
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


class Relayed:
    """A connection of an agent, and the one behind it to a server."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        answers: asyncio.StreamReader,
        requests: asyncio.StreamWriter,
    ) -> None:
        self._reader, self._writer, self._answers, self._requests = reader, writer, answers, requests
        self._asked = True

    async def pump(self, rest_s: float | None) -> None:
        """Pass everything on. With `rest_s` the connection ends when it has rested for so long after an answer."""
        await asyncio.gather(self._ask(), self._answer(rest_s))

    async def _ask(self) -> None:
        with contextlib.suppress(OSError):
            while data := await self._reader.read(1 << 16):
                self._asked = True
                self._requests.write(data)
                await self._requests.drain()
        self._requests.close()

    async def _answer(self, rest_s: float | None) -> None:
        with contextlib.suppress(OSError):
            while True:
                try:
                    data = await asyncio.wait_for(self._answers.read(1 << 16), rest_s)
                except TimeoutError:
                    if self._asked:
                        continue
                    break
                if not data:
                    break
                self._asked = False
                self._writer.write(data)
                await self._writer.drain()
        self._writer.close()


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory, api_server: apiserver.ApiServer) -> Iterator[ReplicaShell]:
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
    """It answers before that, too, and leads within 15 s. The job that runs goes on in the same pod, and a new one is
    launched.
    """
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
    os.kill(pid, signal.SIGKILL)
    with shell.within(TAKEOVER_S, "the takeover"):
        shell.until(lambda: shell.epoch(shell.second) == epoch + 1, "the other server leads")
    shell.do(*RUN, "--name", "late", "--", "true")
    job = shell.wait_phase("late", "COMPLETED", "FAILED")
    assert job["phase"] == "COMPLETED"
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


def test_an_agent_alternates_and_a_server_is_killed(shell: ReplicaShell) -> None:
    """After the tests above. A follower at the first server and a reader at the second one see each line once, and each
    metric, though a server that takes half of them dies at once, and comes back.
    """
    release = shell.home.parent / "printed"
    prints = f"i=0; while [ $i -lt {LINES} ]; do echo line $i; i=$((i + 1)); sleep 0.02; done"
    shell.use(shell.first)
    shell.alternates = True
    try:
        shell.do(*RUN, "--name", "moves", "--", "sh", "-c", f"{prints}; while [ ! -e {release} ]; do sleep 0.1; done")
        shell.wait_phase("moves", "PROCESSING")
        with shell.start("logs", "--follow", "moves") as follower:
            try:
                _move(shell, metrics := Metrics(shell, "moves"), release)
                seen, failed = follower.communicate(timeout=240)
            finally:
                follower.kill()
    finally:
        shell.alternates = False
    lines = [f"line {number}" for number in range(LINES)]
    assert seen.splitlines() == lines, failed
    for place in (shell.first, shell.second):
        shell.use(place)
        assert shell.do("logs", "moves").stdout.splitlines() == lines
        assert metrics.steps(place) == list(range(60))
    assert min(shell.led[shell.first[0]], shell.led[shell.second[0]]) > 20, "its agent has alternated"


def _move(shell: ReplicaShell, metrics: Metrics, release: Path) -> None:
    """Let the agent alternate, kill the second server, start it again, and end the job."""
    for step in range(20):
        metrics.report(step, shell.first if step % 2 else shell.second)
    assert metrics.steps(shell.first) == metrics.steps(shell.second) == list(range(20))
    shell.until(lambda: "line 100\n" in shell.do("logs", "moves").stdout, "it has printed a part")
    shell.use(shell.second)
    os.kill(shell.server_pid(), signal.SIGKILL)
    for step in range(20, 40):
        metrics.report(step, shell.first)
    shell.do("up", "--backend", "kubernetes", "--detach")
    assert metrics.steps(shell.second) == list(range(40))
    for step in range(40, 60):
        metrics.report(step, shell.first if step % 2 else shell.second)
    last = f"line {LINES - 1}\n"
    shell.until(lambda: last in shell.do("logs", "moves").stdout, "it has printed everything")
    release.touch()
    assert shell.wait_phase("moves", "COMPLETED", "FAILED")["phase"] == "COMPLETED"


def test_a_login_holds_at_both_servers(shell: ReplicaShell) -> None:
    """Their homes are not the same, and the cookie is."""
    (first, home), (second, _) = shell.first, shell.second
    with httpx.Client(trust_env=False, timeout=60) as browser:
        token = (home / "token").read_text().strip()
        origin = {"Origin": f"http://127.0.0.1:{first}", "Sec-Fetch-Site": "same-origin"}
        answer = browser.post(f"http://127.0.0.1:{first}/login", data={"secret": token}, headers=origin)
        assert answer.status_code == 303, answer.text
        for port in (first, second):
            assert browser.get(f"http://127.0.0.1:{port}/jobs").status_code == 200
        browser.cookies.clear()
        assert browser.get(f"http://127.0.0.1:{second}/jobs").status_code == 303


class Metrics:
    """The metrics of a process of the job's first task, which are sent as its agent sends them."""

    PROCESS = 7

    def __init__(self, shell: ReplicaShell, name: str) -> None:
        self._job = shell.job(name)["id"]
        key = attempts.TaskKey(self._job, 1, "worker", 0, 1)
        token = tasktokens.derive((shell.home / "task-secret").read_bytes(), key)
        self._headers = {"Authorization": f"Bearer {token}", "Oarlock-Task": str(key)}
        self._users = {"Authorization": f"Bearer {(shell.home / 'token').read_text().strip()}"}
        self._at = 0

    def report(self, step: int, place: tuple[int, Path]) -> None:
        """Send one value to this server."""
        data = (rows.schema(1, "loss") if step == 0 else b"") + rows.row(1, step, float(step))
        path = f"http://127.0.0.1:{place[0]}/agent/v1/metrics/{self.PROCESS}?offset={self._at}"
        answer = httpx.post(path, content=data, headers=self._headers, trust_env=False, timeout=60)
        assert answer.status_code == 200, answer.text
        self._at += len(data)
        assert answer.json() == {"length": self._at}

    def steps(self, place: tuple[int, Path]) -> list[int]:
        """Return the steps that this server knows."""
        path = f"http://127.0.0.1:{place[0]}/api/v1/jobs/{self._job}/metrics?name=loss"
        answer = httpx.get(path, headers=self._users, trust_env=False, timeout=60)
        assert answer.status_code == 200, answer.text
        (found,) = [one for one in answer.json()["series"] if one["process"] == self.PROCESS]
        return [point["step"] for point in found["points"]]
