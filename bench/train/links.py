"""Two machines in miniature: network namespaces that a slow link joins. Needs root, `ip` and `tc`.

The rate of the link is that of `tc tbf`, in both directions. A burst of 256 KB keeps the rate exact at 1 Gbit/s.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

ADDRESSES = ("10.213.77.1", "10.213.77.2")


@dataclass(frozen=True)
class Machine:
    """A network namespace, its end of the link and its address there."""

    namespace: str
    device: str
    address: str

    def inside(self, command: Sequence[str]) -> list[str]:
        """Return the command that runs this one on the machine, which has a /dev/shm of its own."""
        alone = 'mount -t tmpfs tmpfs /dev/shm && exec "$@"'  # in the mount namespace that ip has made
        return ["ip", "netns", "exec", self.namespace, "sh", "-c", alone, "sh", *command]


@contextmanager
def link(megabits: int) -> Iterator[tuple[Machine, ...]]:
    """Give two machines that a link of this rate joins."""
    mark = f"oar{os.getpid() % 100_000}"
    machines = tuple(Machine(f"{mark}n{end}", f"{mark}d{end}", address) for end, address in enumerate(ADDRESSES))
    first, second = machines
    try:
        for each in machines:
            _do("ip", "netns", "add", each.namespace)
        _do("ip", "-n", first.namespace, "link", "add", first.device, "type", "veth", "peer", "name", second.device)
        _do("ip", "-n", first.namespace, "link", "set", second.device, "netns", second.namespace)
        for each in machines:
            inside = ("ip", "-n", each.namespace)
            _do(*inside, "addr", "add", f"{each.address}/24", "dev", each.device)
            _do(*inside, "link", "set", each.device, "up")
            _do(*inside, "link", "set", "lo", "up")
            shape = ("root", "tbf", "rate", f"{megabits}mbit", "burst", "256kb", "latency", "50ms")
            _do("ip", "netns", "exec", each.namespace, "tc", "qdisc", "add", "dev", each.device, *shape)
        yield machines
    finally:
        for each in machines:
            subprocess.run(["ip", "netns", "del", each.namespace], check=False, capture_output=True)


def _do(*command: str) -> None:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()} (namespaces and links need root)")
