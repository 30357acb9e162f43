"""The transport of frames between a worker and a parameter server, and its form over TCP.

Bodies are sent from the tensors' own memory and received into place: no copy, no buffer of the transport. Within one
host they lie in shared memory (bodies.py).
"""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from oarlock.train import silence
from oarlock.train.servers.wire import frames

_MOST_PIECES = 512  # the kernel takes at most 1,024 in one call
_IDLE_S, _PROBE_S, _PROBES = 10, 5, 3
SILENT_S = 25.0
"""A host that vanished is noticed after so long, also while bytes are on their way to it. A peer that lives may take as
long as it likes to read them.
"""
_LOOK_S = 1.0
"""While it waits for the kernel, a connection looks so often whether the peer is gone."""


class Connection(Protocol):
    """A connection. One thread at a time sends, and one receives.

    Errors: frames.Refused where the other side breaks the protocol, OSError where the connection breaks.
    """

    def send(self, kind: frames.Kind, fields: dict[str, Any], body: Sequence[memoryview] = ()) -> None:
        """Send one frame."""

    def shares(self, body_bytes: int) -> bool:
        """Return whether a body of this size goes by shared memory."""

    def head(self, most_json_bytes: int = frames.MOST_JSON_BYTES) -> frames.Head:
        """Receive a frame up to its body."""

    def body(self, into: Sequence[memoryview]) -> None:
        """Receive the body into this memory, which is as large as the head said."""

    @property
    def is_whole(self) -> bool:
        """Whether the body of the last head is there as a whole, and cannot break off any more."""

    def waits(self, within_s: float) -> bool:
        """Return whether something arrives, or the connection breaks, within this time."""

    def is_broken(self) -> bool:
        """Return whether the other side has ended the connection. Bytes that wait to be received say no."""

    def close(self) -> None: ...


class Tcp:
    """A connection over a TCP socket.

    `is_over` tells whether the peer is known to be gone: the kernel of its host may have no chance to tell of that.
    """

    def __init__(self, sock: socket.socket, is_over: Callable[[], bool] = lambda: False) -> None:
        self._socket, self._is_over = sock, is_over
        self._until: float | None = None
        self._looked_at = time.monotonic()
        sock.settimeout(None)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in (("TCP_KEEPIDLE", _IDLE_S), ("TCP_KEEPINTVL", _PROBE_S), ("TCP_KEEPCNT", _PROBES)):
            if hasattr(socket, name):
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        look = struct.pack("ll", *divmod(round(_LOOK_S * 1e6), 1_000_000))  # `struct timeval`
        for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
            sock.setsockopt(socket.SOL_SOCKET, option, look)

    def limit(self, seconds: float | None) -> None:
        """Give all that follows so many seconds together; None: without a limit."""
        self._until = None if seconds is None else time.monotonic() + seconds
        if seconds is None:
            self._socket.settimeout(None)

    def send(self, kind: frames.Kind, fields: dict[str, Any], body: Sequence[memoryview] = ()) -> None:
        self._send([memoryview(frames.packed(kind, fields, sum(each.nbytes for each in body))), *body])

    def shares(self, body_bytes: int) -> bool:
        return False

    def announce(self, kind: frames.Kind, fields: dict[str, Any], body_bytes: int) -> None:
        """Send a frame whose body lies in shared memory."""
        self._send([memoryview(frames.packed(kind, fields, body_bytes, shared=True))])

    def head(self, most_json_bytes: int = frames.MOST_JSON_BYTES, *, shared_bytes: int = 0) -> frames.Head:
        head = bytearray(frames.HEAD.size)
        self._receive(memoryview(head))
        kind, json_bytes, body_bytes, shared = frames.lengths(bytes(head), most_json_bytes, shared_bytes)
        text = bytearray(json_bytes)
        self._receive(memoryview(text))
        return frames.Head(kind, frames.parsed(bytes(text)), body_bytes, shared)

    is_whole = False

    def body(self, into: Sequence[memoryview]) -> None:
        for piece in into:
            self._receive(piece)

    def waits(self, within_s: float) -> bool:
        if self._socket.fileno() < 0:
            return True  # closed here: receiving says so
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        if poll.poll(within_s * 1000):
            return True
        if self._is_gone():
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)  # receiving says so, also where the link is healed by then
            return True
        return False

    def is_broken(self) -> bool:
        try:
            return not self._socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return self._is_gone()
        except OSError:
            return True

    def close(self) -> None:
        # A thread that waits on this socket must wake up, which close() alone does not bring about.
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _receive(self, into: memoryview) -> None:
        while into.nbytes:
            if self._until is not None:
                self._socket.settimeout(max(0.001, self._until - time.monotonic()))
            try:
                count = self._socket.recv_into(into, into.nbytes, socket.MSG_WAITALL)
            except BlockingIOError:  # after _LOOK_S
                self._check()
                continue
            if not count:
                raise ConnectionResetError("Connection closed by peer")
            into = into[count:]

    def _send(self, pieces: list[memoryview]) -> None:
        pieces.reverse()
        while pieces:
            try:
                sent = self._socket.sendmsg(pieces[: -_MOST_PIECES - 1 : -1])
            except BlockingIOError:  # after _LOOK_S
                self._check()
                continue
            while pieces and sent >= pieces[-1].nbytes:
                sent -= pieces.pop().nbytes
            if sent:
                pieces[-1] = pieces[-1][sent:]

    def _check(self) -> None:
        """Raise TimeoutError where the peer is gone, or its host has vanished."""
        if self._is_gone():
            raise TimeoutError(
                f"Connection timed out: nothing was acknowledged for {SILENT_S:.0f} s, or the peer was replaced"
            )

    def _is_gone(self) -> bool:
        now = time.monotonic()
        if now - self._looked_at >= _LOOK_S:
            self._looked_at = now
            if self._is_over():
                return True
        try:
            return silence.is_silent(self._socket, SILENT_S)
        except OSError:
            return False  # closed here: sending and receiving say so
