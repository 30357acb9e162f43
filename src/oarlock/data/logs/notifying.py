"""Notices to the readers of a job's logs, on any thread's event loop, that bytes were appended."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator


class Notifier:
    """The notifier of one job. Its readers may run on any thread's event loop."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._subscribers: dict[asyncio.Event, asyncio.AbstractEventLoop] = {}

    @contextlib.contextmanager
    def subscribed(self) -> Iterator[asyncio.Event]:
        """Give an event that each `notify` sets."""
        event = asyncio.Event()
        with self._lock:
            self._subscribers[event] = asyncio.get_running_loop()
        try:
            yield event
        finally:
            with self._lock:
                self._subscribers.pop(event, None)

    def notify(self) -> None:
        with self._lock:
            subscribers = list(self._subscribers.items())
        for event, loop in subscribers:
            try:
                loop.call_soon_threadsafe(event.set)
            except RuntimeError:
                continue  # that loop is closed, and its reader gone


async def set_when(until: asyncio.Event, notified: asyncio.Event) -> None:
    await until.wait()
    notified.set()


async def wait(notified: asyncio.Event, timeout_s: float | None) -> None:
    try:
        await asyncio.wait_for(notified.wait(), timeout_s)
    except TimeoutError:
        return
