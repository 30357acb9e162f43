"""The devices and ports that tasks get on one node, and the holdings that its free resources still allow."""

from __future__ import annotations

from typing import Any

import pytest

from oarlock.scheduler.placement import freenodes, shapes
from oarlock.spec import holdings, plans
from oarlock.spec.cluster import nodes

GIB = 1 << 30


def free(*taken: holdings.Holding, memory: tuple[int, ...] = (80, 80, 16, 80), **more: Any) -> freenodes.FreeNode:
    """A node with four devices of these GiB; these holdings are taken."""
    devices = tuple(nodes.Device(index=i, type="h100", memory_bytes=gib * GIB) for i, gib in enumerate(memory))
    declared = {"name": "n", "capacity": holdings.Resources(8000, 32 * GIB, 4), "devices": devices, "ports": (100, 111)}
    node = nodes.Node(**{**declared, **more})
    found = freenodes.FreeNode(node, shapes.Kind(*shapes.kind_key(node)))
    for claim in taken:
        found.take(claim)
    return found


def claim(*devices: int, milli: int = 0, cpus: int = 0, memory: int = 0, ports: Any = ()) -> holdings.Holding:
    amount = holdings.Resources(cpus, memory * GIB, 0 if milli else len(devices), milli)
    return holdings.Holding(
        job="j", attempt=1, role="worker", index=0, node="n", amount=amount, devices=devices, ports=tuple(ports)
    )


def given(node: freenodes.FreeNode, count: int, **amount: int) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Return the devices and the first port of each of `count` tasks."""
    ports = amount.pop("ports", 0)
    memory = amount.pop("gpu_memory", 0) * GIB
    ask = plans.Ask(
        role="worker",
        count=count,
        min=count,
        max=count,
        amount=holdings.Resources(**amount),
        ports=ports,
        gpu_memory_bytes=memory,
    )
    found = node.claims("j", ask, shapes.shape(ask, None), range(count))
    assert [one.index for one in found] == list(range(count))
    return [(one.devices, one.ports) for one in found]


@pytest.mark.parametrize(
    ("taken", "asked", "devices"),
    [
        ([], {"gpus": 1}, [(2,), (0,), (1,), (3,)]),  # the device with least memory first
        ([], {"gpus": 2}, [(2, 0), (1, 3)]),
        ([], {"gpus": 1, "gpu_memory": 40}, [(0,), (1,), (3,)]),
        ([claim(0), claim(3, milli=100)], {"gpus": 1}, [(2,), (1,)]),
        ([], {"gpu_milli": 400}, [(2,), (2,), (0,), (0,), (1,)]),
        ([claim(3, milli=500), claim(1, milli=300)], {"gpu_milli": 250}, [(3,), (3,), (1,), (1,), (2,)]),
        ([claim(3, milli=800)], {"gpu_milli": 250}, [(2,)]),
        ([], {"cpus_milli": 1000}, [(), ()]),
    ],
)
def test_tasks_get_these_devices(
    taken: list[holdings.Holding], asked: dict[str, int], devices: list[tuple[int, ...]]
) -> None:
    assert [got for got, _ in given(free(*taken), len(devices), **asked)] == devices


@pytest.mark.parametrize(
    ("taken", "first"), [([], [100, 104, 108]), ([claim(ports=[105])], [100, 108]), ([claim(ports=[99])], [100, 104])]
)
def test_tasks_get_whole_blocks_of_free_ports(taken: list[holdings.Holding], first: list[int]) -> None:
    found = [ports for _, ports in given(free(*taken), len(first), cpus_milli=1, ports=4)]
    assert found == [tuple(range(start, start + 4)) for start in first]


def test_tasks_get_no_ports_where_each_has_an_address() -> None:
    assert given(free(ports=None), 2, cpus_milli=1, ports=4) == [((), ()), ((), ())]


@pytest.mark.parametrize(
    ("wanted", "is_free"),
    [
        (claim(1), True),
        (claim(0), False),  # taken
        (claim(3), False),  # shared
        (claim(3, milli=400), True),
        (claim(3, milli=401), False),
        (claim(1, milli=1000), True),
        (claim(0, milli=1), False),
        (claim(9), False),
        (claim(9, milli=1), False),
        (claim(cpus=6000), True),
        (claim(cpus=6001), False),
        (claim(memory=31), True),
        (claim(memory=32), False),
        (claim(ports=[104, 105]), True),
        (claim(ports=[101]), False),
        (claim(ports=[99, 104]), False),
        (claim(ports=[111, 112]), False),
    ],
)
def test_a_claim_is_free_only_as_a_whole(wanted: holdings.Holding, is_free: bool) -> None:
    node = free(claim(0, cpus=2000, memory=1, ports=[100, 101]), claim(3, milli=600))
    assert node.has(wanted) is is_free
    if is_free:
        before = node.left()
        node.take(wanted)
        node.take(wanted, -1)
        assert node.left() == before


def test_no_claim_of_ports_is_free_where_each_task_has_an_address() -> None:
    assert not free(ports=None).has(claim(ports=[104]))


def test_devices_of_other_programs_are_missing_at_the_end() -> None:
    """Which devices the other programs have is not known: the last untouched ones are left to them."""
    node = free(claim(3), taken=holdings.Resources(1000, 0, 2))
    assert sorted(node.devices) == [0]
    assert node.free == holdings.Resources(7000, 32 * GIB, 1)


def test_domains_of_a_node() -> None:
    """A node without a word about NVLink is a domain of its own."""
    node = free(domains={"rack": "r1", "zone": "z"})
    assert [node.domain(level) for level in ("node", "nvlink", "rack", "zone", "row")] == ["n", "n", "r1", "z", None]
    assert free(domains={"nvlink": "x"}).domain("nvlink") == "x"
    assert node.path() == ("z", "r1", "", "n")
