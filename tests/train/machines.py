"""Machines in miniature, whose links a test makes slow, cuts and heals: network namespaces, which need root."""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from bench.train import links
from tests import needs

NEW_NETWORK = 0x40000000  # CLONE_NEWNET


@contextmanager
def there(made: AbstractContextManager[tuple[links.Machine, ...]]) -> Iterator[tuple[links.Machine, ...]]:
    """Make the machines, or skip the test where network namespaces are not allowed."""
    try:
        found = made.__enter__()
    except (RuntimeError, OSError) as cause:
        needs.skip("network namespaces", str(cause))
    try:
        yield found
    finally:
        made.__exit__(None, None, None)


def linked() -> AbstractContextManager[tuple[links.Machine, ...]]:
    return there(links.link(1000))


def enter(machine: links.Machine) -> None:
    """Let the sockets that this thread makes from now on, and those of its later threads, be on this machine."""
    namespace = os.open(f"/run/netns/{machine.namespace}", os.O_RDONLY)
    if ctypes.CDLL(None, use_errno=True).setns(namespace, NEW_NETWORK):
        raise OSError(ctypes.get_errno(), "setns")
    os.close(namespace)


def put(machine: links.Machine, *, up: bool) -> None:
    """Cut the link of this machine, or heal it. No side hears of it."""
    state = "up" if up else "down"
    subprocess.run(["ip", "-n", machine.namespace, "link", "set", machine.device, state], check=True)
