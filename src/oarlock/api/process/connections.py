"""Limits of open connections, counted from accept to close: unfinished requests must not take all file descriptors.

A connection is pending until a whole request head has arrived, and again while the rest of a refused body arrives (a
request without a token, for example). A pending connection is closed after `PENDING_S`, even if bytes arrive. Only
a limited number may be pending at once: the next one closes the oldest of them. All connections together leave
descriptors for files and child processes: at the limit an idle or a pending one is closed, and where all are busy the
new one is closed at once.

uvicorn has no such limits; `Protocol`, `Listener` and `HttpServer` add them. Without a free descriptor, asyncio writes
thousands of log lines and tries again; `Listener` keeps a spare descriptor for that moment.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import resource
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import h11
import uvicorn
from uvicorn.protocols.http import h11_impl
from uvicorn.protocols.websockets import websockets_sansio_impl

PENDING_S = 15.0
"""The longest time for a request head, or for the rest of a refused body."""

MOST_PENDING = 512

FREE_DESCRIPTORS = 16
"""The least number of descriptors for files and child processes."""

SLACK = 8
"""Connections over the limit that are accepted while others are still being closed."""

ACCEPTS = 1
"""Connections accepted in one turn of the event loop. Between two turns, others are closed."""

TOLD_S = 60.0
"""The shortest time between two log lines about connections that were closed at the limit."""

_NONE_FREE = frozenset({errno.EMFILE, errno.ENFILE})

Report = Callable[[str, Mapping[str, object]], None]


def allow_many() -> None:
    """Take as many descriptors as this process may: every waiting agent holds a connection."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class Connection(socket.socket):
    """An accepted socket. `closed` is called with its descriptor just before it closes."""

    closed: Callable[[int], None] | None = None

    def close(self) -> None:
        if self.closed is not None and self.fileno() >= 0:
            self.closed(self.fileno())
        super().close()


class OpenConnections:
    """The connections of one server, by descriptor; the longest pending and the longest idle ones first."""

    def __init__(self, most: int, most_pending: int, report: Report) -> None:
        self.most = most
        self.most_pending = most_pending
        self._report = report
        self._open: dict[int, Connection] = {}
        self._pending: dict[int, None] = {}
        self._idle: dict[int, None] = {}
        self._untold = 0
        self._tell_at = 0.0

    @classmethod
    def within_limits(cls, report: Report) -> OpenConnections:
        """Return limits for the descriptors that this process may still open."""
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        left = (limit if limit != resource.RLIM_INFINITY else 1 << 20) - _descriptors()
        most = max(left - max(FREE_DESCRIPTORS, left // 4), SLACK)
        return cls(most, min(MOST_PENDING, max(most // 4, 2)), report)

    def accepted(self, one: Connection) -> bool:
        """Count a new connection, which is pending. Return False where the limit does not allow it."""
        if len(self._open) >= self.most:
            self._make_way(self._idle or self._pending)
        if len(self._open) >= self.most + SLACK:
            self._tell()
            return False
        if len(self._pending) >= self.most_pending:
            self._make_way(self._pending)
        one.closed = self._closed
        self._open[one.fileno()] = one
        self._pending[one.fileno()] = None
        return True

    def pending(self, descriptor: int) -> None:
        """Mark the connection as pending."""
        if descriptor in self._open and descriptor not in self._pending:
            self.busy(descriptor)
            self._pending[descriptor] = None

    def idle(self, descriptor: int) -> None:
        """Mark the connection as idle."""
        if descriptor in self._open:
            self.busy(descriptor)
            self._idle[descriptor] = None

    def busy(self, descriptor: int) -> None:
        """Mark the connection as busy."""
        self._pending.pop(descriptor, None)
        self._idle.pop(descriptor, None)

    def _closed(self, descriptor: int) -> None:
        self._open.pop(descriptor, None)
        self.busy(descriptor)

    def _make_way(self, some: dict[int, None]) -> None:
        """Shut down the first of these connections. Its transport reads the end and closes it."""
        if not some:
            return
        descriptor = next(iter(some))
        del some[descriptor]
        with contextlib.suppress(OSError):
            self._open[descriptor].shutdown(socket.SHUT_RDWR)
        self._tell()

    def _tell(self) -> None:
        self._untold += 1
        if time.monotonic() >= self._tell_at:
            facts = {"closed": self._untold, "open": len(self._open), "most": self.most, "pending": self.most_pending}
            self._report("connections_closed_for_room", facts)
            self._untold = 0
            self._tell_at = time.monotonic() + TOLD_S


class Listener(socket.socket):
    """A listening socket that counts its connections."""

    def __init__(self, listening: socket.socket, connections: OpenConnections) -> None:
        """Take over the address of `listening`, which is closed afterwards."""
        family, kind, protocol = listening.family, listening.type, listening.proto
        super().__init__(family, kind, protocol, fileno=listening.detach())
        self._connections = connections
        self._spare: int | None = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)

    def accept(self) -> tuple[socket.socket, Any]:
        """Return a connection within the limits.

        Raises BlockingIOError where there is none, or where it was closed at once.
        """
        try:
            plain, address = super().accept()
        except OSError as error:
            if error.errno not in _NONE_FREE or self._spare is None:
                raise
            self._refuse_one()
            raise BlockingIOError from error
        one = Connection(plain.family, plain.type, plain.proto, fileno=plain.detach())
        if not self._connections.accepted(one):
            one.close()
            raise BlockingIOError
        return one, address

    def close(self) -> None:
        super().close()
        if self._spare is not None:
            os.close(self._spare)
            self._spare = None

    def _refuse_one(self) -> None:
        """Accept the connection with the spare descriptor, so that it leaves the queue, and close it."""
        assert self._spare is not None
        os.close(self._spare)
        self._spare = None
        with contextlib.suppress(OSError):
            super().accept()[0].close()
        with contextlib.suppress(OSError):  # another thread took it: the next accept fails, and asyncio waits
            self._spare = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)


class Protocol(h11_impl.H11Protocol):
    """uvicorn's protocol, which reports the state of its connection, and closes it where it stays pending."""

    open_connections: ClassVar[OpenConnections]

    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's own
        super().connection_made(transport)
        self._tell()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._tell()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._tell()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._stop_timer()

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        super().handle_websocket_upgrade(event)
        self.open_connections.busy(self._descriptor())
        self._stop_timer()

    def _tell(self) -> None:
        if self.transport.get_protocol() is not self or self.transport.is_closing():
            return
        descriptor = self._descriptor()
        cycle: h11_impl.RequestResponseCycle | None = self.cycle  # None before the first request
        if cycle is not None and not cycle.response_complete:
            self.open_connections.busy(descriptor)
            self._stop_timer()
        elif self.timeout_keep_alive_task is not None and self._between_requests():
            self.open_connections.idle(descriptor)
            self._stop_timer()
        else:
            self.open_connections.pending(descriptor)
            if self._timer is None:
                self._timer = self.loop.call_later(PENDING_S, self._give_up)

    def _between_requests(self) -> bool:
        return self.conn.their_state is h11.IDLE and not self.conn.trailing_data[0]

    def _give_up(self) -> None:
        self._timer = None
        self.transport.close()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _descriptor(self) -> int:
        return int(self.transport.get_extra_info("socket").fileno())


class WebSocketProtocol(websockets_sansio_impl.WebSocketsSansIOProtocol):
    """uvicorn's protocol, changed so that a refusal completes the handshake, too.

    Without this, uvicorn logs "ASGI callable returned without completing handshake" after each one.
    """

    async def send(self, message: Any) -> None:
        await super().send(message)
        if message["type"] == "websocket.http.response.body" and not message.get("more_body", False):
            self.handshake_complete = True


class HttpServer(uvicorn.Server):
    """uvicorn without its signal handlers, because `main` shuts down more than sockets.

    asyncio accepts as many connections in one turn as the queue is long; `queue` separates the two numbers.
    """

    def __init__(self, config: uvicorn.Config, queue: int) -> None:
        super().__init__(config)
        self._queue = queue

    @contextlib.contextmanager
    def capture_signals(self) -> Any:
        yield

    async def startup(self, sockets: Sequence[socket.socket] | None = None) -> None:
        await super().startup(sockets=list(sockets or ()))
        for one in sockets or ():
            one.listen(self._queue)


def protocol(connections: OpenConnections) -> type[Protocol]:
    """Return a protocol class that reports to these connections."""
    return type("CountedProtocol", (Protocol,), {"open_connections": connections})


def _descriptors() -> int:
    """Return the number of open descriptors of this process."""
    place = Path("/proc/self/fd") if Path("/proc/self/fd").is_dir() else Path("/dev/fd")
    return sum(1 for _ in place.iterdir())
