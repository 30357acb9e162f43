"""A server that listens: the API's rig behind uvicorn on a thread of its own, for tests that need a real socket.

`home` gets `server.json` and `token` as a local server leaves them. What the backend would do is told with `play`: log
lines, phases and ends arrive as an agent would bring them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import threading
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import uvicorn
from tests.api import rig as rigs

from oarlock.api.process import connections
from oarlock.spec import attempts, events, jobs, phases, refusals
from oarlock.store import stores

T = TypeVar("T")


class Quiet(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Any:
        yield


class LiveServer:
    """`with LiveServer(home) as server`. `stop` and `start` again keep the stored jobs, and the port where wanted."""

    def __init__(self, home: Path, user: str = "root") -> None:
        self.home = home
        self.user = user
        self.rig: rigs.Rig
        self.loop: asyncio.AbstractEventLoop
        self._ready = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.url = ""

    def __enter__(self) -> LiveServer:
        self._thread.start()
        assert self._ready.wait(240)
        if self._failure is not None:
            raise self._failure
        return self

    def __exit__(self, *_: object) -> None:
        self.loop.call_soon_threadsafe(self._ending.set)
        self._thread.join(240)
        assert not self._thread.is_alive()

    @property
    def token(self) -> str:
        return self.rig.tokens[self.user]

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(240)

    def stop(self) -> None:
        """No socket listens any more, and those that were open are cut; the state stays."""
        self.do(self._close())

    def start(self, port: int = 0) -> None:
        self.do(self._open(port))

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    # Acts of the rest of the system

    def job(self, job_id: str) -> jobs.Job:
        found = self.do(self.rig.store.read(lambda view: view.job(job_id)))
        assert found is not None
        return found

    def jobs(self) -> list[jobs.Job]:
        """Newest first."""
        return self.do(self.rig.store.read(lambda view: view.jobs(stores.JobFilter())))

    def submit(self, **spec: Any) -> jobs.Job:
        return self.do(self.rig.submit(self.user, **spec))

    def launch(self, job_id: str) -> jobs.Job:
        return self.do(self.rig.launch(self.job(job_id)))

    def process(self, job_id: str) -> jobs.Job:
        """Every task has registered and runs."""
        job = self.job(job_id)
        assert job.live is not None
        for task in job.live.tasks:
            where = self._where(job, task)
            self.do(self.rig.happen(job_id, events.TaskRegistered(**where, address="127.0.0.1")))
        for task in job.live.tasks:
            where = self._where(job, task)
            job = self.do(self.rig.happen(job_id, events.TaskReported(**where, phase=phases.TaskPhase.PROCESSING)))
        return job

    def progress(self, job_id: str, **facts: Any) -> jobs.Job:
        job = self.job(job_id)
        assert job.live is not None
        told = attempts.Progress(at=self.rig.clock(), **facts)
        where = self._where(job, job.live.tasks[0])
        return self.do(self.rig.happen(job_id, events.TaskReported(**where, progress=told)))

    def print(
        self, job_id: str, text: bytes | str, *, index: int = 0, role: str = "worker", stream: str = "stdout.0"
    ) -> None:
        job = self.job(job_id)
        key = rigs.key_of(job, index, role)
        raw = text.encode() if isinstance(text, str) else text
        self.do(self._append(key, stream, raw))

    def end(self, job_id: str, code: int = 0, last_lines: tuple[str, ...] = ()) -> jobs.Job:
        job = self.do(self.rig.end(job_id, code, last_lines))
        self.loop.call_soon_threadsafe(self.rig.wakes.touched, job_id)
        return job

    def refuse(self, job_id: str, message: str) -> jobs.Job:
        told = refusals.Refusal(code=refusals.Code.NO_CAPACITY, message=message)
        return self.do(self.rig.happen(job_id, events.Refused(refusal=told)))

    def release(self, job_id: str) -> jobs.Job:
        """Do the guardian's work for a job that is to be stopped: every task ends by our signal, and is gone."""
        job = self.job(job_id)
        assert job.live is not None
        for task in job.live.tasks:
            where = self._where(job, task)
            ended = attempts.Exit(code=143, cause=attempts.Cause.STOPPED, at=self.rig.clock(), reason="stopped")
            self.do(self.rig.happen(job_id, events.TaskExited(**where, exit=ended), events.TaskGone(**where)))
        job = self.do(self.rig.happen(job_id, events.Released(attempt=job.live.number)))
        self.loop.call_soon_threadsafe(self.rig.wakes.touched, job_id)
        return job

    async def _append(self, key: attempts.TaskKey, stream: str, raw: bytes) -> None:
        offset = await self.rig.logs.length(key, stream)
        await self.rig.logs.append(key, stream, offset, raw, at=self.rig.clock())

    @staticmethod
    def _where(job: jobs.Job, task: attempts.Task) -> dict[str, Any]:
        assert job.live is not None
        return {"key": task.key(job.id, job.live.number)}

    # The thread

    def _run(self) -> None:
        try:
            asyncio.run(self._main())
        except BaseException as error:  # noqa: BLE001 - told to the waiting thread
            self._failure = error
            self._ready.set()

    async def _main(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._ending = asyncio.Event()
        self.rig = rigs.Rig(self.home / "server")
        async with self.rig.running():
            await self.rig.prepare()
            async with self._listening():
                self._ready.set()
                await self._ending.wait()

    @contextlib.asynccontextmanager
    async def _listening(self) -> AsyncIterator[None]:
        await self._open(0)
        try:
            yield
        finally:
            await self._close()

    async def _open(self, port: int) -> None:
        sock = socket.create_server(("127.0.0.1", port))
        config = uvicorn.Config(
            self.rig.app, log_config=None, lifespan="off", ws=connections.WebSocketProtocol, timeout_graceful_shutdown=0
        )
        self._server = Quiet(config)
        self._serving = asyncio.create_task(self._server.serve(sockets=[sock]))
        self._socket = sock
        while not self._server.started:  # noqa: ASYNC110 - uvicorn has no event for it
            await asyncio.sleep(0.005)
        self.url = f"http://127.0.0.1:{sock.getsockname()[1]}"
        self.home.mkdir(parents=True, exist_ok=True)
        (self.home / "token").write_text(self.token + "\n")
        (self.home / "token").chmod(0o600)
        told = {"url": self.url, "pid": os.getpid(), "version": "0", "started_at": self.rig.clock()}
        (self.home / "server.json").write_bytes(msgspec.json.encode(told))

    async def _close(self) -> None:
        if self._serving.done():
            return
        self._server.should_exit = True
        self._server.force_exit = True
        await self._serving
        self._socket.close()
