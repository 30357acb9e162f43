"""What the agent's threads tell each other. The main thread sleeps on it and is woken, and waits for nothing else.

Main owns the processes and every decision. The others own one conversation with the server each: `Arrival` the way to
the barrier, `Orders` the long poll, `Shipper` everything that is sent.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from oarlock.agent.blanking import Blanker
    from oarlock.agent.rendezvous import Rendezvous


class Board:
    """Plain attributes, each written by one thread and read by others; `wake()` after a write that main must see."""

    def __init__(self) -> None:
        self._read_fd, self.wake_fd = os.pipe()
        os.set_blocking(self._read_fd, False)
        os.set_blocking(self.wake_fd, False)
        self.starting = threading.Lock()  # held while a child is started, and while `closing` is set
        self.last_contact = time.monotonic()
        # from the server
        self.stale = False
        self.orders: dict[str, Any] = {}
        self.secrets: dict[str, dict[str, str]] = {}
        self.rendezvous: Rendezvous | None = None
        self.virtual_env: str | None = None
        # from Arrival: why there will be no start
        self.failure: tuple[str, str] | None = None
        # from main, to be sent
        self.phase: str | None = None
        self.detail: str | None = None
        self.exit: dict[str, Any] | None = None
        self.kept: dict[str, Any] | None = None
        self.keeping = False  # `kept` is still to come
        self.blanker: Blanker | None = None
        self.closing = False  # nothing more is to be started
        # from main: the files will not grow any more
        self.ended = False
        # from Shipper: everything has been acknowledged
        self.delivered = False

    def wake(self) -> None:
        try:
            os.write(self.wake_fd, b"\0")
        except OSError:
            pass  # full: main wakes anyway

    def wait(self, timeout_s: float) -> None:
        """Sleep until somebody wakes main, a signal comes, or the time is over."""
        poll = select.poll()
        poll.register(self._read_fd, select.POLLIN)
        poll.poll(max(0, int(timeout_s * 1000)))
        with contextlib.suppress(BlockingIOError):
            os.read(self._read_fd, 4096)

    def contact(self) -> None:
        self.last_contact = time.monotonic()

    def take_orders(self, orders: object) -> None:
        """Keep what came last. Should an older answer have overtaken a newer one, the next poll says so at once."""
        if isinstance(orders, dict) and orders.get("version") != self.orders.get("version"):
            self.orders = orders
            self.wake()

    def mark_stale(self) -> None:
        self.stale = True
        self.wake()

    def fail(self, reason: str, detail: str) -> None:
        self.failure = (reason, detail)
        self.wake()
