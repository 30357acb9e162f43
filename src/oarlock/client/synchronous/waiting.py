"""Waiting in a thread: the names of `asynchronous/waiting.py`, without an event loop."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent import futures
from typing import ParamSpec, TypeVar

from oarlock.spec import errors

P = ParamSpec("P")
T = TypeVar("T")
Item = TypeVar("Item")

Sleep = Callable[[float], None]
sleep: Sleep = time.sleep


def in_thread(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Return the result of blocking work, which runs in the caller's own thread."""
    return work(*args, **kwargs)


class Pool:
    """Runs a piece of work for each item, at most `limit` at once. The first failure ends the others."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._over = threading.Event()

    def map(self, work: Callable[[Item], T], items: Sequence[Item]) -> list[T]:
        """Return the results in the order of the items. Raises the first failure."""
        with futures.ThreadPoolExecutor(self._limit) as pool:
            try:
                return list(pool.map(work, items))
            except BaseException:
                self._over.set()
                pool.shutdown(wait=True, cancel_futures=True)
                raise

    def check(self) -> None:
        """Raise Unavailable once another piece of work has failed."""
        if self._over.is_set():
            raise errors.Unavailable("the download was interrupted", hint="Ask again: it goes on.")
