"""News for open pages: one stream for each browser, which says that something has changed and never what.

A page that hears of news fetches itself again. A lost message costs time, never correctness. The stream asks the API
again every second, with the browser's session, so it ends within a second of that session.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

from starlette import responses

from oarlock.spec import errors
from oarlock.web import routing, visits

WAIT_S = 1.0
BEAT_S = 15.0
MOST_S = 3600.0
"""A stream ends after so long; the browser opens a new one."""


async def follow(visit: visits.Visit) -> responses.StreamingResponse:
    return responses.StreamingResponse(_events(visit, visit.server.seq), media_type="text/event-stream")


async def _events(visit: visits.Visit, seen: int) -> AsyncIterator[bytes]:
    began = heard = time.monotonic()
    yield b"event: open\ndata:\n\n"
    try:
        while (asked := time.monotonic()) - began < MOST_S:
            page = await visit.client.news(after=seen, wait_s=WAIT_S)
            seen, now = page.next, time.monotonic()
            if page.items:
                heard = now
                yield b"event: changed\ndata: %d\n\n" % seen
            elif now - asked < WAIT_S / 2:
                return  # an answer without a wait: the server ends
            elif now - heard >= BEAT_S:
                heard = now
                yield b": beat\n\n"
    except errors.Unauthenticated:
        yield b"event: ended\ndata:\n\n"
    except errors.OarlockError:
        return  # the browser opens a new one
    finally:
        await visit.close()


PAGES: tuple[routing.Page, ...] = (routing.Page(path="/live", handler=follow, stream=True),)
