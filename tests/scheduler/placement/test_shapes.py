"""The number of tasks that fit on a node, by its free resources; and which nodes count as alike."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from oarlock.scheduler.placement import freenodes, shapes
from oarlock.spec import holdings, plans
from oarlock.spec.cluster import nodes

GIB = 1 << 30
TEAM = nodes.Taint(key="team", value="b", effect="NoSchedule", tolerable=True)
MAY = nodes.Constraints(tolerates=("team=b",))


def machine(*types: str, memory: int = 80, **more: Any) -> nodes.Node:
    """A node of 16 cores and 64 GiB with devices of these types, each with `memory` GiB."""
    devices = tuple(nodes.Device(index=i, type=kind, memory_bytes=memory * GIB) for i, kind in enumerate(types))
    capacity = holdings.Resources(16_000, 64 * GIB, len(types))
    return nodes.Node(**{"name": "n", "capacity": capacity, "devices": devices, **more})


def state(node: nodes.Node, *taken: holdings.Holding) -> shapes.State:
    free = freenodes.FreeNode(node, shapes.Kind(*shapes.kind_key(node)))
    for claim in taken:
        free.take(claim)
    return shapes.State(*free.left())


def taken(cpus: int = 0, memory: int = 0, *, devices: tuple[int, ...] = (), milli: int = 0, ports: Any = ()) -> Any:
    amount = holdings.Resources(cpus, memory * GIB, 0 if milli else len(devices), milli)
    return holdings.Holding(
        job="j", attempt=1, role="worker", index=0, node="n", amount=amount, devices=devices, ports=tuple(ports)
    )


EIGHT = machine(*["h100"] * 8)
MIXED = machine("h100", "h100", "h100", "v100")
PORTS = machine(ports=(20_000, 20_019))
BARE = machine()


@pytest.mark.parametrize(
    ("node", "held", "need", "count"),
    [
        (EIGHT, [], shapes.Shape(cpus=3000), 5),
        (EIGHT, [taken(2000)], shapes.Shape(cpus=3000), 4),
        (EIGHT, [], shapes.Shape(cpus=1000, memory=10 * GIB), 6),
        (EIGHT, [], shapes.Shape(gpus=3), 2),
        (EIGHT, [taken(devices=(0, 1, 2))], shapes.Shape(gpus=3), 1),
        (EIGHT, [], shapes.Shape(cpus=8000, gpus=1), 2),
        (EIGHT, [taken(20_000)], shapes.Shape(cpus=1000), 0),
        (EIGHT, [], shapes.Shape(), shapes.MANY),
        (MIXED, [], shapes.Shape(gpus=1, types=("h100",)), 3),
        (MIXED, [], shapes.Shape(gpus=2, types=("v100",)), 0),
        (MIXED, [], shapes.Shape(gpus=1, types=("v100", "h100")), 4),
        (MIXED, [], shapes.Shape(gpus=1, types=("a100",)), 0),
        (MIXED, [], shapes.Shape(gpus=1, gpu_memory=80 * GIB), 4),
        (MIXED, [], shapes.Shape(gpus=1, gpu_memory=81 * GIB), 0),
        (EIGHT, [], shapes.Shape(milli=400), 16),
        (EIGHT, [taken(devices=(0,), milli=500)], shapes.Shape(milli=400), 15),
        (EIGHT, [taken(devices=(0,), milli=500)], shapes.Shape(gpus=1), 7),
        (EIGHT, [taken(devices=(0,), milli=200)], shapes.Shape(milli=400, cut=True), 2),
        (EIGHT, [], shapes.Shape(milli=400, cut=True), 0),
        (EIGHT, [], shapes.Shape(milli=500, gpu_memory=40 * GIB), 16),
        (EIGHT, [], shapes.Shape(milli=250, gpu_memory=40 * GIB), 0),
        (EIGHT, [], shapes.Shape(cpus=1000, bare=True), 0),
        (BARE, [], shapes.Shape(cpus=1000, bare=True), 16),
        (PORTS, [], shapes.Shape(ports=4), 5),
        (PORTS, [], shapes.Shape(ports=6), 3),
        (PORTS, [taken(ports=range(20_003, 20_005))], shapes.Shape(ports=4), 3),
        (PORTS, [taken(ports=[20_019])], shapes.Shape(ports=6), 3),
        (PORTS, [taken(ports=[19_999])], shapes.Shape(ports=4), 5),
        (BARE, [], shapes.Shape(ports=4), shapes.MANY),
        (machine(taints=(TEAM,)), [], shapes.Shape(cpus=1000), 0),
        (machine(taints=(TEAM,)), [], shapes.Shape(cpus=1000, constraints=MAY), 16),
        (machine(lacks=("data",)), [], shapes.Shape(constraints=nodes.Constraints(claims=("data",))), 0),
        (machine(barred=("data",)), [], shapes.Shape(constraints=nodes.Constraints(claims=("data",))), 0),
    ],
)
def test_so_many_tasks_fit(node: nodes.Node, held: list[holdings.Holding], need: shapes.Shape, count: int) -> None:
    assert shapes.fit(need, state(node, *held)) == count


DEVICE = holdings.Resources(1000, gpus=1)
ASK = plans.Ask(
    role="worker", count=1, min=1, max=1, amount=DEVICE, ports=4, gpu_types=("h100", "a100"), gpu_memory_bytes=GIB
)


@pytest.mark.parametrize(
    ("more", "on", "wanted"),
    [
        ({}, None, {"gpus": 1, "types": ("h100", "a100"), "gpu_memory": GIB}),
        ({}, "a100", {"gpus": 1, "types": ("a100",), "gpu_memory": GIB}),
        ({"gpu_types": ()}, None, {"gpus": 1, "types": None, "gpu_memory": GIB}),
        (
            {"amount": holdings.Resources(1000, 0, 0, 250)},
            "h100",
            {"milli": 250, "types": ("h100",), "gpu_memory": GIB},
        ),
        ({"amount": holdings.Resources(1000)}, "h100", {}),
    ],
    ids=["any accepted type", "one type", "every type", "a share", "no device"],
)
def test_the_shape_of_a_task(more: dict[str, Any], on: str | None, wanted: dict[str, Any]) -> None:
    ask = msgspec.structs.replace(ASK, constraints=MAY, **more)
    assert shapes.shape(ask, on) == shapes.Shape(cpus=1000, ports=4, constraints=MAY, **wanted)


@pytest.mark.parametrize(
    ("other", "alike"),
    [
        (machine("h100", "v100", name="another"), True),
        (machine("h100", "v100", taints=(nodes.Taint(key="hint", effect="PreferNoSchedule", tolerable=True),)), True),
        (machine("h100", "v100", taints=(nodes.Taint(key="cordon", effect="NoSchedule"),)), True),
        (machine("h100", "v100", taints=(TEAM,)), False),
        (machine("v100", "h100"), False),
        (machine("h100", "v100", memory=40), False),
        (machine("h100", "v100", price_per_h=1.0), False),
        (machine("h100", "v100", ports=(1, 9)), False),
        (machine("h100", "v100", labels={"disk": "ssd"}), False),
        (machine("h100", "v100", lacks=("data",)), False),
        (machine("h100", "v100", barred=("data",)), False),
    ],
)
def test_machines_are_of_one_kind_where_no_gang_can_tell_them_apart(other: nodes.Node, alike: bool) -> None:
    one = machine("h100", "v100")
    assert (shapes.kind_key(one) == shapes.kind_key(other)) is alike
    keys = [shapes.Kind(*shapes.kind_key(node)).key for node in (one, other)]
    assert (keys[0] == keys[1]) is alike


def test_a_kind_has_no_more_devices_than_the_capacity_of_its_nodes_and_their_price() -> None:
    node = machine("h100", "v100", "h100", capacity=holdings.Resources(16_000, 0, 2), price_per_h=6.0)
    kind = shapes.Kind(*shapes.kind_key(node))
    assert [(group.type, group.mask) for group in kind.groups] == [("h100", 0b001), ("v100", 0b010)]
    assert kind.rate == 3.0
    assert shapes.Kind(*shapes.kind_key(machine(price_per_h=8.0))).rate == 0.5, "of a core"


def test_gangs_use_closed_then_cheap_then_full_nodes_first() -> None:
    """A gang that may use a tainted node leaves the others to gangs that may not, and so on down the list."""
    states = {
        "tainted": state(machine("h100", taints=(TEAM,), price_per_h=9.0)),
        "cheap and full": state(machine("h100", price_per_h=1.0), taken(devices=(0,))),
        "cheap and half full": state(machine("h100", price_per_h=1.0), taken(devices=(0,), milli=500)),
        "cheap with few cores": state(machine("h100", price_per_h=1.0), taken(8000)),
        "cheap with little memory": state(machine("h100", price_per_h=1.0), taken(memory=32)),
        "cheap": state(machine("h100", price_per_h=1.0)),
        "dear and full": state(machine("h100", price_per_h=2.0), taken(devices=(0,))),
    }
    assert sorted(states, key=lambda name: states[name].key) == list(states)
