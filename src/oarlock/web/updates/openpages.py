"""Open pages, by the name that each gives itself, with the address and the topics of its last update.

News of a topic bring the mark of each such page's present content, so that a page whose content has stayed the same
does not ask. A page that does not stand here asks, and stands here from then on: losing one costs a request. A page
that is closed or hidden says so, because its mark would be made for nothing.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

from oarlock.web.updates import topics

KEPT_S = 60.0
"""A page that has not asked for so long may be closed, and its word of it lost."""
MOST = 16
"""The pages of one session; those that asked last."""
MOST_SESSIONS = 1000
_NAME = re.compile(r"[0-9a-z]{4,16}")


class Address(NamedTuple):
    """Path and query of a page's update, and the name of its equal readers (`readers`)."""

    readers: str
    path: str
    query: bytes


class Open(msgspec.Struct, frozen=True):
    """An open page. `asked_at` is the time of its update (monotonic)."""

    address: Address
    topics: frozenset[str]
    asked_at: float


class OpenPages:
    """The open pages of all sessions."""

    def __init__(self) -> None:
        self._sessions: dict[str, dict[str, Open]] = {}

    def note(self, secret: str, name: str, address: Address, shown: Iterable[str]) -> None:
        """Take note of an update of the page with this name. A malformed name is passed over."""
        if not _NAME.fullmatch(name):
            return
        if secret not in self._sessions and len(self._sessions) >= MOST_SESSIONS:
            self._sessions.clear()
        pages = self._sessions.setdefault(secret, {})
        pages.pop(name, None)
        pages[name] = Open(address, frozenset(shown), time.monotonic())
        if len(pages) > MOST:
            del pages[next(iter(pages))]

    def forget(self, secret: str, name: str) -> None:
        """Take note that the page with this name needs no marks."""
        self._sessions.get(secret, {}).pop(name, None)

    def concerned(self, secret: str, told: frozenset[str]) -> Mapping[str, Open]:
        """Return the session's pages that show one of these topics."""
        pages = self._sessions.get(secret, {})
        since = time.monotonic() - KEPT_S
        for name in [name for name, one in pages.items() if one.asked_at < since]:
            del pages[name]
        if not pages:
            self._sessions.pop(secret, None)
        everything = topics.EVERYTHING in told
        return {name: one for name, one in pages.items() if everything or one.topics & told}
