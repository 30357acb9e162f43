"""The free space now and later: which part of a promised place is taken at once, and which part is still coming."""

from __future__ import annotations

import pytest

from oarlock.scheduler.placement import freespace, timelines
from oarlock.spec import holdings, plans
from oarlock.spec.cluster import nodes

DEVICES = tuple(nodes.Device(index=index, type="gpu", memory_bytes=1 << 30) for index in range(2))
NODE = nodes.Node(name="a", capacity=holdings.Resources(8000, 8 << 30, 2), devices=DEVICES, ports=(100, 119))


def claim(
    job: str,
    cpus: int = 0,
    devices: tuple[int, ...] = (),
    *,
    milli: int = 0,
    ports: tuple[int, ...] = (),
    memory: int = 0,
) -> holdings.Holding:
    """Return the holding of a task on the node: whole devices, or a share of one."""
    amount = holdings.Resources(cpus * 1000, memory << 30, 0 if milli else len(devices), milli)
    return holdings.Holding(
        job=job, attempt=1, role="worker", index=0, node="a", amount=amount, devices=devices, ports=ports
    )


def stopping(*claims: holdings.Holding) -> plans.Running:
    ask = plans.Ask(role="worker", count=1, min=1, max=1, amount=claims[0].amount)
    gang = plans.Gang(job="old", name="old", pool="default", asks=(ask,), submitted_at=0.0)
    return plans.Running(gang=gang, holdings=claims, started_at=0.0, stopping=True)


def timeline(*going: holdings.Holding, staying: tuple[holdings.Holding, ...] = ()) -> timelines.Timeline:
    """Return the timeline of a node on which one gang is being stopped."""
    now, later = freespace.FreeSpace([NODE], [*going, *staying]), freespace.FreeSpace([NODE], staying)
    return timelines.Timeline(now, later, [stopping(*going)] if going else [])


def free(space: freespace.FreeSpace) -> tuple[int, int, list[int], list[int]]:
    """Return the free CPUs, GiB, untouched devices, and thousandths of each device."""
    node = space.nodes["a"]
    return node.cpus // 1000, node.memory >> 30, sorted(node.devices), [node.shares(device) for device in range(2)]


OLD = claim("old", 3, (0,), ports=(100, 101), memory=2)

PARTS = {
    "nothing of it is free": (claim("new", 3, (0,)), (5, 6, [1], [0, 1000])),
    "the device that is free": (claim("new", 0, (0, 1)), (5, 6, [], [0, 0])),
    "the CPUs beyond those that come": (claim("new", 7, (0,)), (1, 6, [1], [0, 1000])),
    "fewer CPUs than come": (claim("new", 2, (0,)), (5, 6, [1], [0, 1000])),
    "the memory beyond that which comes": (claim("new", memory=3), (5, 5, [1], [0, 1000])),
    "no more than is free": (claim("new", 9, memory=9), (0, 0, [1], [0, 1000])),
    "a share of the free device": (claim("new", 0, (1,), milli=300), (5, 6, [], [0, 700])),
    "a share of the device that comes": (claim("new", 0, (0,), milli=300), (5, 6, [1], [0, 1000])),
}


@pytest.mark.parametrize(("promised", "left"), PARTS.values(), ids=PARTS.keys())
def test_the_part_of_a_promised_place_that_is_free_is_taken_now(
    promised: holdings.Holding, left: tuple[object, ...]
) -> None:
    """3 of 8 CPUs, 2 of 8 GiB and device 0 are coming. The rest is free, and a later gang must not take the promise."""
    found = timeline(OLD)
    found.promise((promised,))
    assert free(found.now) == left


@pytest.mark.parametrize("promised", [one for one, _ in PARTS.values()], ids=PARTS.keys())
def test_a_promise_that_is_taken_back_leaves_both_spaces_as_they_were(promised: holdings.Holding) -> None:
    found = timeline(OLD)
    before = [free(space) for space in found.spaces]
    claims = (promised,)
    found.promise(claims)
    assert free(found.later) != before[1]
    found.withdraw(claims)
    assert [free(space) for space in found.spaces] == before


def test_the_ports_that_are_free_are_taken_now() -> None:
    found = timeline(OLD)
    found.promise((claim("new", ports=(101, 102)),))
    assert sorted(found.now.nodes["a"].ports_taken) == [100, 101, 102]
    assert sorted(found.later.nodes["a"].ports_taken) == [101, 102]


def test_a_device_that_becomes_free_is_promised_once() -> None:
    """3 CPUs and 2 GiB come: the first promise needs no free ones, the second one has only free ones."""
    found = timeline(OLD)
    found.promise((claim("first", 2, memory=1),))
    assert free(found.now)[:2] == (5, 6)
    found.promise((claim("second", 2, memory=2),))
    assert free(found.now)[:2] == (4, 5)
    found.promise((claim("third", 1, memory=1),))
    assert free(found.now)[:2] == (3, 4)


def test_a_share_that_comes_is_promised_once() -> None:
    """Half of device 0 comes, 200 thousandths stay, and 300 are free."""
    found = timeline(claim("old", 0, (0,), milli=500), staying=(claim("stays", 0, (0,), milli=200),))
    assert free(found.now)[3][0] == 300
    found.promise((claim("first", 0, (0,), milli=400),))
    assert free(found.now)[3][0] == 300, "all of it comes"
    found.promise((claim("second", 0, (0,), milli=300),))
    assert free(found.now)[3][0] == 100, "100 of it come, and 200 are free"
    found.promise((claim("third", 0, (0,), milli=100),))
    assert free(found.now)[3][0] == 0


def test_a_whole_device_is_promised_whose_shares_go() -> None:
    found = timeline(claim("old", 0, (0,), milli=600))
    found.promise((claim("new", 0, (0,)),))
    assert free(found.now)[3] == [0, 1000], "the free part of the device must not be given to another gang"


def test_a_gang_that_this_plan_stops_frees_its_place_later() -> None:
    found = timeline(OLD, staying=(claim("stays", 2, (1,)),))
    assert [free(space)[2] for space in found.spaces] == [[], [0]]
    found.clear((claim("stays", 2, (1,)),))
    assert [free(space)[2] for space in found.spaces] == [[], [0, 1]]
    found.promise((claim("new", 8, (0, 1)),))
    assert free(found.now)[0] == 0, "3 CPUs are free, and 5 come"


def test_a_launch_takes_its_place_now_and_later() -> None:
    found = timeline(OLD)
    found.launch((claim("new", 1, (1,)),))
    assert [(free(space)[0], free(space)[2]) for space in found.spaces] == [(4, []), (7, [0])]


def test_one_space_is_both_where_no_gang_is_stopped() -> None:
    space = freespace.FreeSpace([NODE])
    found = timelines.Timeline(space, space, [])
    assert found.spaces == [space]
    claims = (claim("new", 1, (1,)),)
    found.promise(claims)
    assert free(space) == (7, 8, [0], [1000, 0])
    found.withdraw(claims)
    assert free(space) == (8, 8, [0, 1], [1000, 1000])


def test_a_place_on_a_node_that_is_gone_takes_nothing() -> None:
    found = timelines.Returning()
    elsewhere = holdings.Holding(job="new", attempt=1, role="worker", index=0, node="gone", amount=OLD.amount)
    assert found.keep((elsewhere,), freespace.FreeSpace([NODE])) == ()
