"""Connections between the workers of an elastic job that break while all the workers live."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from bench.train import links
from tests.train import machines as miniature
from tests.train.rounds import counting as counts
from tests.train.rounds import gang


@pytest.fixture
def machines() -> Iterator[tuple[links.Machine, ...]]:
    with miniature.linked() as found:
        yield found


def count_there(folder: Path, where: dict[str, links.Machine], pause_s: float, ballast: int) -> None:
    """Train on the machine of this member. The threads of gloo are made later, and so are there too."""
    machine = where[folder.name]
    os.environ["GLOO_SOCKET_IFNAME"] = machine.device
    miniature.enter(machine)
    counts.count(folder, pause_s, ballast)


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
        miniature.put(machines[1], up=False)
        made.meet_again(names)
        before = {name: counts.reached(made, name) for name in names}
        miniature.put(machines[1], up=True)
        made.wait(lambda: all(counts.reached(made, name) > before[name] + 3 for name in names))
        counts.end(made, names, losses=1)
    finally:
        made.close()
