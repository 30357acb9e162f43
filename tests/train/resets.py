"""Connections between processes that are reset from outside, as by a router that has forgotten them.

Both ends get the error of a reset (ECONNRESET). `ss --kill` gives its own end another one (ECONNABORTED), on which
gloo aborts its process now and then: in a thread of its own it throws an error that nothing catches.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import socket
from collections.abc import Collection
from pathlib import Path

from tests import needs

_PIDFD_GETFD = 438  # a system call, the same number on all machines
_UNSPECIFIED = bytes(16)  # struct sockaddr of the family AF_UNSPEC: to connect there resets a connection
_libc = ctypes.CDLL(None, use_errno=True)


def reset_between(pids: Collection[int | None], most: int | None = None, but: Collection[int] = ()) -> None:
    """Reset the connections between these processes, at most so many, and none from or to the ports `but`."""
    sockets = [each for pid in pids for each in _connected(pid or 0)]
    try:
        ends = {(each.getsockname(), each.getpeername()): each for each in sockets}
        between = [(here, there) for here, there in ends if here < there and (there, here) in ends]
        chosen = [pair for pair in between if not {port for _, port, *_ in pair} & set(but)][:most]
        assert chosen, f"no connection between {pids}: {list(ends)}"
        for pair in chosen:
            if _libc.connect(ends[pair].fileno(), _UNSPECIFIED, len(_UNSPECIFIED)) < 0:
                raise OSError(ctypes.get_errno(), "the connection was not reset")
    finally:
        for each in sockets:
            each.close()


def _connected(pid: int) -> list[socket.socket]:
    """Return copies of the connected sockets of a process."""
    found = []
    process = os.pidfd_open(pid)
    try:
        for path in list(Path(f"/proc/{pid}/fd").iterdir()):
            with contextlib.suppress(FileNotFoundError):  # closed meanwhile
                each = _copy(process, int(path.name)) if str(path.readlink()).startswith("socket:") else None
                if each is not None and _is_connected(each):
                    found.append(each)
                elif each is not None:
                    each.close()
    finally:
        os.close(process)
    return found


def _copy(process: int, descriptor: int) -> socket.socket | None:
    copied = _libc.syscall(_PIDFD_GETFD, process, descriptor, 0)
    if copied < 0 and ctypes.get_errno() != errno.EBADF:
        needs.skip("ending connections", os.strerror(ctypes.get_errno()))
    return socket.socket(fileno=copied) if copied >= 0 else None


def _is_connected(each: socket.socket) -> bool:
    with contextlib.suppress(OSError):
        return each.family in (socket.AF_INET, socket.AF_INET6) and bool(each.getpeername())
    return False
