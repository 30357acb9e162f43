"""Entitlements of pools: known answers, and properties over random trees.

The reference is written from the definition alone, and differently: from a pool down to its children by recursion, the
water's level found by halving an interval.
"""

from __future__ import annotations

import random

import hypothesis
import pytest
from hypothesis import strategies as st
from tests import examples

from oarlock.scheduler.pools import entitlement
from oarlock.spec import holdings, plans, refusals
from oarlock.spec.cluster import nodes, pools

INFINITE = float("inf")


def pool(name: str, parent: str | None = None, *, static: bool = False, **given: float) -> pools.Pool:
    """`reserve`, `limit` and `share` are of GPUs."""
    amounts = {field: {"gpus": float(given[field])} for field in ("reserve", "limit", "share") if field in given}
    return pools.Pool(name=name, parent=parent, static=("gpus",) if static else (), **amounts)


def gpus(declared: list[pools.Pool], capacity: float, **demand: float) -> dict[str, float]:
    wanted = {name: {"gpus": float(value)} for name, value in demand.items()}
    found = entitlement.divide(declared, {"gpus": float(capacity)}, wanted)
    return {name: entitled["gpus"] for name, entitled in found.items()}


THREE = [pool(name, reserve=20, limit=100, share=1) for name in "abc"]

KNOWN = [
    # Peloton's: reservation 20, limit 100, share 1 each
    ("one wants less", THREE, 100, {"a": 10, "b": 80, "c": 80}, {"a": 10, "b": 45, "c": 45}),
    ("all want more", THREE, 100, {"a": 50, "b": 80, "c": 80}, {"a": 100 / 3, "b": 100 / 3, "c": 100 / 3}),
    ("no demand", [*THREE, pool("default", share=0)], 90, {}, {"a": 30, "b": 30, "c": 30}),
    # nodes were lost: 60 are reserved, 30 are there
    ("lost nodes, all want", THREE, 30, {"a": 80, "b": 80, "c": 80}, {"a": 10, "b": 10, "c": 10}),
    ("lost nodes, one wants little", THREE, 30, {"a": 4, "b": 80, "c": 80}, {"a": 4, "b": 13, "c": 13}),
    (
        "lost nodes, in proportion to the reservations",
        [pool("a", reserve=30), pool("b", reserve=10)],
        20,
        {"a": 99, "b": 99},
        {"a": 15, "b": 5},
    ),
    ("no node", THREE, 0, {"a": 80}, {"a": 0, "b": 0, "c": 0}),
    ("shares", [pool("a", share=3), pool("b", share=1)], 8, {"a": 8, "b": 8}, {"a": 6, "b": 2}),
    ("a share without a demand is lent", [pool("a", share=3), pool("b")], 8, {"b": 8}, {"a": 0, "b": 8}),
    ("no share", [pool("a", share=0, reserve=2), pool("b")], 8, {"a": 8, "b": 8}, {"a": 2, "b": 6}),
    ("a limit", [pool("a", limit=2), pool("b")], 8, {"a": 8, "b": 8}, {"a": 2, "b": 6}),
    (
        "a limit holds for the part without demand",
        [pool("a", limit=2), pool("default", limit=3)],
        8,
        {},
        {"a": 2, "default": 3},
    ),
    ("elastic: lent", [pool("a", reserve=6), pool("b")], 8, {"b": 8}, {"a": 0, "b": 8}),
    ("static: kept", [pool("a", reserve=6, static=True), pool("b")], 8, {"b": 8}, {"a": 6, "b": 2}),
    (
        "static below an elastic parent: kept too",
        [pool("p", reserve=6), pool("a", "p", reserve=4, static=True), pool("b")],
        8,
        {"b": 8},
        {"p": 4, "a": 4, "b": 4},
    ),
    (
        "from the root, level by level",
        [
            pool("research", reserve=8, limit=12),
            pool("vision", "research", reserve=6),
            pool("speech", "research", reserve=2, limit=3),
            pool("product"),
        ],
        16,
        {"vision": 2, "speech": 9, "product": 99},
        {"research": 5, "vision": 2, "speech": 3, "product": 11},
    ),
    ("the default pool, not declared", [], 8, {"default": 3}, {"default": 8}),
    ("beside others it has a share", [pool("a")], 8, {"a": 8, "default": 8}, {"a": 4, "default": 4}),
    ("a pool that has gone", [pool("a", reserve=4)], 8, {"a": 8, "gone": 8}, {"a": 6, "gone": 2}),
]


@pytest.mark.parametrize(
    ("declared", "capacity", "demand", "expected"), [case[1:] for case in KNOWN], ids=[case[0] for case in KNOWN]
)
def test_known_answers(
    declared: list[pools.Pool], capacity: float, demand: dict[str, float], expected: dict[str, float]
) -> None:
    found = gpus(declared, capacity, **demand)
    assert {name: found[name] for name in expected} == pytest.approx(expected)


def test_a_pool_with_its_demand_met_gets_exactly_that_or_more() -> None:
    """5.7 CPUs are 5.7 CPUs, although 1.1 and the 4.6 that are missing there are a little less."""
    assert 1.1 + (5.7 - 1.1) < 5.7
    declared = [pools.Pool(name="a", reserve={"cpus": 1.1}), pools.Pool(name="b", limit={"cpus": 2.0})]
    found = entitlement.divide(declared, {"cpus": 7.7}, {"a": {"cpus": 5.7}, "b": {"cpus": 9.0}})
    assert found["a"]["cpus"] == 5.7
    assert found["b"]["cpus"] == 2.0


def test_a_resource_that_a_pool_does_not_ask_for_is_its_neighbours() -> None:
    declared = [pools.Pool(name="a"), pools.Pool(name="b"), pools.Pool(name="default", share={"gpus": 0.0})]
    found = entitlement.divide(declared, {"gpus": 4.0}, {"a": {"cpus": 1.0}, "b": {"gpus": 4.0}})
    assert (found["a"]["gpus"], found["b"]["gpus"]) == (0, 4)


def test_pools_that_could_never_be_stored_are_divided_too() -> None:
    declared = [pool("a", "b", reserve=1), pool("b", "a"), pool("c", "nowhere"), pool("d", "a"), pool("e", "e")]
    found = gpus(declared, 8, c=4, d=4, e=4)
    assert sum(found[name] for name in ("a", "b", "c", "default", "e")) == pytest.approx(8)
    assert found["d"] == found["a"], "d lies below a"


class TestReserved:
    def kept(self, declared: list[pools.Pool], capacity: float) -> dict[str, float]:
        found = entitlement.reserved(declared, {"gpus": float(capacity)})
        return {name: amounts["gpus"] for name, amounts in found.items()}

    def test_all_is_the_default_pool_s_before_there_is_another(self) -> None:
        assert self.kept([], 8) == {"default": 8}

    def test_the_default_pool_has_the_unreserved_rest(self) -> None:
        assert self.kept([pool("a", reserve=5), pool("b")], 8) == {"a": 5, "b": 0, "default": 3}
        assert self.kept([pool("a", reserve=5), pool("default", limit=2)], 8) == {"a": 5, "default": 2}

    def test_unless_it_has_a_reservation(self) -> None:
        assert self.kept([pool("a", reserve=5), pool("default", reserve=1)], 8) == {"a": 5, "default": 1}
        assert self.kept([pool("default", reserve=0)], 8) == {"default": 0}

    def test_leaves_alone_have_jobs(self) -> None:
        tree = [pool("a", reserve=6), pool("b", "a", reserve=4), pool("c", "a", reserve=2)]
        assert self.kept(tree, 8) == {"b": 4, "c": 2, "default": 2}

    def test_lost_nodes_are_missed_in_proportion_on_every_level(self) -> None:
        tree = [pool("a", reserve=6), pool("b", "a", reserve=4), pool("c", "a", reserve=2), pool("d", reserve=2)]
        assert self.kept(tree, 4) == pytest.approx({"b": 2, "c": 1, "d": 1, "default": 0})

    def test_a_resource_without_reservations_restricts_no_pool_that_reserves_another(self) -> None:
        found = entitlement.reserved(
            [pool("a", reserve=2), pool("b"), pools.Pool(name="c", reserve={"gpus": 1}, limit={"cpus": 8})],
            {"gpus": 4.0, "cpus": 32.0},
        )
        assert found == {
            "a": {"gpus": 2, "cpus": 32},
            "b": {"gpus": 0, "cpus": 0},
            "c": {"gpus": 1, "cpus": 8},
            "default": {"gpus": 1, "cpus": 32},
        }


LAB = [
    pool("lab", reserve=6, static=True),
    pool("vision", "lab", reserve=4, static=True),
    pool("speech", "lab", reserve=2),
    pool("product", reserve=3),
]


class TestWithheld:
    """A static reservation cannot be borrowed."""

    def kept(self, borrower: str, **held: float) -> float:
        used = {name: {"gpus": float(value)} for name, value in held.items()}
        return entitlement.withheld(LAB, {"gpus": 10.0, "cpus": 9.0}, used, borrower)["gpus"]

    def test_all_of_it_while_it_is_idle(self) -> None:
        assert self.kept("product") == self.kept("default") == self.kept("gone") == 6

    def test_the_used_part_is_not_kept_twice(self) -> None:
        assert self.kept("product", lab=1, speech=1) == 5
        assert self.kept("product", lab=5, vision=5) == 1
        assert self.kept("product", lab=7, vision=7) == 0
        assert self.kept("product", lab=4, speech=4) == 4, "vision's own is kept, whichever pool fills the lab"

    def test_a_pool_below_may_use_the_rest_of_its_neighbours(self) -> None:
        assert self.kept("speech") == 4
        assert self.kept("vision") == 0

    def test_a_part_of_lost_nodes_is_kept(self) -> None:
        assert entitlement.withheld(LAB, {"gpus": 3.0}, {}, "product") == pytest.approx({"gpus": 2})

    def test_where_nothing_is_static_nothing_is(self) -> None:
        assert entitlement.withheld([pool("a", reserve=4)], {"gpus": 8.0}, {}, "default") == {}
        assert entitlement.withheld([pool("default", static=True)], {"gpus": 8.0}, {}, "a") == {"gpus": 0}


def test_shortages_name_resources_with_more_reserved_than_there_is() -> None:
    tree = [pool("a", reserve=20), pool("b", "a", reserve=10), pool("c", reserve=4)]
    assert entitlement.shortages(tree, {"gpus": 16.0, "cpus": 0.0}) == (("gpus", 24, 16),)
    assert entitlement.shortages(tree, {"gpus": 24.0}) == ()


def test_demand_is_the_sum_of_gangs_at_their_largest() -> None:
    ask = plans.Ask(role="worker", count=2, min=1, max=4, amount=holdings.Resources(500, 1 << 30, 0, 500))
    gang = plans.Gang(job="j", name="j", pool="a", asks=(ask,), submitted_at=0.0)
    never = refusals.Refusal(code=refusals.Code.NEVER_FITS, message="")
    waiting = [gang, plans.Gang(job="n", name="n", pool="a", asks=(ask,), submitted_at=0.0, refusal=never)]
    running = [
        plans.Running(gang=plans.Gang(job="r", name="r", pool="b", asks=(ask,), submitted_at=0.0), holdings=(), **more)
        for more in (
            {"started_at": 0.0},
            {"started_at": 0.0, "stopping": True},
            {"started_at": 0.0, "stopping": True, "returns": True},
        )
    ]
    assert entitlement.demand(waiting, running) == {
        "a": {"gpus": 2.0, "cpus": 2.0, "memory": float(4 << 30)},
        "b": {"gpus": 4.0, "cpus": 4.0, "memory": float(8 << 30)},
    }


def test_capacity_is_that_of_nodes_that_are_ready() -> None:
    found = [
        nodes.Node(name=name, capacity=holdings.Resources(4000, 1 << 30, 2), ready=name != "c")
        for name in ("a", "b", "c")
    ]
    assert entitlement.capacity(found) == {"gpus": 4.0, "cpus": 8.0, "memory": float(2 << 30)}


# The reference


def poured(amount: float, caps: dict[str, float], widths: dict[str, float]) -> dict[str, float]:
    """`min(cap, level * width)` each, at the level at which all together are `amount`, or all are full."""

    def at(level: float) -> dict[str, float]:
        return {name: min(cap, level * widths[name]) for name, cap in caps.items()}

    low, high = 0.0, 1e12
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if sum(at(middle).values()) <= amount else (low, middle)
    return at(low)


def reference(declared: list[pools.Pool], amount: float, demand: dict[str, float]) -> dict[str, float]:
    known = {one.name: one for one in declared}
    known |= {name: pools.Pool(name=name) for name in {*demand, "default"} - known.keys()}
    below = {name: [one.name for one in known.values() if one.parent == name] for name in [None, *known]}
    limit = {name: one.limit.get("gpus", INFINITE) for name, one in known.items()}
    reserve = {name: one.reserve.get("gpus", 0.0) for name, one in known.items()}

    def wants(name: str) -> float:
        own = demand.get(name, 0.0) + sum(wants(child) for child in below[name])
        return min(limit[name], max(own, reserve[name] if "gpus" in known[name].static else 0.0))

    entitled: dict[str, float] = {}

    def divide(parent: str | None, amount: float) -> None:
        children = below[parent]
        share = {name: known[name].share.get("gpus", 1.0) for name in children}
        first = poured(
            amount,
            {name: min(wants(name), reserve[name]) for name in children},
            {name: reserve[name] for name in children},
        )
        left = amount - sum(first.values())
        second = poured(left, {name: wants(name) - first[name] for name in children}, share)
        left -= sum(second.values())
        both = {name: first[name] + second[name] for name in children}
        third = poured(left, {name: limit[name] - both[name] for name in children}, share)
        for name in children:
            entitled[name] = both[name] + third[name]
            divide(name, entitled[name])

    divide(None, amount)
    return entitled


@st.composite
def trees(draw: st.DrawFn) -> list[pools.Pool]:
    """Trees that can be declared: reservations within the parent's and the limit, limits within the parent's."""
    found: list[pools.Pool] = []
    spare: dict[str | None, float] = {None: 200.0}
    limits: dict[str | None, float] = {None: INFINITE}
    for number in range(draw(st.integers(0, 8))):
        name = f"p{number}" if number else draw(st.sampled_from(["p0", "default"]))
        parent = draw(st.sampled_from([None, *(one.name for one in found if one.name != "default")]))
        reserve = draw(st.sampled_from([0.0, 0.0, 1.0, 2.5, 7.0, 20.0]))
        reserve = min(reserve, spare[parent], limits[parent])
        limit = draw(st.sampled_from([INFINITE, INFINITE, 3.0, 10.0, 50.0]))
        limit = max(reserve, min(limit, limits[parent]))
        spare[parent] -= reserve
        spare[name], limits[name] = reserve, limit
        found.append(
            pool(
                name,
                parent,
                reserve=reserve,
                share=draw(st.sampled_from([0.0, 0.5, 1.0, 1.0, 3.0])),
                static=draw(st.booleans()),
                **({"limit": limit} if limit < INFINITE else {}),
            )
        )
    return found


AMOUNTS = st.sampled_from([0.0, 0.5, 1.0, 3.0, 8.0, 10.0, 33.3, 64.0, 100.0, 1000.0])


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[pools.Pool], float, dict[str, float]]:
    declared = draw(trees())
    parents = {one.parent for one in declared}
    leaves = [one.name for one in declared if one.name not in parents] + ["default", "gone"]
    return declared, draw(AMOUNTS), {name: draw(AMOUNTS) for name in leaves if draw(st.booleans())}


@hypothesis.settings(max_examples=examples.at_most(400), deadline=None)
@hypothesis.given(cases())
def test_it_equals_the_reference(case: tuple[list[pools.Pool], float, dict[str, float]]) -> None:
    declared, capacity, demand = case
    assert gpus(declared, capacity, **demand) == pytest.approx(reference(declared, capacity, demand), abs=1e-6)


@hypothesis.settings(max_examples=examples.at_most(200), deadline=None)
@hypothesis.given(cases())
def test_sums_are_within_and_limits_are_kept(case: tuple[list[pools.Pool], float, dict[str, float]]) -> None:
    declared, capacity, demand = case
    found = gpus(declared, capacity, **demand)
    parents: dict[str | None, list[str]] = {}
    for name in found:
        parents.setdefault(next((one.parent for one in declared if one.name == name), None), []).append(name)
    for parent, children in parents.items():
        above = capacity if parent is None else found[parent]
        assert sum(found[name] for name in children) <= above * (1 + 1e-8)
    for one in declared:
        assert 0 <= found[one.name] <= one.limit.get("gpus", INFINITE)


@hypothesis.settings(max_examples=examples.at_most(200), deadline=None)
@hypothesis.given(cases())
def test_reservations_that_are_wanted_come_first(case: tuple[list[pools.Pool], float, dict[str, float]]) -> None:
    """If all reservations can be met, demand up to a reservation is met, and a static one without demand too."""
    declared, capacity, demand = case
    hypothesis.assume(not entitlement.shortages(declared, {"gpus": capacity}))
    found = gpus(declared, capacity, **demand)
    for one in declared:
        if one.name in demand or one.static:
            kept = one.reserve["gpus"] if one.static else min(one.reserve["gpus"], demand[one.name])
            assert found[one.name] >= kept * (1 - 1e-8)


@hypothesis.settings(max_examples=examples.at_most(200), deadline=None)
@hypothesis.given(cases(), st.sampled_from([0.5, 2.0, 30.0]), st.data())
def test_more_demand_gives_no_less(
    case: tuple[list[pools.Pool], float, dict[str, float]], more: float, data: st.DataObject
) -> None:
    declared, capacity, demand = case
    hypothesis.assume(demand)
    name = data.draw(st.sampled_from(sorted(demand)))
    before = gpus(declared, capacity, **demand)
    after = gpus(declared, capacity, **{**demand, name: demand[name] + more})
    assert after[name] >= before[name] - 1e-6


@hypothesis.settings(max_examples=examples.at_most(100), deadline=None)
@hypothesis.given(cases(), st.randoms())
def test_order_changes_nothing(case: tuple[list[pools.Pool], float, dict[str, float]], chance: random.Random) -> None:
    declared, capacity, demand = case
    shuffled = list(declared)
    chance.shuffle(shuffled)
    backwards = dict(reversed(demand.items()))
    assert gpus(shuffled, capacity, **backwards) == gpus(declared, capacity, **demand)
    assert entitlement.reserved(shuffled, {"gpus": capacity}) == entitlement.reserved(declared, {"gpus": capacity})


def test_not_even_the_last_digit_depends_on_the_order() -> None:
    """Many pools, with amounts that have exact sums."""
    declared = [pool(f"p{number}", reserve=number / 7, share=1 + number / 3) for number in range(40)]
    demand = {f"p{number}": number / 3 + 0.1 for number in range(40)}
    assert sum(demand.values()) != sum(reversed(demand.values()))
    expected = gpus(declared, 150, **demand)
    for seed in range(20):
        random.Random(seed).shuffle(declared)
        assert gpus(declared, 150, **demand) == expected


@hypothesis.settings(max_examples=examples.at_most(200), deadline=None)
@hypothesis.given(trees(), AMOUNTS)
def test_reservations_are_met(declared: list[pools.Pool], capacity: float) -> None:
    kept = entitlement.reserved(declared, {"gpus": capacity})
    scarce = any("gpus" in one.reserve for one in declared)
    if scarce or not declared:
        assert sum(amounts["gpus"] for amounts in kept.values()) <= capacity * (1 + 1e-8)
    for one in declared:
        if one.name in kept:
            assert kept[one.name]["gpus"] <= max(one.reserve["gpus"], 0.0) * (1 + 1e-8)


def test_reservations_that_just_fill_the_cluster_are_met_to_the_last_digit() -> None:
    """As floating-point numbers, 0.1 and 0.2 are together more than 0.3."""
    declared = [pool("a", reserve=0.1), pool("b", reserve=0.2), pool("default", share=0)]
    assert gpus(declared, 0.3, a=0.1, b=0.2) == {"a": 0.1, "b": 0.2, "default": 0.0}
