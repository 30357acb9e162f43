"""News for open pages: one stream for each browser, which says that something has changed and never what.

A page that hears of news fetches itself again. A lost message costs time, never correctness. The stream asks the API
again every second, with the browser's session, so it ends within a second of that session.
"""

from __future__ import annotations

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
    quiet_s = total_s = 0.0
    yield b"event: open\ndata:\n\n"
    try:
        while total_s < MOST_S:
            page = await visit.client.news(after=seen, wait_s=WAIT_S)
            total_s, seen = total_s + WAIT_S, page.next
            quiet_s = 0.0 if page.items else quiet_s + WAIT_S
            if page.items:
                yield b"event: changed\ndata: %d\n\n" % seen
            elif quiet_s >= BEAT_S:
                quiet_s = 0.0
                yield b": beat\n\n"
    except errors.Unauthenticated:
        yield b"event: ended\ndata:\n\n"
    except errors.OarlockError:
        return  # the browser opens a new one
    finally:
        await visit.close()


PAGES: tuple[routing.Page, ...] = (routing.Page(path="/live", handler=follow, stream=True),)
