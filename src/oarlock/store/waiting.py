"""Waiters for the growth of the event log, from any event loop of any thread.

A thread that learns of a later `seq` (a writer after its commit, a poller that looked) publishes it here, and the
waiters for it are woken.
"""

from __future__ import annotations

import asyncio
import threading


class Waiters:
    """`wanted` is set while any caller waits: a poller sleeps on it otherwise."""

    def __init__(self, seq: int = 0) -> None:
        self.wanted = threading.Event()
        self._lock = threading.Lock()
        self._seq = seq
        self._closed = False
        self._waiting: dict[asyncio.Future[None], tuple[int, asyncio.AbstractEventLoop]] = {}

    def publish(self, seq: int) -> None:
        """Take note that the log has grown to `seq`. Earlier ones change nothing."""
        with self._lock:
            self._seq = max(self._seq, seq)
            for future, (after, loop) in list(self._waiting.items()):
                if after < self._seq:
                    self._forget(future)
                    loop.call_soon_threadsafe(_wake, future)

    def close(self) -> None:
        """Wake everybody: nothing will come any more. `wanted` stays set, so that a poller sees it too."""
        with self._lock:
            self._closed = True
            self.wanted.set()
            for future, (_, loop) in list(self._waiting.items()):
                self._forget(future)
                loop.call_soon_threadsafe(_wake, future)

    async def wait(self, after: int, timeout_s: float) -> int:
        """Return the last published `seq`, once it is greater than `after` or the time is over."""
        with self._lock:
            if self._seq > after or timeout_s <= 0 or self._closed:
                return self._seq
            loop = asyncio.get_running_loop()
            future = loop.create_future()
            self._waiting[future] = (after, loop)
            self.wanted.set()
        try:
            async with asyncio.timeout(timeout_s):
                await future
        except TimeoutError:
            pass
        finally:
            with self._lock:
                self._forget(future)
        return self._seq

    def _forget(self, future: asyncio.Future[None]) -> None:
        self._waiting.pop(future, None)
        if not self._waiting and not self._closed:
            self.wanted.clear()


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
