"""News for open pages: one stream for each browser, which names the topics that have changed and never their content.

A page that shows such a topic fetches itself again. A lost message costs time, never correctness: each message says
which events it covers, so a page finds the gap. The stream ends within a second of its session.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

import msgspec
from starlette import responses

from oarlock.web import routing
from oarlock.web.access import visits
from oarlock.web.updates import feeds

BEAT_S = 15.0
BEAT = b"event: beat\ndata: {}\n\n"
"""An event and no comment: a page that hears neither news nor beats opens another stream."""
MOST_S = 3600.0
"""A stream ends after so long; the browser opens a new one."""


async def follow(visit: visits.Visit) -> responses.StreamingResponse:
    await visit.close()  # the session's reader has a client of its own
    return responses.StreamingResponse(_events(visit), media_type="text/event-stream")


async def _events(visit: visits.Visit) -> AsyncIterator[bytes]:
    until = time.monotonic() + MOST_S
    try:
        async with visit.news() as ear:
            yield b'event: open\ndata: {"seq":%d}\n\n' % ear.seq
            while time.monotonic() < until:
                news = await ear.next(BEAT_S)
                yield BEAT if news is None else b"event: changed\ndata: %b\n\n" % msgspec.json.encode(news)
    except feeds.Ended as ended:
        if ended.session:
            yield b"event: ended\ndata:\n\n"


async def leave(visit: visits.Visit) -> responses.Response:
    visit.note_left()
    return responses.Response(status_code=204)


PAGES: tuple[routing.Page, ...] = (
    routing.Page(path=visits.STREAM, handler=follow, stream=True),
    routing.Page(path=visits.LEFT, handler=leave, method="POST", script=True),
)
