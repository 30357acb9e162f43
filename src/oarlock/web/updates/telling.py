"""Telling: a session hears the news as soon as its own open pages are made.

Pages are made one after the other, so that the first are not kept waiting by the others, and the log is looked at again
before each. The news of a session reach up to the last event before the first of its pages was made, so they are as
young as a single page takes, however many pages are open.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping

import msgspec

from oarlock.web.updates import feeds, fragments, openpages

PATIENCE_S = 0.25
"""News wait so long for the marks of open pages. A page without one asks."""
STEP_S = 0.06
"""A page that takes longer does not hold up the next one."""
MOST_BYTES = 1 << 16
"""A content that is larger when packed does not come with the news: the page asks for it."""

Pages = Mapping[str, openpages.Open]
Make = Callable[[openpages.Address, str, int], Awaitable[fragments.Update | None]]
"""Makes the content of an address as of an event, with the session of one of its readers."""


class Concerned(msgspec.Struct, frozen=True):
    """The open pages of a session that the news concern, by their names. `all` says that it has no others."""

    pages: Pages
    all: bool


class _Session:
    def __init__(self, secret: str, pages: Pages, seq: int | None) -> None:
        self.secret = secret
        self.pages = pages
        self.lacking = {one.address for one in pages.values()}
        self.seq = seq  # the last event that it is told of, None before its first page is made
        self.present = feeds.Present()


async def tell(news: feeds.Round, concerned: Mapping[str, Concerned], make: Make) -> None:
    """Make the pages, and tell each session."""
    waiting: dict[str, _Session] = {}
    for secret, one in concerned.items():
        if one.pages:  # what later events concern is known for the pages that are made, and for no others
            waiting[secret] = _Session(secret, one.pages, None if one.all else news.seq)
        else:
            news.tell(secret, feeds.Present(), news.seq)

    async def made(address: openpages.Address, secrets: list[str]) -> None:
        seq = await news.look()
        if not waiting.keys() & {*secrets}:
            return  # they were told without it
        update = await make(address, secrets[0], seq)
        for session in [waiting[secret] for secret in secrets if secret in waiting]:
            session.seq = seq if session.seq is None else session.seq
            if update is not None:
                await add(session.present, at(address, session.pages), update)
            session.lacking.discard(address)
            if not session.lacking and waiting.pop(session.secret, None) is not None:
                news.tell(session.secret, session.present, session.seq)

    until = time.monotonic() + PATIENCE_S
    making: list[asyncio.Task[None]] = []
    try:
        for address, secrets in _by_address(waiting.values()).items():
            if (left_s := until - time.monotonic()) > 0:
                making.append(asyncio.create_task(made(address, secrets)))
                await asyncio.wait(making[-1:], timeout=min(STEP_S, left_s))
        if making:
            done, _ = await asyncio.wait(making, timeout=max(0.0, until - time.monotonic()))
            for task in done:
                task.result()
    finally:
        for task in making:
            task.cancel()
    for secret, session in [*waiting.items()]:
        del waiting[secret]
        news.tell(secret, session.present, news.seq)


def at(address: openpages.Address, pages: Pages) -> dict[str, openpages.Open]:
    """Return the pages at this address."""
    return {name: one for name, one in pages.items() if one.address == address}


async def add(present: feeds.Present, pages: Pages, update: fragments.Update) -> None:
    """Add what these pages of a session are told: the mark, and the content where one of them has another."""
    present.marks.update(dict.fromkeys(pages, update.mark))
    if all(page.mark == update.mark for page in pages.values()):
        return
    packed = await update.packed()
    if len(packed) <= MOST_BYTES:
        present.contents[update.mark] = packed
    for page in pages.values():
        page.mark = update.mark


def _by_address(sessions: Iterable[_Session]) -> dict[openpages.Address, list[str]]:
    found: dict[openpages.Address, list[str]] = {}
    for session in sessions:
        for address in session.lacking:
            found.setdefault(address, []).append(session.secret)
    return found
