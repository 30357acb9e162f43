"""One reader of the event log for all equal readers (`readers`): the streams of a user, or of all administrators.

A reader asks the API with the session of one member, and tells news at most twice a second, however many pages are
open. Before anything is told, and after each pause and each wait, it asks the API for the user of each member's own
session. A session that has ended, or has another right by now, hears nothing more, and its streams end. A message
names the events that it covers, from `after` to `seq`; a page that finds a gap between two messages fetches itself.

A session is told as soon as its own pages are made, of all events up to that moment: the reader looks at the log again
before each page. So each member has its own place in the log, and one that ends meanwhile may still hear of the events
of a moment (`telling.PATIENCE_S`).

Beside this, the open pages that change without events are looked at (`openpages`). A message without an event has the
marks of those that have changed.

A mark is made from a content. Where a page has another one, the message brings it along: the page need not ask for what
the server has just made. One that cannot take it, as under a selection, asks later.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import NamedTuple

import msgspec

from oarlock.client.asynchronous import clients
from oarlock.spec import bodies, errors
from oarlock.web.access import admissions
from oarlock.web.updates import openpages, readers, topics

WAIT_S = 0.45
"""Seconds that the API waits for a line. The streams of an ended session hear none, and end within this time."""
PAUSE_S = 0.5
"""Seconds between two looks while there are events."""
REST = 10
"""Looks at pages without events rest for so many times as long as they took: they take 9 % of the time at most."""


class News(msgspec.Struct, frozen=True, omit_defaults=True):
    """The topics that the events after `after`, up to `seq`, may have changed.

    `marks` has the mark of the content, as of `seq`, of open pages that show one of them, by their names. `contents`
    has contents that some of these pages lack, by their marks and packed (`compressing`).
    """

    after: int
    seq: int
    topics: frozenset[str]
    marks: Mapping[str, str] = {}
    contents: Mapping[str, bytes] = {}


class Present(msgspec.Struct, frozen=True):
    """The present content of a session's open pages, as `News` tells it."""

    marks: dict[str, str] = {}
    contents: dict[str, bytes] = {}


Members = Mapping[str, bodies.Server]
"""What the API has just answered to the sessions of a reader's members, by their secrets."""


class Round(NamedTuple):
    """News for those members that have yet to be told of events up to `seq`: `topics` has theirs, by their secrets.

    `look` looks at the log again, and returns its last event. `tell` tells a member of the events up to one of these.
    """

    members: Members
    topics: Mapping[str, frozenset[str]]
    seq: int
    look: Callable[[], Awaitable[int]]
    tell: Callable[[str, Present, int], None]


Telling = Callable[[Round], Awaitable[None]]
"""Tells each member of `topics`, once its pages that they concern are made."""
Changed = Callable[[Members], Awaitable[Mapping[str, Present]]]
"""Returns the pages that have changed without an event, by the secrets of the members."""


class Ended(Exception):
    """The news have ended: with the session if `session`, else with the server, a right or a failure."""

    def __init__(self, *, session: bool) -> None:
        super().__init__("the news have ended")
        self.session = session


class Feeds:
    """The readers of all sessions."""

    def __init__(self, telling: Telling, changed: Changed, known: admissions.Admissions) -> None:
        self._telling = telling
        self._changed = changed
        self._known = known
        self._feeds: dict[str, _Feed] = {}
        self._closing: set[asyncio.Task[None]] = set()

    @contextlib.asynccontextmanager
    async def listening(
        self, secret: str, server: bodies.Server, connect: Callable[[], clients.AsyncClient]
    ) -> AsyncIterator[Ear]:
        """Yield an ear for the news of a session, after the event of its admission or of its reader's last look.

        The last ear that leaves ends the reader.
        """
        name = readers.of_log(server)
        feed = self._feeds.get(name)
        if feed is None or feed.ended:
            feed = self._feeds[name] = _Feed(name, server.seq, self._telling, self._changed, self._known)
        member = feed.members.get(secret)
        if member is None:
            member = feed.members[secret] = _Member(secret, connect(), feed.seq)
        ear = Ear(member.seq)
        member.ears.add(ear)
        try:
            yield ear
        finally:
            member.ears.discard(ear)
            if not member.ears:
                feed.forget(member)
                if not feed.members and self._feeds.get(name) is feed:
                    del self._feeds[name]
                # In a task of its own: the server cancels every further await of a stream whose browser has left.
                closing = asyncio.create_task(_close(feed, member))
                self._closing.add(closing)
                closing.add_done_callback(self._closing.discard)


async def _close(feed: _Feed, member: _Member) -> None:
    if not feed.members:
        await feed.close()
    await member.client.close()


class Ear:
    """A listener. News that it has not taken yet become one piece of news, so a slow one costs no memory."""

    def __init__(self, seq: int) -> None:
        self.seq = seq
        """The last event before the first news."""
        self._waiting = asyncio.Event()
        self._news: News | None = None
        self._ended: Ended | None = None

    async def next(self, timeout_s: float) -> News | None:
        """Return the next news, None after the time-out. Raises Ended."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._waiting.wait(), timeout_s)
        self._waiting.clear()
        news, self._news = self._news, None
        if self._ended is not None:
            raise self._ended
        return news

    def tell(self, news: News) -> None:
        if self._news is not None:
            news = msgspec.structs.replace(news, after=self._news.after, topics=self._news.topics | news.topics)
        self._news = news
        self._waiting.set()

    def end(self, ended: Ended) -> None:
        self._ended = ended
        self._waiting.set()


class _Member:
    """A session with its open streams. `seq` is the last event that it was told of."""

    def __init__(self, secret: str, client: clients.AsyncClient, seq: int) -> None:
        self.secret = secret
        self.client = client
        self.seq = seq
        self.ears: set[Ear] = set()


class _Feed:
    def __init__(self, name: str, seq: int, telling: Telling, changed: Changed, known: admissions.Admissions) -> None:
        self.name = name
        self.seq = seq
        self.members: dict[str, _Member] = {}
        self.ended = False
        self._telling = telling
        self._changed = changed
        self._known = known
        self._checked: Members = {}
        self._looking = asyncio.Lock()
        self._looks: list[tuple[int, frozenset[str]]] = []  # the last event of each look, and the topics that it found
        self._tasks = (asyncio.create_task(self._read()), asyncio.create_task(self._look()))

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def forget(self, member: _Member) -> None:
        if self.members.get(member.secret) is member:
            del self.members[member.secret]

    async def _read(self) -> None:
        try:
            await self._follow()
        except errors.OarlockError:
            pass  # the browsers open new streams
        finally:
            self.ended = True
            for member in [*self.members.values()]:
                self._end(member, session=False)

    async def _follow(self) -> None:
        wait_s = WAIT_S
        while self.members:
            asked, after = time.monotonic(), self.seq
            speaker = next(iter(self.members.values()))
            try:
                page = await speaker.client.news(after=after, wait_s=wait_s)
            except errors.Unauthenticated:
                self._end(speaker, session=True)
                continue
            waited_s = time.monotonic() - asked
            checked = await self._check()
            if speaker.secret not in checked:
                continue  # its news may lack lines that the others may see
            self._note(after, page)
            if any(member.seq != self.seq for member in self.members.values()):
                await self._tell(checked)
                await asyncio.sleep(asked + PAUSE_S - time.monotonic())
                wait_s = 0.0  # a wait right after the pause would put off the look at the sessions
            elif waited_s < wait_s / 2:
                return  # an answer without a wait: the server ends
            else:
                wait_s = WAIT_S

    async def _look(self) -> None:
        """Tell the pages that have changed without an event."""
        while not self.ended:
            await asyncio.sleep(openpages.SOON_S)
            began = time.monotonic()
            try:
                changed = await self._changed(self._checked)
            except Exception:  # noqa: BLE001 - the pages ask now and then by themselves, and the next look may succeed
                changed = {}
            for secret, pages in changed.items():
                if secret in self.members:
                    self._tell_member(secret, pages, self.members[secret].seq)
            await asyncio.sleep(REST * (time.monotonic() - began))

    async def _check(self) -> dict[str, bodies.Server]:
        """Ask for the user of each member's session. Return those that are still equal readers, and end the others."""
        checked: dict[str, bodies.Server] = {}
        while new := [one for one in self.members.values() if one.secret not in checked]:
            answers = await asyncio.gather(*map(self._ask, new), return_exceptions=True)
            for member, answer in zip(new, answers, strict=True):
                if isinstance(answer, bodies.Server) and readers.of_log(answer) == self.name:
                    checked[member.secret] = answer
                elif isinstance(answer, bodies.Server | errors.OarlockError):
                    self._end(member, session=isinstance(answer, errors.Unauthenticated))
                else:
                    raise answer
        self._checked = checked
        return checked

    async def _ask(self, member: _Member) -> bodies.Server:
        return await self._known.find(member.secret, None, member.client.server)

    def _note(self, after: int, page: bodies.RecordPage) -> None:
        """Take note of what a look has found after `after`. One that another look has overtaken brings nothing new."""
        if page.next > self.seq:
            others = page.next - after > len(page.items)
            self._looks.append((page.next, topics.of(page.items) | (topics.SHARED if others else frozenset())))
            self.seq = page.next

    def _topics(self, after: int, until: int) -> frozenset[str]:
        return frozenset().union(*(found for seq, found in self._looks if after < seq <= until))

    async def _look_again(self) -> int:
        async with self._looking:
            after, speaker = self.seq, next(iter(self.members.values()), None)
            with contextlib.suppress(errors.OarlockError):
                if speaker is not None:
                    page = await speaker.client.news(after=after, wait_s=0.0)
                    if page.next != after and readers.of_log(await self._ask(speaker)) == self.name:
                        self._note(after, page)
        return self.seq

    async def _tell(self, checked: Members) -> None:
        until = self.seq
        behind = {one.secret: one.seq for one in self.members.values() if one.secret in checked and one.seq != until}
        told = {secret: self._topics(seq, until) for secret, seq in behind.items()}
        await self._telling(Round(checked, told, until, self._look_again, self._tell_member))
        least = min((one.seq for one in self.members.values()), default=self.seq)
        self._looks = [one for one in self._looks if one[0] > least]

    def _tell_member(self, secret: str, pages: Present, seq: int) -> None:
        member = self.members.get(secret)
        if member is not None:
            news = News(member.seq, seq, self._topics(member.seq, seq), pages.marks, pages.contents)
            member.seq = seq
            for ear in member.ears:
                ear.tell(news)

    def _end(self, member: _Member, *, session: bool) -> None:
        self.forget(member)
        for ear in member.ears:
            ear.end(Ended(session=session))
