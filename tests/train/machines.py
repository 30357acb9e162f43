"""Two machines in miniature, whose link a test cuts and heals: network namespaces, for which it must be root."""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from bench.train import links
from tests import needs

NEW_NETWORK = 0x40000000  # CLONE_NEWNET


@contextmanager
def linked() -> Iterator[tuple[links.Machine, ...]]:
    made = links.link(1000)
    try:
        found = made.__enter__()
    except (RuntimeError, OSError) as cause:
        needs.skip("network namespaces", str(cause))
    try:
        yield found
    finally:
        made.__exit__(None, None, None)


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
