"""One reader of the event log for each session, which all open streams of that session share.

A reader asks the API with its session, so it sees what the session's user may see, and ends within a second of the
session. It gathers the lines of half a second into one message, however many pages are open. A message names the events
that it covers, from `after` to `seq`; a page that finds a gap between two messages fetches itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

import msgspec

from oarlock.client.asynchronous import clients
from oarlock.spec import errors
from oarlock.web.updates import topics

WAIT_S = 0.9
"""Seconds that the API waits for a line. After the end of the session it tells none, and says so within this time."""
PAUSE_S = 0.5
"""Seconds between two looks while there are events."""


class News(msgspec.Struct, frozen=True, omit_defaults=True):
    """The topics that the events after `after`, up to `seq`, may have changed.

    `marks` has the mark of the content, as of `seq`, of open pages that show one of them, by their names.
    """

    after: int
    seq: int
    topics: frozenset[str]
    marks: Mapping[str, str] = {}


Marks = Callable[[str, News], Awaitable[Mapping[str, str]]]
"""Returns the marks for news of a session."""


class Ended(Exception):
    """The reader has ended: with its session if `session`, else with the server or a failure."""

    def __init__(self, *, session: bool) -> None:
        super().__init__("the news have ended")
        self.session = session


class Feeds:
    """The readers of all sessions."""

    def __init__(self, marks: Marks) -> None:
        self._marks = marks
        self._feeds: dict[str, _Feed] = {}
        self._closing: set[asyncio.Task[None]] = set()

    @contextlib.asynccontextmanager
    async def listening(self, secret: str, connect: Callable[[], clients.AsyncClient], seq: int) -> AsyncIterator[Ear]:
        """Yield an ear for the news of a session after `seq`. The last ear that leaves ends the session's reader."""
        feed = self._feeds.get(secret)
        if feed is None or feed.ended is not None:
            feed = self._feeds[secret] = _Feed(connect(), seq, lambda news: self._marks(secret, news))
        ear = Ear(feed)
        feed.ears.add(ear)
        try:
            yield ear
        finally:
            feed.ears.discard(ear)
            if not feed.ears:
                if self._feeds.get(secret) is feed:
                    del self._feeds[secret]
                # In a task of its own: the server cancels every further await of a stream whose browser has left.
                closing = asyncio.create_task(feed.close())
                self._closing.add(closing)
                closing.add_done_callback(self._closing.discard)


class Ear:
    """A listener. News that it has not taken yet become one piece of news, so a slow one costs no memory."""

    def __init__(self, feed: _Feed) -> None:
        self._feed = feed
        self._waiting = asyncio.Event()
        self._news: News | None = None
        self.seq = feed.seq
        """The last event before the first news."""

    async def next(self, timeout_s: float) -> News | None:
        """Return the next news, None after the time-out. Raises Ended."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._waiting.wait(), timeout_s)
        self._waiting.clear()
        news, self._news = self._news, None
        if news is None and self._feed.ended is not None:
            raise self._feed.ended
        return news

    def tell(self, news: News | None) -> None:
        if news is not None and self._news is not None:
            news = News(self._news.after, news.seq, self._news.topics | news.topics, news.marks)
        self._news = news or self._news
        self._waiting.set()


class _Feed:
    def __init__(
        self, client: clients.AsyncClient, seq: int, marks: Callable[[News], Awaitable[Mapping[str, str]]]
    ) -> None:
        self._marks = marks
        self.seq = seq
        self.ears: set[Ear] = set()
        self.ended: Ended | None = None
        self._client = client
        self._task = asyncio.create_task(self._read())

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self._client.close()

    async def _read(self) -> None:
        ended = Ended(session=False)
        try:
            await self._follow()
        except errors.Unauthenticated:
            ended = Ended(session=True)
        except errors.OarlockError:
            pass  # the browsers open new streams
        finally:
            self.ended = ended
            self._tell(None)

    async def _follow(self) -> None:
        while True:
            asked = time.monotonic()
            page = await self._client.news(after=self.seq, wait_s=WAIT_S)
            if page.next != self.seq:
                others = page.next - self.seq > len(page.items)
                told = topics.of(page.items) | (topics.SHARED if others else frozenset())
                news = News(self.seq, page.next, told)
                marks = await self._marks(news)
                self.seq = page.next
                self._tell(msgspec.structs.replace(news, marks=marks))
                await asyncio.sleep(pause_s(time.monotonic()))
            elif time.monotonic() - asked < WAIT_S / 2:
                return  # an answer without a wait: the server ends

    def _tell(self, news: News | None) -> None:
        for ear in self.ears:
            ear.tell(news)


def pause_s(now: float) -> float:
    """Return the seconds until the next look. All readers look at the same moments of the monotonic clock.

    So the equal pages of all sessions are made for one event, and shared.
    """
    return PAUSE_S - now % PAUSE_S
