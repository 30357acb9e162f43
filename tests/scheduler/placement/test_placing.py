"""Every place that is found is valid; one is found whenever it exists; and it is the best by the documented rules."""

from __future__ import annotations

import hypothesis
import msgspec
import pytest
from hypothesis import strategies as st
from tests import examples
from tests.scheduler import clusters, reference

from oarlock.scheduler.placement import freespace, packing, placing
from oarlock.spec import holdings, jobfile, plans
from oarlock.spec.cluster import nodes

PACK, SPREAD = jobfile.Placement.PACK, jobfile.Placement.SPREAD


@st.composite
def situations(draw: st.DrawFn, roles: int = 1) -> tuple[list[nodes.Node], list[holdings.Holding], plans.Gang]:
    of = draw(clusters.clusters())
    return of, draw(clusters.held(of)), draw(clusters.gangs(roles=roles))


@hypothesis.settings(max_examples=examples.at_most(250))
@hypothesis.given(situations(), st.frozensets(st.sampled_from(["n0", "n1", "n2"])))
def test_a_gang_with_one_ask_is_placed_whenever_it_fits(situation, keep) -> None:
    of, held, gang = situation
    claims = placing.place(gang, freespace.FreeSpace(of, held), keep=keep)
    cluster = reference.Cluster(of, held)
    assert (claims is not None) == cluster.fits(gang, keep)
    if claims is not None:
        cluster.check(gang, gang.wanted, claims)
        assert not keep & {claim.node for claim in claims}


@hypothesis.settings(max_examples=examples.at_most(250))
@hypothesis.given(situations(roles=2))
def test_it_fits_where_there_is_a_place_for_it(situation) -> None:
    of, held, gang = situation
    space = freespace.FreeSpace(of, held)
    for size in (gang.smallest, gang.wanted, gang.largest):
        assert placing.fits(gang, space, size) == (placing.place(gang, space, size) is not None)


@hypothesis.settings(max_examples=examples.at_most(250))
@hypothesis.given(situations(roles=3))
def test_a_gang_with_several_asks_is_placed_rightly(situation) -> None:
    of, held, gang = situation
    space = freespace.FreeSpace(of, held)
    free = space.free()
    claims = placing.place(gang, space)
    assert space.free() == free
    if claims is not None:
        reference.Cluster(of, held).check(gang, gang.wanted, claims)
        assert space.holds(claims, gang.constraints)
    assert placing.most(gang, space) <= len(gang.tasks)


@hypothesis.settings(max_examples=examples.at_most(120))
@hypothesis.given(situations())
def test_packed_takes_the_fewest_nodes(situation) -> None:
    """One type of GPU if one suffices, nodes without GPUs if those suffice, and its own domain if it is in one."""
    of, held, gang = situation
    gang = msgspec.structs.replace(gang, placement=PACK)
    claims = placing.place(gang, freespace.FreeSpace(of, held))
    hypothesis.assume(claims)
    by_name = {node.name: node for node in of}
    used = {claim.node for claim in claims}
    types = tuple({d.type for c in claims for d in by_name[c.node].devices if d.index in c.devices})
    among = {node.name for node in of}
    if not types:  # it stays off nodes with GPUs where it can
        bare = {node.name for node in of if not node.devices}
        among = bare if used <= bare else among
    if len(types) > 1:
        types = gang.asks[0].gpu_types or clusters.TYPES
    if gang.topology is not None:
        levels = list(jobfile.Domain)[list(jobfile.Domain).index(gang.topology.same) :]
        within = [level for level in levels if len({reference.domain(by_name[name], level) for name in used}) == 1]
        first = next((w for w in within if reference.domain(by_name[next(iter(used))], w) is not None), None)
        if first is not None:
            home = reference.domain(by_name[next(iter(used))], first)
            among &= {node.name for node in of if reference.domain(node, first) == home}
    assert len(used) == reference.Cluster(of, held).fewest(gang, types, among)


@hypothesis.settings(max_examples=examples.at_most(100))
@hypothesis.given(situations())
def test_spread_is_even(situation) -> None:
    """No node has two more tasks than another one that could take one of them."""
    of, held, gang = situation
    gang = msgspec.structs.replace(gang, placement=SPREAD, topology=None, mixed=False)
    claims = placing.place(gang, freespace.FreeSpace(of, held))
    hypothesis.assume(claims)
    by_name = {node.name: node for node in of}
    types = {d.type for c in claims for d in by_name[c.node].devices if d.index in c.devices}
    cluster = reference.Cluster(of, held)
    bare = not any(by_name[claim.node].devices for claim in claims)
    machines = [one for one in cluster.machines if reference.allows(one.node, gang)]
    tasks = {one.node.name: 0 for one in machines if types or not bare or not one.node.devices}
    for claim in claims:
        tasks[claim.node] += 1
    slots = {one.node.name: one.slots(gang.asks[0], types, 100) for one in machines}
    assert all(tasks[more] - tasks[less] < 2 or tasks[less] == slots[less] for more in tasks for less in tasks)


@hypothesis.settings(max_examples=examples.at_most(100))
@hypothesis.given(situations())
def test_gpus_are_spared(situation) -> None:
    """Without need of a GPU a gang stands on nodes that have none, if it fits there."""
    of, held, gang = situation
    (ask,) = gang.asks
    plain = msgspec.structs.replace(ask, amount=holdings.Resources(ask.amount.cpus_milli, ask.amount.memory_bytes))
    gang = msgspec.structs.replace(gang, asks=(plain,))
    with_gpus = {node.name for node in of if node.devices}
    claims = placing.place(gang, freespace.FreeSpace(of, held))
    if reference.Cluster(of, held).fits(gang, with_gpus):
        assert claims is not None
        assert not with_gpus & {claim.node for claim in claims}


@hypothesis.settings(max_examples=examples.at_most(100))
@hypothesis.given(situations(roles=2), st.randoms(use_true_random=False))
def test_the_order_of_nodes_and_holdings_changes_nothing(situation, random) -> None:
    of, held, gang = situation
    first = placing.place(gang, freespace.FreeSpace(of, held))
    random.shuffle(of)
    random.shuffle(held)
    assert placing.place(gang, freespace.FreeSpace(of, held)) == first


@hypothesis.settings(max_examples=examples.at_most(100))
@hypothesis.given(situations())
def test_as_many_as_fit_are_as_many_as_it_says(situation) -> None:
    """`most` and `slots` agree with a plain count; a gang of just so many tasks fits, and with one more it does not."""
    of, held, gang = situation
    (ask,) = gang.asks
    gang = msgspec.structs.replace(gang, asks=(msgspec.structs.replace(ask, count=6, min=6, max=6),))
    space = freespace.FreeSpace(of, held)
    cluster = reference.Cluster(of, held)
    found = placing.most(gang, space)
    for size in range(1, 7):
        smaller = msgspec.structs.replace(ask, count=size, min=size, max=size)
        assert cluster.fits(msgspec.structs.replace(gang, asks=(smaller,))) == (size <= found)
    if gang.topology is None or not gang.topology.required:
        machines = [one for one in cluster.machines if reference.allows(one.node, gang)]
        counted = [sum(one.slots(ask, types, 100) for one in machines) for types in cluster.types(gang)]
        assert min(space.slots(ask, mixed=gang.mixed), 100) == min(max(counted, default=0), 100)


@pytest.mark.parametrize(
    ("sizes", "count", "packed", "level"),
    [
        ({8: 100}, 512, {8: 64}, (6, 88)),
        ({8: 100, 3: 2}, 3, {3: 1}, (1, 99)),
        ({8: 2, 4: 1, 5: 1}, 12, {8: 1, 4: 1}, (3, 0)),
        ({8: 1, 6: 1, 5: 1}, 10, {6: 1, 5: 1}, (4, 2)),  # 8 and 5 would do too, and break the larger one
        ({8: 3, 1: 1, 3: 1}, 9, {8: 1, 1: 1}, (2, 0)),
        ({1: 3}, 3, {1: 3}, (1, 0)),
        ({1: 3}, 4, None, None),
        ({}, 1, None, None),
    ],
)
def test_which_nodes_as_arithmetic(sizes, count, packed, level) -> None:
    assert packing.node_counts(sizes, count) == packed
    assert packing.evenly(sizes, count) == level


@hypothesis.given(st.dictionaries(st.integers(1, 9), st.integers(1, 4), max_size=4), st.integers(1, 60))
def test_packing_is_minimal_and_leveling_is_exact(sizes, count) -> None:
    chosen, leveled = packing.node_counts(sizes, count), packing.evenly(sizes, count)
    all_nodes = sorted((slots for slots, nodes in sizes.items() for _ in range(nodes)), reverse=True)
    if sum(all_nodes) < count:
        assert chosen is None
        assert leveled is None
        return
    fewest = next(n for n in range(1, len(all_nodes) + 1) if sum(all_nodes[:n]) >= count)
    assert sum(chosen.values()) == fewest
    assert all(nodes <= sizes[slots] for slots, nodes in chosen.items())
    assert sum(slots * nodes for slots, nodes in chosen.items()) >= count
    most, less = leveled
    assert sum(min(slots, most) for slots in all_nodes) - less == count
    assert 0 <= less < sum(slots >= most for slots in all_nodes)


def two_roles(placement: jobfile.Placement = PACK) -> plans.Gang:
    """A worker with one CPU, and two evaluators with two CPUs each."""
    asks = tuple(
        plans.Ask(role=role, count=count, min=count, max=count, amount=holdings.Resources(cpus * 1000))
        for role, count, cpus in (("worker", 1, 1), ("evaluator", 2, 2))
    )
    return plans.Gang(job="one", name="one", pool="default", asks=asks, submitted_at=0.0, placement=placement)


def cpu_nodes(**cpus: int) -> freespace.FreeSpace:
    return freespace.FreeSpace(
        [nodes.Node(name=name, capacity=holdings.Resources(count * 1000)) for name, count in cpus.items()]
    )


def test_the_role_with_the_largest_tasks_is_placed_first() -> None:
    """Spread, it gets the emptiest nodes, and the other role the next one."""
    claims = placing.place(two_roles(SPREAD), cpu_nodes(a=3, b=4, c=5))
    assert claims is not None
    assert [(claim.role, claim.node) for claim in claims] == [("worker", "a"), ("evaluator", "b"), ("evaluator", "c")]


@pytest.mark.parametrize(("cpus", "fitting"), [(1, 1), (2, 1), (3, 2), (4, 2), (5, 3)])
def test_the_tasks_of_all_roles_that_fit_are_counted(cpus: int, fitting: int) -> None:
    """The larger tasks count first."""
    assert placing.most(two_roles(), cpu_nodes(a=cpus)) == fitting


def gpu_nodes(**kinds: str) -> freespace.FreeSpace:
    """Nodes with two devices each of one type."""
    return freespace.FreeSpace(
        [
            nodes.Node(
                name=name,
                capacity=holdings.Resources(gpus=2),
                devices=tuple(nodes.Device(index=index, type=kind, memory_bytes=1 << 34) for index in range(2)),
            )
            for name, kind in kinds.items()
        ]
    )


def on_gpus(tasks: int, *types: str, milli: int = 0, mixed: bool = False) -> plans.Gang:
    amount = holdings.Resources(gpu_milli=milli) if milli else holdings.Resources(gpus=1)
    ask = plans.Ask(role="worker", count=tasks, min=tasks, max=tasks, amount=amount, gpu_types=types)
    return plans.Gang(job="one", name="one", pool="default", asks=(ask,), submitted_at=0.0, mixed=mixed)


@pytest.mark.parametrize(("milli", "devices"), [(500, [0, 0, 1]), (400, [0, 0, 1]), (300, [0, 0, 0]), (600, None)])
def test_a_device_holds_as_many_shares_as_it_has(milli: int, devices: list[int] | None) -> None:
    """The next device is cut only then."""
    claims = placing.place(on_gpus(3, milli=milli), gpu_nodes(a="t4"))
    assert (claims and [claim.devices[0] for claim in claims]) == devices


@pytest.mark.parametrize(
    ("types", "mixed", "tried"),
    [
        ((), False, ["h100", "t4"]),
        (("t4",), False, ["t4"]),
        (("t4", "h100"), False, ["t4", "h100"]),
        (("a100",), False, []),
        ((), True, ["h100", "t4", None]),
        (("t4", "a100"), True, ["t4", None]),
        (("a100",), True, []),
    ],
)
def test_the_types_that_are_tried(types: tuple[str, ...], mixed: bool, tried: list[str | None]) -> None:
    """In the order of the gang, else the newest first. Several types at once (None) come last, if it allows that."""
    assert placing.gpu_types(on_gpus(3, *types, mixed=mixed), gpu_nodes(a="t4", b="h100")) == tried


def test_the_domain_with_the_least_free_comes_first() -> None:
    of = [
        nodes.Node(name=name, capacity=holdings.Resources(cpus * 1000), domains={"rack": rack}, ready=name != "d")
        for name, rack, cpus in (("a", "r", 5), ("b", "r", 1), ("c", "s", 4), ("d", "t", 1), ("e", "u", 9))
    ]
    space = freespace.FreeSpace(of)
    assert [[node.name for node in domain] for domain in space.domains("rack")] == [["c"], ["a", "b"], ["e"]]


def test_nodes_near_each_other_follow_each_other() -> None:
    """By zone, rack and name: consecutive ranks are near each other."""
    of = [
        nodes.Node(name=name, capacity=holdings.Resources(1000), domains={"rack": rack, "zone": zone})
        for name, rack, zone in (("a", "s", "z"), ("b", "r", "z"), ("c", "s", "z"), ("d", "r", "y"))
    ]
    ask = plans.Ask(role="worker", count=4, min=4, max=4, amount=holdings.Resources(1000))
    gang = plans.Gang(job="one", name="one", pool="default", asks=(ask,), submitted_at=0.0)
    claims = placing.place(gang, freespace.FreeSpace(of))
    assert claims is not None
    assert [claim.node for claim in claims] == ["d", "b", "a", "c"]


@pytest.mark.parametrize(("ports", "tasks"), [((100, 107), 2), ((100, 106), 1), ((100, 110), 2), ((100, 111), 3)])
def test_a_node_takes_as_many_tasks_as_it_has_blocks_of_ports(ports: tuple[int, int], tasks: int) -> None:
    node = nodes.Node(name="a", capacity=holdings.Resources(9000), ports=ports)
    ask = plans.Ask(role="worker", count=9, min=9, max=9, amount=holdings.Resources(1000), ports=4)
    assert freespace.FreeSpace([node]).slots(ask) == tasks


@pytest.mark.parametrize(("taken", "free"), [(0, [0, 1]), (1, [0]), (2, []), (3, [])])
def test_devices_that_programs_of_others_take_are_the_last_ones(taken: int, free: list[int]) -> None:
    """Which ones they are is unknown: so many are left out."""
    space = gpu_nodes(a="t4")
    node = msgspec.structs.replace(space.nodes["a"].node, taken=holdings.Resources(gpus=taken))
    assert sorted(freespace.FreeSpace([node]).nodes["a"].devices) == free


@pytest.mark.parametrize(("keep", "found"), [({"a"}, ["b", "b"]), ({"b"}, None), (set(), ["b", "b"])])
def test_a_domain_is_asked_without_the_nodes_that_are_kept(keep: set[str], found: list[str] | None) -> None:
    """The rack has nodes for one task and for two."""
    of = [
        nodes.Node(name=name, capacity=holdings.Resources(cpus * 1000), domains={"rack": "r"})
        for name, cpus in (("a", 1), ("b", 2))
    ]
    ask = plans.Ask(role="worker", count=2, min=2, max=2, amount=holdings.Resources(1000))
    topology = jobfile.Topology(same=jobfile.Domain.RACK, required=True)
    gang = plans.Gang(job="one", name="one", pool="default", asks=(ask,), submitted_at=0.0, topology=topology)
    claims = placing.place(gang, freespace.FreeSpace(of), keep=frozenset(keep))
    assert (claims and [claim.node for claim in claims]) == found


@pytest.mark.parametrize(
    ("level", "found"), [("node", None), ("nvlink", None), ("rack", ["b", "c"]), ("zone", ["a", "b"])]
)
def test_a_node_without_a_rack_or_a_zone_is_in_no_such_domain(level: str, found: list[str] | None) -> None:
    """Alone, the large node `d` would take the gang. A node is its own NVLink domain if it names none."""
    of = [
        nodes.Node(name=name, capacity=holdings.Resources(cpus * 1000), domains=domains)
        for name, cpus, domains in (
            ("a", 1, {"zone": "z"}),
            ("b", 1, {"rack": "r", "zone": "z"}),
            ("c", 1, {"rack": "r"}),
            ("d", 2, {}),
        )
    ]
    ask = plans.Ask(role="worker", count=2, min=2, max=2, amount=holdings.Resources(1000))
    topology = jobfile.Topology(same=jobfile.Domain(level), required=True)
    gang = plans.Gang(job="one", name="one", pool="default", asks=(ask,), submitted_at=0.0, topology=topology)
    claims = placing.place(gang, freespace.FreeSpace(of))
    assert claims is not None
    assert sorted(claim.node for claim in claims) == (found or ["d", "d"])


def test_tasks_for_which_the_nodes_of_their_gang_have_no_space_are_on_other_nodes() -> None:
    """Both evaluators and one worker fill node `a`; so the other two workers are on `b`."""
    worker, evaluator = two_roles().asks
    gang = msgspec.structs.replace(
        two_roles(), asks=(msgspec.structs.replace(worker, count=3, min=3, max=3), evaluator)
    )
    space = cpu_nodes(a=5, b=5)
    claims = placing.place(gang, space)
    assert claims is not None
    assert sorted((claim.role, claim.node) for claim in claims) == [
        ("evaluator", "a"), ("evaluator", "a"), ("worker", "a"), ("worker", "b"), ("worker", "b"),
    ]  # fmt: skip
    assert space.holds(claims, gang.constraints)


def test_the_roles_of_a_spread_gang_are_on_nodes_of_their_own() -> None:
    claims = placing.place(two_roles(SPREAD), cpu_nodes(a=2, b=4, c=5))
    assert claims is not None
    assert [(claim.role, claim.node) for claim in claims] == [("worker", "a"), ("evaluator", "b"), ("evaluator", "c")]


def test_a_node_for_all_roles_is_found_behind_many_for_the_largest_role() -> None:
    """Twenty nodes, no two alike, would take both evaluators. Only the last one takes the worker beside them."""
    many = [
        nodes.Node(name=f"n{number}", capacity=holdings.Resources(4000, memory_bytes=number << 30))
        for number in range(10, 30)
    ]
    claims = placing.place(
        two_roles(), freespace.FreeSpace([*many, nodes.Node(name="z", capacity=holdings.Resources(8000))])
    )
    assert claims is not None
    assert {claim.node for claim in claims} == {"z"}
