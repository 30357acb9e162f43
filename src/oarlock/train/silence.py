"""Connections on which nothing is acknowledged any more: the link is cut, or the host of the peer has vanished.

The kernel tries for a quarter of an hour. Its option TCP_USER_TIMEOUT would also give up a peer that lives and reads
nothing, such as a stopped process: that one's kernel acknowledges all the same.
"""

from __future__ import annotations

import socket
import struct

UNANSWERED = 6
"""The sendings of the same bytes, or probes, that must have failed. An idle connection has no acknowledgements, too."""
_INFO_BYTES = 60
_INFO = struct.Struct("=2xBB20xI28xI")  # of `struct tcp_info` in linux/tcp.h


def is_silent(connected: socket.socket, seconds: float) -> bool:
    """Return whether bytes or probes are under way, and the peer's kernel has acknowledged none for so long.

    Always False where the system does not tell. OSError where the socket is closed.
    """
    if not hasattr(socket, "TCP_INFO"):
        return False
    told = connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
    if len(told) < _INFO_BYTES:
        return False
    sent_again, probes, unacknowledged, acknowledged_ms = _INFO.unpack(told)
    tries = max(sent_again if unacknowledged else 0, probes)
    return bool(tries >= UNANSWERED and acknowledged_ms > seconds * 1000)
