"""The requests that a bounded piece of work waits for: once its bound is over, it can name the last failure.

`noting` begins around the work. The sender of a request makes a `Wait`, tells it each failure after which the request
is sent again, and ends it with the request. The waits belong to the context: works at the same time have their own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar

_now: ContextVar[dict[Wait, None] | None] = ContextVar("waits", default=None)


class Wait:
    """A request that is under way. `what` names it."""

    def __init__(self, what: str) -> None:
        self.what = what
        self.failure = ""  # the last one
        self._all = _now.get()
        if self._all is not None:
            self._all[self] = None

    def end(self) -> None:
        if self._all is not None:
            self._all.pop(self, None)


@contextlib.contextmanager
def noting() -> Iterator[dict[Wait, None]]:
    """Yield the requests of the work in this block that have not ended, the oldest first."""
    waits: dict[Wait, None] = {}
    token = _now.set(waits)
    try:
        yield waits
    finally:
        _now.reset(token)


def why(waits: dict[Wait, None]) -> str:
    """Return the last failure of a request that was sent again, else the request without an answer, if there is one."""
    failures = (wait.failure for wait in waits if wait.failure)
    return next(failures, "") or next((f"{wait.what} has no answer yet" for wait in waits), "")
