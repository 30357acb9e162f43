"""Updates: the answers to open pages that fetch their content again.

An update is nothing but 304 where the content has stayed the same: the page sends the mark of the content that it has,
and the mark is a digest of the content, so it cannot be out of date. `Oarlock-Seq` is the last event that the content
has; in a request it is the last one that the page was told of. `Oarlock-Now` is the time on the server's clock. The
content has no words for durations that go on: the page writes them (`rendering.times`).

Equal readers share an update. Pages of one user do, and pages of all administrators where the address
names no job, or names it by its id. An update is shared only with requests for events that it has: it was begun after
they were committed.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from starlette import responses

from oarlock.web.access import visits
from oarlock.web.rendering import compressing, drawing
from oarlock.web.updates import readers

KEPT_S = 0.5
"""Seconds for which an update is shared: facts that no event tells, such as a job's progress, are at most so old."""

Key = tuple[str, str]


class Made(NamedTuple):
    """A page's answer, whether equal readers may share it, and the topics that it shows.

    `period_s` are the seconds after which its content may have changed without an event, 0 if it does not.
    """

    response: responses.Response
    shared: bool
    topics: frozenset[str]
    period_s: float = 0.0


Making = Callable[[], Awaitable[Made]]


class Update:
    """A content with its mark and its last event. It is compressed for the first page that takes it so."""

    def __init__(self, made: Made, seq: int, thread: drawing.Thread) -> None:
        self.topics, self.period_s = made.topics, made.period_s
        self._content = content = bytes(made.response.body)
        self.mark = f'"{hashlib.blake2b(content, digest_size=12).hexdigest()}"'
        self._seq = seq
        self._thread = thread
        self._packed: asyncio.Future[bytes] | None = None

    async def answer(self, visit: visits.Visit) -> responses.Response:
        """Return the answer to one page, without a body if the page has this content."""
        headers = {"etag": self.mark, visits.SEQ: str(self._seq), visits.NOW: f"{visit.server.now:.1f}"}
        if visit.headers.get("if-none-match") == self.mark:
            return responses.Response(status_code=304, headers=headers)
        if not compressing.taken(visit.headers.get("accept-encoding", "")):
            return responses.HTMLResponse(self._content, headers=headers)
        headers["content-encoding"] = "gzip"
        return responses.HTMLResponse(await self.packed(), headers=headers)

    async def packed(self) -> bytes:
        """Return the content, compressed."""
        if self._packed is None:
            self._packed = asyncio.ensure_future(self._thread(compressing.packed, self._content))
        return await asyncio.shield(self._packed)


class _Making:
    def __init__(self, seq: int) -> None:
        self.seq = seq
        self.began = time.monotonic()
        self.update: asyncio.Future[Update] = asyncio.get_running_loop().create_future()


class Updates:
    """The updates of the last moment, which equal readers share."""

    def __init__(self, thread: drawing.Thread) -> None:
        self._thread = thread
        self._making: dict[Key, _Making] = {}

    async def find(self, visit: visits.Visit, make: Making) -> tuple[responses.Response, Update | None]:
        """Return the answer to an open page, from a shared update or a new one, and the update if it may be shared.
        `make` tells whether it may be.
        """
        key = readers.of_page(visit.server, visit.parameters), visit.address
        making = self._making.get(key)
        wanted = visit.told  # a page that asks for another reason gets an update of its own
        known = making is not None and wanted is not None and making.seq >= wanted
        if making is not None and known and time.monotonic() - making.began < KEPT_S:
            await asyncio.wait((making.update,))
            if not making.update.cancelled():
                update = making.update.result()
                return await update.answer(visit), update
        self._forget()
        making = self._making[key] = _Making(visit.server.seq)
        try:
            made = await make()
            if made.response.status_code != 200:
                return made.response, None
            update = Update(made, making.seq, self._thread)
            if made.shared:
                making.update.set_result(update)
            return await update.answer(visit), update if made.shared else None
        finally:
            if not making.update.done():
                making.update.cancel()  # the others that wait make their own
                if self._making.get(key) is making:
                    del self._making[key]

    def _forget(self) -> None:
        now = time.monotonic()
        for key in [key for key, one in self._making.items() if one.update.done() and now - one.began >= KEPT_S]:
            del self._making[key]
