"""Log lines of a job, stored ones and new ones, each as one JSON object on a line.

A slow reader delays only itself: the server reads the next line after the reader took the last one. It notices at the
next line that a reader has left. With `follow` the stream ends when the job has ended and all lines are sent.
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
from oarlock.spec import bodies, errors, jobs, phases, roles, tasklogs

MAX_TAIL = 1_000_000
CHUNK_BYTES = 64 * 1024
QUEUED_LINES = 1000
QUEUED_BLOCKS = 16
_LOOK_S = 30.0


class Choice(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A choice of the lines of a job."""

    attempt: Annotated[int, msgspec.Meta(ge=1, le=2**31)] | None = None
    role: roles.RoleName | None = None
    index: Annotated[int, msgspec.Meta(ge=0, le=2**31)] | None = None
    stream: Annotated[str, msgspec.Meta(max_length=50)] | None = None  # stderr, or stderr.0 for one process
    since: Annotated[float, msgspec.Meta(ge=0, le=1e12)] | None = None
    until: Annotated[float, msgspec.Meta(ge=0, le=1e12)] | None = None

    def asked(self, job: str) -> storage.LogQuery:
        return storage.LogQuery(
            job=job,
            attempt=self.attempt,
            role=self.role,
            index=self.index,
            stream=self.stream,
            since=self.since,
            until=self.until,
        )


class LogsQuery(Choice, frozen=True, forbid_unknown_fields=True, kw_only=True):
    tail: Annotated[int, msgspec.Meta(ge=0, le=MAX_TAIL)] | None = None
    follow: bool = False
    blocks: bool = False  # whole lines as bytes behind a `BlockHead`


class BlockHead(msgspec.Struct, frozen=True, kw_only=True):
    """The head of several whole lines, whose `size` bytes follow its newline. `last` is the last line's offset."""

    task: str
    attempt: int
    incarnation: int
    stream: str
    offset: int
    at: float
    last: int
    size: int


async def stream(call: routes.Call) -> responses.StreamingResponse:
    query = call.query(LogsQuery)
    job = await call.access.job(call.path["job"])
    check(job, query, follow=query.follow)
    blocks = query.blocks and query.tail is None
    asked = msgspec.structs.replace(query.asked(job.id), tail=query.tail, blocks=blocks)
    lines = _follow(call, job.id, asked) if query.follow else _read(call.services, asked)
    return responses.StreamingResponse(lines, media_type="application/x-ndjson")


def check(job: jobs.Job, query: Choice, *, follow: bool = False) -> None:
    """Raise NotFound for a task or an attempt that the job cannot have."""
    known = job.spec.roles
    if query.role is not None and query.role not in known:
        raise errors.NotFound(
            f"{job.name} has no role {query.role}.", hint=f"Its roles are {' and '.join(sorted(known))}."
        )
    tasks = {role: known[role].max or known[role].count for role in known if query.role in (None, role)}
    if query.index is not None and query.index >= max(tasks.values(), default=0):
        there = " and ".join(
            (f"{role}-0 to {role}-{count - 1}" if count > 1 else f"{role}-0") for role, count in sorted(tasks.items())
        )
        asked = f"{query.role}-{query.index}" if query.role is not None else f"with the index {query.index}"
        raise errors.NotFound(f"{job.name} has no task {asked}.", hint=f"Its tasks are {there}.")
    last = job.attempt.number if job.attempt is not None else 0
    if query.attempt is not None and query.attempt > last and (job.terminal or not follow):
        raise errors.NotFound(
            f"{job.name} has no attempt {query.attempt}.", hint=f"Its last attempt is {last or 'none'}."
        )


async def _read(services: provided.Services, query: storage.LogQuery) -> AsyncIterator[bytes]:
    """Yield the stored lines, many in one chunk."""
    parts, size = list[bytes](), 0
    async for line in services.logs.read(query):
        parts.append(encoded(line))
        size += len(parts[-1])
        if size >= CHUNK_BYTES:
            yield b"".join(parts)
            parts, size = [], 0
    if parts:
        yield b"".join(parts)


async def _follow(call: routes.Call, job_id: str, query: storage.LogQuery) -> AsyncIterator[bytes]:
    """Yield lines until the job has ended and all are sent. Lines that arrive together are sent together."""
    services, until = call.services, asyncio.Event()
    ending = asyncio.create_task(_ended(services, job_id, until))
    queue: asyncio.Queue[tasklogs.Line | errors.OarlockError | None] = asyncio.Queue(
        maxsize=QUEUED_BLOCKS if query.blocks else QUEUED_LINES
    )
    reading = asyncio.create_task(_feed(services.logs.follow(query, until=until), queue))
    try:
        item = await queue.get()
        while isinstance(item, tasklogs.Line):
            parts, size = list[bytes](), 0
            while isinstance(item, tasklogs.Line):
                parts.append(encoded(item))
                size += len(parts[-1])
                if size >= CHUNK_BYTES or queue.empty():
                    break
                item = queue.get_nowait()
            yield b"".join(parts)
            if isinstance(item, tasklogs.Line):
                item = await queue.get()
        if isinstance(item, errors.OarlockError):  # too late for a status, so the last line tells it
            yield failures.body(item) + b"\n"
        elif ending.done() and (job := ending.result()) is not None:
            yield msgspec.json.encode(bodies.End(bodies.Ended(job.phase, job.exit_code))) + b"\n"
    finally:
        for task in (ending, reading):
            task.cancel()
        await asyncio.gather(ending, reading, return_exceptions=True)


def encoded(line: tasklogs.Line) -> bytes:
    """Return the line as JSON, or the head of a block, and behind it the bytes as they are."""
    if not isinstance(line, tasklogs.Lines):
        return msgspec.json.encode(line) + b"\n"
    head = BlockHead(
        task=line.task,
        attempt=line.attempt,
        incarnation=line.incarnation,
        stream=line.stream,
        offset=line.offset,
        at=line.at,
        last=line.last,
        size=len(line.data),
    )
    return b"%b\n%b" % (msgspec.json.encode(head), line.data)


async def _feed(
    lines: AsyncIterator[tasklogs.Line], queue: asyncio.Queue[tasklogs.Line | errors.OarlockError | None]
) -> None:
    """Put the lines into the queue, then None or the error that ended them."""
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
    """Wait until the job no longer runs, then set `until`. Return the job, None where it was removed meanwhile."""
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
    routes.look(
        "/api/v1/jobs/{job}/logs",
        stream,
        "log lines, one JSON object a line; with follow=true until the job has ended",
        tasklogs.Line,
        query=LogsQuery,
        media="application/x-ndjson",
        long=True,
    ),
)
