"""The state that the agent's threads share. The main thread sleeps on it, and waits for nothing else.

The main thread owns the processes and makes every decision. Each other thread has one conversation with the server:
`Registration` the way to the barrier, `Orders` the long poll, `Shipper` everything that is sent.
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

    from oarlock.agent.protocol.blanking import Blanker
    from oarlock.agent.protocol.rendezvous import Rendezvous


class AgentState:
    """Attributes, each written by one thread and read by others. A write that main must see is followed by `wake()`."""

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
        # from Registration: the reason why the processes cannot start
        self.failure: tuple[str, str] | None = None
        # from main, to be sent
        self.phase: str | None = None
        self.detail: str | None = None
        self.exit: dict[str, Any] | None = None
        self.kept: dict[str, Any] | None = None
        self.keeping = False  # whether `kept` will still be written
        self.blanker: Blanker | None = None
        self.closing = False  # no further process may be started
        # from main: the files will not grow any more
        self.ended = False
        # from Shipper: everything has been acknowledged
        self.delivered = False

    def wake(self) -> None:
        try:
            os.write(self.wake_fd, b"\0")
        except OSError:
            pass  # the pipe is full: main wakes anyway

    def wait(self, timeout_s: float) -> None:
        """Sleep until a thread calls `wake`, a signal arrives, or the time is over."""
        poll = select.poll()
        poll.register(self._read_fd, select.POLLIN)
        poll.poll(max(0, int(timeout_s * 1000)))
        with contextlib.suppress(BlockingIOError):
            os.read(self._read_fd, 4096)

    def contact(self) -> None:
        self.last_contact = time.monotonic()

    def take_orders(self, orders: object) -> None:
        """Keep the orders that arrived last.

        If an older answer arrives after a newer one, the next poll corrects it.
        """
        if isinstance(orders, dict) and orders.get("version") != self.orders.get("version"):
            self.orders = orders
            self.wake()

    def mark_stale(self) -> None:
        self.stale = True
        self.wake()

    def fail(self, reason: str, detail: str) -> None:
        self.failure = (reason, detail)
        self.wake()
