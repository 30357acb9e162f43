"""The rows of `oarlock nodes`: the parts that others take, and nodes that take no new tasks."""

from __future__ import annotations

import pytest

from oarlock.display.tables import nodecells
from oarlock.spec import bodies, holdings
from oarlock.spec.cluster.nodes import Device, Node, Taint

GIB = 1 << 30


def node(**more: object) -> Node:
    capacity = holdings.Resources(8000, 64 * GIB, 2)
    devices = tuple(Device(index=index, type="a100") for index in range(2))
    return Node(name="n", capacity=capacity, devices=devices, **more)


@pytest.mark.parametrize(
    ("machine", "row"),
    [
        (node(), ["n", "ready", "1/8", "0 B / 64 GiB", "1/2", "", "a100", ""]),
        (node(ready=False, reason="node lost"), ["n", "node lost", "1/8", "0 B / 64 GiB", "1/2", "", "a100", ""]),
        (
            node(taken=holdings.Resources(1500, 2 * GIB, 1)),
            ["n", "ready", "1/8", "0 B / 64 GiB", "1/2", "1.5 CPUs, 2 GiB, 1 GPU", "a100", ""],
        ),
        (
            node(taints=(Taint(key="maintenance", value="today", effect="NoSchedule"),)),
            ["n", "closed: maintenance=today:NoSchedule", "1/8", "0 B / 64 GiB", "1/2", "", "a100", ""],
        ),
        (
            node(taints=(Taint(key="busy", effect="PreferNoSchedule"),)),
            ["n", "ready", "1/8", "0 B / 64 GiB", "1/2", "", "a100", ""],
        ),
    ],
    ids=["plain", "lost", "shared", "tainted", "hint"],
)
def test_a_row_says_the_state_and_the_amounts_of_each_holder(machine: Node, row: list[str]) -> None:
    assert nodecells.row(bodies.NodeState(machine, holdings.Resources(1000, 0, 1), ())) == row
