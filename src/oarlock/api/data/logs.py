"""A job's log lines, as they are stored and as they come, one JSON object a line.

A reader that is slow holds up nothing but itself: the next line is read when the one before was taken. One that leaves
is noticed at the next line. With `follow` the stream ends when the job has ended and all of its lines were sent.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Annotated

import msgspec
from starlette import responses

from oarlock.api import failures, routes
from oarlock.api.services import provided
from oarlock.data import storage
from oarlock.spec import bodies, errors, jobs, phases, roles, users

MAX_TAIL = 1_000_000
CHUNK_BYTES = 64 * 1024
QUEUED_LINES = 1000
QUEUED_BLOCKS = 16
_LOOK_S = 30.0


class LogsQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    attempt: Annotated[int, msgspec.Meta(ge=1, le=2**31)] | None = None
    role: roles.RoleName | None = None
    index: Annotated[int, msgspec.Meta(ge=0, le=2**31)] | None = None
    tail: Annotated[int, msgspec.Meta(ge=0, le=MAX_TAIL)] | None = None
    since: Annotated[float, msgspec.Meta(ge=0, le=1e12)] | None = None
    follow: bool = False
    blocks: bool = False  # lines that arrived together come together: `text` joins them, `last` is the last's offset


async def stream(call: routes.Call) -> responses.StreamingResponse:
    query = call.query(LogsQuery)
    job = await call.access.job(call.path["job"])
    _check(job, query)
    asked = storage.LogQuery(
        job=job.id,
        attempt=query.attempt,
        role=query.role,
        index=query.index,
        tail=query.tail,
        since=query.since,
        blocks=query.blocks and query.tail is None,
    )
    lines = _follow(call.services, job.id, asked) if query.follow else _read(call.services, asked)
    return responses.StreamingResponse(lines, media_type="application/x-ndjson")


def _check(job: jobs.Job, query: LogsQuery) -> None:
    """Raises NotFound for a task or an attempt of which there can be no line."""
    known = job.spec.roles
    if query.role is not None and query.role not in known:
        raise errors.NotFound(f"{job.name} has no {query.role}.", hint=f"It has {' and '.join(sorted(known))}.")
    tasks = {role: known[role].max or known[role].count for role in known if query.role in (None, role)}
    if query.index is not None and query.index >= max(tasks.values(), default=0):
        there = " and ".join(
            (f"{role}-0 to {role}-{count - 1}" if count > 1 else f"{role}-0") for role, count in sorted(tasks.items())
        )
        asked = f"{query.role}-{query.index}" if query.role is not None else f"of the index {query.index}"
        raise errors.NotFound(f"There is no task {asked}.", hint=f"It has {there}.")
    last = job.attempt.number if job.attempt is not None else 0
    if query.attempt is not None and query.attempt > last and (job.terminal or not query.follow):
        raise errors.NotFound(
            f"There is no attempt {query.attempt}.", hint=f"{job.name} has had {last or 'none'} so far."
        )


async def _read(services: provided.Services, query: storage.LogQuery) -> AsyncIterator[bytes]:
    """What is stored now, in chunks of many lines."""
    encoder = msgspec.json.Encoder()
    buffer = bytearray()
    async for line in services.logs.read(query):
        buffer += encoder.encode(line)
        buffer += b"\n"
        if len(buffer) >= CHUNK_BYTES:
            yield bytes(buffer)
            buffer.clear()
    if buffer:
        yield bytes(buffer)


async def _follow(services: provided.Services, job_id: str, query: storage.LogQuery) -> AsyncIterator[bytes]:
    """Until the job has ended and everything was sent. Lines that come together are sent together."""
    encoder = msgspec.json.Encoder()
    until = asyncio.Event()
    ending = asyncio.create_task(_ended(services, job_id, until))
    queue: asyncio.Queue[storage.Line | errors.OarlockError | None] = asyncio.Queue(
        maxsize=QUEUED_BLOCKS if query.blocks else QUEUED_LINES
    )
    reading = asyncio.create_task(_feed(services.logs.follow(query, until=until), queue))
    try:
        item = await queue.get()
        while isinstance(item, storage.Line):
            chunk = bytearray()
            while isinstance(item, storage.Line):
                chunk += encoder.encode(item)
                chunk += b"\n"
                if len(chunk) >= CHUNK_BYTES or queue.empty():
                    break
                item = queue.get_nowait()
            yield bytes(chunk)
            if isinstance(item, storage.Line):
                item = await queue.get()
        if isinstance(item, errors.OarlockError):  # too late for a status: the last line says it
            yield failures.body(item) + b"\n"
        elif ending.done() and (job := ending.result()) is not None:
            yield encoder.encode(bodies.End(bodies.Ended(job.phase, job.exit_code))) + b"\n"
    finally:
        for task in (ending, reading):
            task.cancel()
        await asyncio.gather(ending, reading, return_exceptions=True)


async def _feed(
    lines: AsyncIterator[storage.Line], queue: asyncio.Queue[storage.Line | errors.OarlockError | None]
) -> None:
    """Lines into the queue, and how they ended: None, or an error."""
    end: errors.OarlockError | None = failures.unforeseen()
    try:
        async with contextlib.aclosing(lines) as opened:  # type: ignore[type-var]
            async for line in opened:
                await queue.put(line)
        end = None
    except errors.OarlockError as error:
        end = error
    except asyncio.CancelledError:  # the reader has left
        raise
    except Exception:
        await queue.put(end)
        raise
    await queue.put(end)


async def _ended(services: provided.Services, job_id: str, until: asyncio.Event) -> jobs.Job | None:
    """Wait until nothing of the job runs any more, then set `until`. The job; None when it is forgotten meanwhile."""
    try:
        with services.wakes.listening(job_id) as ear:
            while True:
                job = await services.wakes.job(job_id)
                if job is None or job.terminal or (job.phase is phases.Phase.HALTED and job.live is None):
                    return job
                if services.wakes.closed:
                    return None
                await ear.wait(_LOOK_S)
    finally:
        until.set()


ROUTES: tuple[routes.Route, ...] = (
    routes.Route(
        method="GET",
        path="/api/v1/jobs/{job}/logs",
        handler=stream,
        needs=users.Right.VIEWER,
        summary="log lines, one JSON object a line; with follow=true until the job has ended",
        query=LogsQuery,
        answer=storage.Line,
        media="application/x-ndjson",
        long=True,
    ),
)
