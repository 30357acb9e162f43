"""Connections between the workers of an elastic job that break while all the workers live."""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from bench.train import links
from tests import needs
from tests.train.rounds import counting as counts
from tests.train.rounds import gang

NEW_NETWORK = 0x40000000  # CLONE_NEWNET


@pytest.fixture
def machines() -> Iterator[tuple[links.Machine, ...]]:
    made = links.link(1000)
    try:
        found = made.__enter__()
    except (RuntimeError, OSError) as cause:
        needs.skip("network namespaces", str(cause))
    try:
        yield found
    finally:
        made.__exit__(None, None, None)


def count_there(folder: Path, where: dict[str, links.Machine], pause_s: float, ballast: int) -> None:
    """Train on the machine of this member. The threads of gloo are made later, and so are there too."""
    machine = where[folder.name]
    os.environ["GLOO_SOCKET_IFNAME"] = machine.device
    namespace = os.open(f"/run/netns/{machine.namespace}", os.O_RDONLY)
    if ctypes.CDLL(None, use_errno=True).setns(namespace, NEW_NETWORK):
        raise OSError(ctypes.get_errno(), "setns")
    os.close(namespace)
    counts.count(folder, pause_s, ballast)


def put(machine: links.Machine, *, up: bool) -> None:
    state = "up" if up else "down"
    subprocess.run(["ip", "-n", machine.namespace, "link", "set", machine.device, state], check=True)


@pytest.mark.long
@pytest.mark.parametrize("ballast", [0, 500_000], ids=["small", "large"])
def test_a_link_that_is_cut_and_healed_costs_a_step(
    tmp_path: Path, machines: tuple[links.Machine, ...], ballast: int
) -> None:
    """The members of both ends notice that, without a word of the kernel, and meet again when the link is whole."""
    where = {"a": machines[0], "b": machines[1], "c": machines[0]}
    names = list(where)
    made = gang.Gang(tmp_path, count_there, where, 0.01, ballast)
    made.addresses = {name: machine.address for name, machine in where.items()}
    try:
        made.start(names)
        made.wait(lambda: all(counts.reached(made, name) > 3 for name in names))
        put(machines[1], up=False)
        made.meet_again(names)
        before = {name: counts.reached(made, name) for name in names}
        put(machines[1], up=True)
        made.wait(lambda: all(counts.reached(made, name) > before[name] + 3 for name in names))
        counts.end(made, names, losses=1)
    finally:
        made.close()
