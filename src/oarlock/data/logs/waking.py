"""Notices to the readers of a job's logs, on any thread's event loop, that bytes were appended."""

from __future__ import annotations

import asyncio
import threading


class Bell:
    """Wakes readers on any thread's loop when something was appended."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._hearers: dict[asyncio.Event, asyncio.AbstractEventLoop] = {}

    def heard(self) -> Hearing:
        return Hearing(self)

    def ring(self) -> None:
        with self._lock:
            hearers = list(self._hearers.items())
        for event, loop in hearers:
            try:
                loop.call_soon_threadsafe(event.set)
            except RuntimeError:
                continue  # that loop is closed, and its reader gone

    def add(self, event: asyncio.Event) -> None:
        with self._lock:
            self._hearers[event] = asyncio.get_running_loop()

    def remove(self, event: asyncio.Event) -> None:
        with self._lock:
            self._hearers.pop(event, None)


class Hearing:
    def __init__(self, bell: Bell) -> None:
        self._bell = bell
        self._event = asyncio.Event()

    def __enter__(self) -> asyncio.Event:
        self._bell.add(self._event)
        return self._event

    def __exit__(self, *_: object) -> None:
        self._bell.remove(self._event)


async def ring_when(until: asyncio.Event, rung: asyncio.Event) -> None:
    await until.wait()
    rung.set()


async def wait(rung: asyncio.Event, timeout_s: float | None) -> None:
    try:
        await asyncio.wait_for(rung.wait(), timeout_s)
    except TimeoutError:
        return
