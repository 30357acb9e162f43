"""The names of hosts, which torch looks up for its log messages.

Each connection of torch's store looks up the name of the host at its other end. Where no name server answers, as in a
pod that reaches none, a look-up takes until the resolver gives up: 10 s by default, at the start of every process.
After its first failure torch looks up no name any more. So where an answer is slow to come, this module lets a first
look-up fail at once.
"""

from __future__ import annotations

import contextlib
import ctypes
import ipaddress
import socket
import threading

ANSWER_S = 0.25
"""A name server that answers later counts as none. Its answer would only be for log messages."""
_NAMELESS = "127.0.0.2"
"""An address of this machine that has no name in /etc/hosts."""
_TRIES = 1
"""The place of the number of tries in glibc's `struct __res_state`, in ints (resolv/bits/types/res_state.h)."""


def stop_slow_lookups(address: str) -> None:
    """Keep torch from waiting for the names of hosts, if that of this address does not come soon.

    `address` is that of the first rank. Nothing happens if it is a name itself, or is this machine's loopback.
    """
    try:
        first = ipaddress.ip_address(address)
    except ValueError:
        return
    if not first.is_loopback and not _is_answered(f"::ffff:{first}" if first.version == 4 else str(first)):
        failing = threading.Thread(target=_fail_at_once, name="oarlock-hostnames")  # a resolver's state is a thread's
        failing.start()
        failing.join()


def _is_answered(address: str) -> bool:
    """Return whether the look-up of this address ends soon, with a name or without one."""
    answered = threading.Event()

    def ask() -> None:
        with contextlib.suppress(OSError, ValueError):
            socket.gethostbyaddr(address)
        answered.set()

    threading.Thread(target=ask, name="oarlock-hostnames", daemon=True).start()
    return answered.wait(ANSWER_S)


def _fail_at_once() -> None:
    """Let torch look up a name with a resolver that asks no name server. That of other threads stays as it is."""
    from torch import distributed

    library = ctypes.CDLL(None)
    try:
        initialize, state = library.__res_init, library.__res_state
    except AttributeError:  # not glibc
        return
    state.restype = ctypes.POINTER(ctypes.c_int)
    initialize()
    state()[_TRIES] = 0
    with contextlib.suppress(RuntimeError):  # this machine lacks the address
        distributed.TCPStore(_NAMELESS, 0, is_master=True, wait_for_workers=False)
