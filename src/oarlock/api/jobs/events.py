"""The lines of the event log that the user may see: as pages, as a long poll, and as server-sent events."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Annotated

import msgspec
from starlette import responses

from oarlock.api import routes
from oarlock.api.security import authorisation
from oarlock.spec import bodies, errors, events

MAX_PAGE = 1000
MAX_KINDS = 20
MAX_WAIT_S = 60.0
GATHER_S = 0.25
"""Seconds between two searches of a long poll that finds only lines of other users."""
_BEAT_S = 15.0

Seq = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
Kind = Annotated[str, msgspec.Meta(min_length=1, max_length=40)]


class JobEventsQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    after: Seq = 0
    kind: tuple[Kind, ...] = ()
    limit: Annotated[int, msgspec.Meta(ge=1, le=MAX_PAGE)] = MAX_PAGE


class EventsQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    after: Seq = 0
    wait: Annotated[float, msgspec.Meta(ge=0, le=MAX_WAIT_S)] = 0.0


class WatchQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    after: Seq | None = None


async def of_job(call: routes.Call) -> bodies.RecordPage:
    query = call.query(JobEventsQuery)
    if len(query.kind) > MAX_KINDS:
        raise errors.InvalidInput("These are too many kinds.", path="kind", hint=f"Name at most {MAX_KINDS} at once.")
    job = await call.access.job(call.path["job"])
    found = await call.access.records(query.after, query.limit, job_id=job.id, kinds=query.kind)
    return bodies.RecordPage(tuple(found.items), found.seen)


async def of_all(call: routes.Call) -> bodies.RecordPage:
    query = call.query(EventsQuery)
    after = query.after
    until = time.monotonic() + query.wait
    with call.services.wakes.listening() as ear:
        while True:
            found = await call.access.records(after, MAX_PAGE)
            left = until - time.monotonic()
            if found.items or left <= 0 or call.services.wakes.closed:
                return bodies.RecordPage(tuple(found.items), found.seen)
            if found.seen == after:
                if not await ear.wait(left):
                    return bodies.RecordPage((), after)
            else:
                await asyncio.sleep(min(left, GATHER_S))
            after = found.seen


async def watch(call: routes.Call) -> responses.StreamingResponse:
    after = call.query(WatchQuery).after
    last = call.headers.get("last-event-id", "")  # a browser that reconnects tells its last line
    if last.isascii() and last.isdigit() and len(last) < 16:
        after = int(last)
    if after is None:
        after = await call.access.shared(lambda view: view.last_seq())
    first = await call.access.records(after, MAX_PAGE)  # an error here is still an answer, not an event
    return responses.StreamingResponse(_events(call, first), media_type="text/event-stream")


async def _events(call: routes.Call, found: authorisation.Records) -> AsyncIterator[bytes]:
    services, encoder = call.services, msgspec.json.Encoder()
    yield b": oarlock\n\n"
    with services.wakes.listening() as ear:
        while not services.wakes.closed:
            if found.items:
                yield b"".join(
                    b"id: %d\nevent: %b\ndata: %b\n\n" % (item.seq, item.kind.encode(), encoder.encode(item))
                    for item in found.items
                )
            seen = found.seen
            try:
                found = await call.access.records(seen, MAX_PAGE)
            except errors.Gone:
                yield b"event: gone\ndata: {}\n\n"
                return
            if found.seen == seen and not found.items:
                await ear.wait(_BEAT_S)
                yield b": beat\n\n"


ROUTES: tuple[routes.Route, ...] = (
    routes.look(
        "/api/v1/jobs/{job}/events",
        of_job,
        "the job's lines of the event log, or those of some kinds",
        bodies.RecordPage,
        query=JobEventsQuery,
    ),
    routes.look(
        "/api/v1/events",
        of_all,
        "the event log of all jobs that the user may see; `wait` is the seconds to wait for a new line",
        bodies.RecordPage,
        query=EventsQuery,
        long=True,
    ),
    routes.look(
        "/api/v1/watch",
        watch,
        "the event log as server-sent events",
        events.Record,
        query=WatchQuery,
        media="text/event-stream",
        headers=("Last-Event-ID",),
        long=True,
    ),
)
