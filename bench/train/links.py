"""Machines in miniature: network namespaces that slow links join. Needs root, `ip` and `tc`.

The rate of the link is that of `tc tbf`, in both directions. A burst of 256 KB keeps the rate exact at 1 Gbit/s.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

NETWORK = "10.213.77"
ADDRESSES = (f"{NETWORK}.1", f"{NETWORK}.2")


@dataclass(frozen=True)
class Machine:
    """A network namespace, its end of the link and its address there."""

    namespace: str
    device: str
    address: str

    def inside(self, command: Sequence[str]) -> list[str]:
        """Return the command that runs this one on the machine, whose processes have a /dev/shm of their own."""
        alone = f'mount --bind {self.memory} /dev/shm && exec "$@"'  # in the mount namespace that ip has made
        return ["ip", "netns", "exec", self.namespace, "sh", "-c", alone, "sh", *command]

    @property
    def memory(self) -> Path:
        return Path("/run") / self.namespace


def written(machines: Sequence[Machine]) -> str:
    """Return the text from which `read` makes these machines, in another process."""
    return json.dumps([asdict(each) for each in machines])


def read(text: str) -> list[Machine]:
    return [Machine(**each) for each in json.loads(text)]


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
            _bring_up(each, megabits)
        yield machines
    finally:
        _remove(machines)


@contextmanager
def network(megabits: int, count: int, *, receives: int | None = None, fast: int = 0) -> Iterator[tuple[Machine, ...]]:
    """Give so many machines, each with a link of this rate to one switch. With `receives` they receive at that rate,
    and the last `fast` machines send at it, too.
    """
    mark = f"oar{os.getpid() % 100_000}"
    switch = f"{mark}s"
    machines = tuple(Machine(f"{mark}n{end}", f"{mark}d{end}", f"{NETWORK}.{end + 1}") for end in range(count))
    try:
        for namespace in (switch, *(each.namespace for each in machines)):
            _do("ip", "netns", "add", namespace)
        _do("ip", "-n", switch, "link", "add", "switch", "type", "bridge")
        _do("ip", "-n", switch, "link", "set", "switch", "up")
        for end, each in enumerate(machines):
            plug = f"{mark}p{end}"
            _do("ip", "-n", each.namespace, "link", "add", each.device, "type", "veth", "peer", "name", plug)
            _do("ip", "-n", each.namespace, "link", "set", plug, "netns", switch)
            _do("ip", "-n", switch, "link", "set", plug, "master", "switch")
            _do("ip", "-n", switch, "link", "set", plug, "up")
            _shape(switch, plug, receives or megabits)
            _bring_up(each, receives if receives and end >= count - fast else megabits)
        yield machines
    finally:
        _remove(machines)
        subprocess.run(["ip", "netns", "del", switch], check=False, capture_output=True)


def _bring_up(machine: Machine, megabits: int) -> None:
    inside = ("ip", "-n", machine.namespace)
    _do(*inside, "addr", "add", f"{machine.address}/24", "dev", machine.device)
    _do(*inside, "link", "set", machine.device, "up")
    _do(*inside, "link", "set", "lo", "up")
    machine.memory.mkdir()
    _do("mount", "-t", "tmpfs", "tmpfs", str(machine.memory))
    _shape(machine.namespace, machine.device, megabits)


def _remove(machines: Sequence[Machine]) -> None:
    for each in machines:
        subprocess.run(["ip", "netns", "del", each.namespace], check=False, capture_output=True)
        if each.memory.exists():
            subprocess.run(["umount", "--lazy", str(each.memory)], check=False, capture_output=True)
            each.memory.rmdir()


def _shape(namespace: str, device: str, megabits: int) -> None:
    rate = ("root", "tbf", "rate", f"{megabits}mbit", "burst", "256kb", "latency", "50ms")
    _do("ip", "netns", "exec", namespace, "tc", "qdisc", "add", "dev", device, *rate)


def _do(*command: str) -> None:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()} (namespaces and links need root)")
