"""A server in this process: the application over the memory store, real directories for logs and blobs, a still clock.

What the backend and the machine would do is played by the small fakes here. Requests go through httpx's ASGI transport:
the same bytes as over a socket, without one.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from oarlock.api import application
from oarlock.api.jobs import capabilities
from oarlock.api.process import checkpoints, results
from oarlock.api.security import authentication, secretfiles
from oarlock.api.services import forecaster, inbox, meters, provided, wakes
from oarlock.backends import tensorboards
from oarlock.data import jobfiles, receivedfiles, storage
from oarlock.data.logs import logfiles
from oarlock.data.snapshots import blobs
from oarlock.lifecycle import stepping
from oarlock.spec import attempts, bodies, errors, events, holdings, jobfile, jobs
from oarlock.spec.access import users
from oarlock.spec.cluster import nodes
from oarlock.spec.protocol import tasktokens
from oarlock.store import memory

SECRET = b"s" * 32
NODE = nodes.Node(
    name="here",
    capacity=holdings.Resources(8000, 16 << 30, 2),
    devices=(nodes.Device(index=0, type="h100"), nodes.Device(index=1, type="h100")),
    ports=(20000, 29999),
)


class Clock:
    def __init__(self) -> None:
        self.now = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now


class NoMetrics:
    """Metrics as a fake: frames by key, no series."""

    def __init__(self) -> None:
        self.frames: dict[tuple[str, int], bytes] = {}

    async def append(self, key: attempts.TaskKey, process: int, offset: int, data: bytes) -> int:
        stored = self.frames.get((str(key), process), b"")
        if offset != len(stored):
            raise errors.OffsetMismatch("elsewhere", detail={"length": len(stored)})
        self.frames[str(key), process] = stored + data
        return len(stored) + len(data)

    async def names(self, job: str) -> list[str]:
        return ["loss"]

    async def news(self, job: str, after: str = "", *, points: int = 10_000, group: int = 0) -> storage.News:
        return storage.News(series=[], after=after)

    async def series(self, job: str, names: list[str] | None = None, *, points: int = 500, **_: Any) -> list[Any]:
        point = storage.Point(1, 2.0, float("nan"))
        return [storage.Series(task="worker-0", process=0, name="loss", points=(point,), count=1, low=(float("inf"),))]

    async def forget(self, job: str) -> None:
        self.frames = {name: data for name, data in self.frames.items() if not name[0].startswith(job)}


class Secrets:
    def __init__(self) -> None:
        self.values: dict[str, str] = {}

    def read(self, name: str, owner: str, *, admin: bool = False) -> str:
        if name not in self.values:
            raise errors.NotFound(f"There is no secret `{name}`.", hint="Make it.")
        return self.values[name]

    def listed(self, owner: str, *, admin: bool = False) -> list[bodies.SecretInfo]:
        return [bodies.SecretInfo(name=name) for name in self.values if admin]

    def put(self, name: str, value: str | None, owner: str, sharing: secretfiles.Sharing) -> bodies.SecretInfo:
        self.values[name] = value or ""
        return bodies.SecretInfo(name=name, owner=owner)

    def remove(self, name: str, owner: str) -> None:
        self.values.pop(name, None)

    def forget(self, owner: str) -> None:
        """Do nothing: the values here belong to no user."""


class Echo:
    """An exec process that says back what it hears, and exits with 7 at the end of its input."""

    def __init__(self, command: Sequence[str], key: attempts.TaskKey) -> None:
        import asyncio

        self.command = list(command)
        self.key = key
        self.killed = False
        self.sizes: list[tuple[int, int]] = []
        self._queue: asyncio.Queue[tuple[str, bytes]] = asyncio.Queue()
        self._queue.put_nowait(("stderr", b" ".join(word.encode() for word in command)))

    async def output(self) -> AsyncIterator[tuple[str, bytes]]:
        while True:
            item = await self._queue.get()
            yield item
            if item[0] == "exit":
                return

    async def write(self, data: bytes) -> None:
        self._queue.put_nowait(("stdout", data))

    async def close_stdin(self) -> None:
        self._queue.put_nowait(("exit", b"7"))

    async def resize(self, rows: int, columns: int) -> None:
        self.sizes.append((rows, columns))

    async def kill(self) -> None:
        self.killed = True


class Boards(tensorboards.Memory):
    """TensorBoards whose connections say back what they hear."""

    def __init__(self) -> None:
        super().__init__()
        self.connections: list[Echo] = []

    async def connect(self, job: jobs.Job) -> Echo:
        if (job.id, 1) not in self.items:
            raise errors.NotFound("The job has no TensorBoard.", hint="")
        self.connections.append(Echo(["connected"], attempts.TaskKey(job.id, 1, "worker", 0, 1)))
        return self.connections[-1]


class Rig:
    """`http` speaks as an administrator; `as_user` and `as_task` as others."""

    def __init__(self, home: Path, store: Any = None) -> None:
        self.clock = Clock()
        self.store = memory.MemoryStore() if store is None else store
        self.logs = logfiles.DirectoryLogs(home / "logs")
        self.blobs = blobs.DirectoryBlobs(home / "blobs")
        self.metrics = NoMetrics()
        self.secrets = Secrets()
        self.checkpoints = checkpoints.CheckpointDirectories(home / "checkpoints")
        self.results = results.ResultDirectories(home / "results", home / "files")
        self.problems: dict[str, str] = {}
        self.programs: bodies.Programs | None = None
        self.reports: list[tuple[str, dict[str, object]]] = []
        self.executed: list[Echo] = []
        self.tensorboards = Boards()
        self.shutdowns = 0
        self.tokens: dict[str, str] = {}
        self.meters = meters.Meters()
        self.wakes = wakes.Wakes(self.store, time.monotonic, self.meters.queue_wait_s.observe)
        self.services = provided.Services(
            store=self.store,
            logs=self.logs,
            metrics=self.metrics,
            blobs=self.blobs,
            exec=self._exec,
            secrets=self.secrets,
            checkpoints=self.checkpoints,
            results=self.results,
            files=jobfiles.DirectoryJobFiles(home),
            received=receivedfiles.DirectoryReceivedFiles(home),
            health=self._health,
            examine=self._examine,
            about=provided.About(
                version="0",
                backend="local",
                home=str(home),
                url="http://127.0.0.1:1",
                started_at=self.clock(),
                capabilities=tuple(
                    (capabilities.LOCAL | {capabilities.Capability.LOG_EXPRESSIONS})
                    - {capabilities.Capability.ELASTIC, capabilities.Capability.GPU_SHARES}
                ),
            ),
            task_secret=SECRET,
            clock=self.clock,
            entropy=self._entropy,
            shutdown=self._shutdown,
            report=lambda event, facts: self.reports.append((event, dict(facts))),
            wakes=self.wakes,
            inbox=inbox.Inbox(self.store, self.clock, self.wakes.touched),
            meters=self.meters,
            authenticator=authentication.Authenticator(self.store, SECRET, time.monotonic, self.clock),
            hosts=frozenset({"127.0.0.1", "localhost"}),
            tensorboards=self.tensorboards,
        )
        self.app = application.make(self.services)
        self._drawn = 0

    async def prepare(self) -> None:
        for name, right in (("root", "admin"), ("ann", "user"), ("bob", "user"), ("vera", "viewer")):
            token = authentication.fresh_token(self._entropy)
            self.tokens[name] = token
            user = users.User(name=name, right=users.Right(right))
            row = users.Token(sha256=authentication.digest(token), user=name, created_at=0.0)
            await self.store.write(lambda tx, user=user, row=row: (tx.put_user(user), tx.put_token(row)))
        await self.store.write(lambda tx: tx.put_node(NODE))

    def client(self, headers: dict[str, str] | None = None) -> httpx.AsyncClient:
        transport = httpx.ASGITransport(self.app, raise_app_exceptions=True)
        return httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:1", headers=headers or {}, timeout=280)

    def as_user(self, name: str) -> httpx.AsyncClient:
        return self.client({"Authorization": f"Bearer {self.tokens[name]}"})

    def as_task(self, key: attempts.TaskKey) -> httpx.AsyncClient:
        token = tasktokens.derive(SECRET, key)
        return self.client({"Authorization": f"Bearer {token}", "Oarlock-Task": str(key)})

    async def submit(self, who: str = "ann", snapshot: str | None = None, **spec: Any) -> jobs.Job:
        body = {"spec": {"command": "true", **spec}, "snapshot": snapshot}
        async with self.as_user(who) as http:
            answer = await http.post("/api/v1/jobs", json=body)
        assert answer.status_code == 201, answer.text
        return msgspec.json.decode(answer.content, type=jobs.Job)

    async def happen(self, job_id: str, *happened: events.AnyEvent) -> jobs.Job:
        """Write as controllers would."""

        def change(tx: Any) -> jobs.Job:
            job = tx.job(job_id)
            for event in happened:
                job = stepping.step(job, event, self.clock())
            return tx.put_job(job, happened, at=self.clock())

        return await self.store.write(change)

    async def launch(self, job: jobs.Job) -> jobs.Job:
        """Attempt 1 (or the next one) as the scheduler and the guardian would begin it."""
        number = len(job.attempts) + 1
        claims = tuple(
            holdings.Holding(
                job=job.id,
                attempt=number,
                role=role,
                index=index,
                node="here",
                amount=holdings.Resources(1000, 0, 0),
                ports=(20000 + 4 * index, 20001 + 4 * index),
            )
            for role, wanted in job.spec.roles.items()
            for index in range(wanted.count)
        )
        await self.happen(job.id, events.Admitted(attempt=number, holdings=claims))
        return await self.happen(job.id, events.Launched(attempt=number))

    async def end(self, job_id: str, code: int = 0, last_lines: tuple[str, ...] = ()) -> jobs.Job:
        """Every task exits, and the attempt is released."""
        job = await self.store.read(lambda view: view.job(job_id))
        assert job is not None
        assert job.live is not None
        number = job.live.number
        cause = attempts.Cause.ERROR if code else attempts.Cause.SUCCEEDED
        places = [{"key": task.key(job_id, number)} for task in job.live.tasks]
        for where in places:
            await self.happen(job_id, events.TaskRegistered(**where, address="127.0.0.1"))
        for where in places:
            await self.happen(job_id, events.TaskReported(**where, phase="PROCESSING"))
        for where in places:
            ended = attempts.Exit(code=code, cause=cause, at=self.clock(), last_lines=last_lines)
            await self.happen(job_id, events.TaskExited(**where, exit=ended), events.TaskGone(**where))
        self.clock.now += 5
        message, task = ("worker-0 failed", "worker-0") if code else ("", "")
        await self.happen(job_id, events.StopDecided(attempt=number, cause=cause, message=message, task=task))
        return await self.happen(job_id, events.Released(attempt=number))

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """The application's lifespan, which httpx leaves out."""
        import asyncio

        following = asyncio.create_task(self.wakes.follow())
        try:
            await asyncio.sleep(0)
            yield
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
            await self.services.inbox.drain()
            self.logs.close()
            self.checkpoints.close()
            await self.store.close()

    def take_time(self, patch: pytest.MonkeyPatch) -> None:
        """Let forecasts take as long as they need, so that a slow machine computes the same ones."""
        patch.setattr(self.services.forecaster, "_monotonic", lambda: 0.0)
        patch.setattr(forecaster, "PATIENCE_S", 240.0)

    async def _exec(
        self, key: attempts.TaskKey, command: Sequence[str], *, tty: bool = False, rows: int = 24, columns: int = 80
    ) -> Echo:
        if command[0] == "nowhere":
            raise errors.Conflict("The task does not run.", hint="Start it.")
        self.executed.append(Echo(command, key))
        return self.executed[-1]

    async def _health(self) -> dict[str, str]:
        return self.problems

    async def _examine(self) -> bodies.Programs | None:
        return self.programs

    def _shutdown(self) -> None:
        self.shutdowns += 1

    def _entropy(self, count: int) -> bytes:
        """Chance that is the same in every run."""
        self._drawn = getattr(self, "_drawn", 0) + 1
        return hashlib.sha256(str(self._drawn).encode()).digest()[:count]


def key_of(job: jobs.Job, index: int = 0, role: str = "worker") -> attempts.TaskKey:
    live = job.live
    assert live is not None
    task = live.task(role, index)
    assert task is not None
    return task.key(job.id, live.number)


def submission(**spec: Any) -> dict[str, Any]:
    return msgspec.to_builtins(jobfile.Submission(spec=msgspec.convert({"command": "true", **spec}, jobfile.JobSpec)))
