"""Open pages, by the name that each gives itself, with the address, the topics and the mark of its last update.

News of a topic bring the mark of each such page's present content, so that a page whose content has stayed the same
does not ask. A page that does not stand here asks, and stands here from then on: losing one costs a request. A page
that is closed or hidden says so, because its mark would be made for nothing.

A page that changes without events, such as with a job's progress, is looked at anew after a while (`due`).
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

from oarlock.web.updates import topics

KEPT_S = 300.0
"""A page that has not asked for so long may be closed, and its word of it lost. One that is looked at asks earlier."""
SOON_S = 2.0
"""A page that changes within seconds without events is looked at after so long."""
SLOW_S = 10.0
"""The least period of a page that is looked at only as often as it asks for."""
MOST = 16
"""The pages of one session; those that asked last."""
MOST_SESSIONS = 1000
_NAME = re.compile(r"[0-9a-z]{4,16}")


class Address(NamedTuple):
    """Path and query of a page's update, and the name of its equal readers (`readers`)."""

    readers: str
    path: str
    query: bytes


class Open(msgspec.Struct):
    """An open page. `asked_at` is the time of its update, `looked_at` that of the last look at its content (monotonic).

    `period_s` are the seconds after which it may have changed without an event, 0 for a page that does not.
    """

    address: Address
    topics: frozenset[str]
    mark: str
    period_s: float
    asked_at: float
    looked_at: float


class OpenPages:
    """The open pages of all sessions."""

    def __init__(self) -> None:
        self._sessions: dict[str, dict[str, Open]] = {}

    def note(
        self, secret: str, name: str, address: Address, shown: Iterable[str], mark: str = "", period_s: float = 0.0
    ) -> bool:
        """Take note of an update of the page with this name. Return whether the name is one; else it is passed over."""
        if not _NAME.fullmatch(name):
            return False
        if secret not in self._sessions and len(self._sessions) >= MOST_SESSIONS:
            self._sessions.clear()
        pages = self._sessions.setdefault(secret, {})
        pages.pop(name, None)
        now = time.monotonic()
        pages[name] = Open(address, frozenset(shown), mark, period_s, now, now)
        if len(pages) > MOST:
            del pages[next(iter(pages))]
        return True

    def forget(self, secret: str, name: str) -> None:
        """Take note that the page with this name needs no marks."""
        self._sessions.get(secret, {}).pop(name, None)

    def concerned(self, secret: str, told: frozenset[str]) -> Mapping[str, Open]:
        """Return the session's pages that show one of these topics. They count as looked at."""
        everything = topics.EVERYTHING in told
        return self._looked({name: one for name, one in self._present(secret) if everything or one.topics & told})

    def count(self, secret: str) -> int:
        """Return the number of the session's pages."""
        return len(self._sessions.get(secret, {}))

    def due(self, secret: str) -> Mapping[str, Open]:
        """Return the session's pages that may have changed without an event. They count as looked at."""
        now = time.monotonic()
        return self._looked({name: one for name, one in self._present(secret) if _is_due(one, now)})

    @staticmethod
    def _looked(pages: dict[str, Open]) -> dict[str, Open]:
        now = time.monotonic()
        for one in pages.values():
            one.looked_at = now
        return pages

    def _present(self, secret: str) -> list[tuple[str, Open]]:
        pages = self._sessions.get(secret, {})
        since = time.monotonic() - KEPT_S
        for name in [name for name, one in pages.items() if one.asked_at < since]:
            del pages[name]
        if not pages:
            self._sessions.pop(secret, None)
        return list(pages.items())


def _is_due(page: Open, now: float) -> bool:
    period_s = page.period_s if page.period_s >= SLOW_S else SOON_S
    return bool(page.period_s) and now - page.looked_at >= period_s
