"""The nodes that waiting gangs lack, by class."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.scheduler.explaining import test_reasons as cases

from oarlock.scheduler import planning
from oarlock.scheduler.provisioning import missing
from oarlock.spec import holdings, jobfile, plans, refusals
from oarlock.spec.cluster import nodes, pools, provisioning

gang, node, running = cases.gang, cases.node, cases.running
NOW = 1000.0


def node_class(
    name: str, most: int = 4, price: float = 0.0, shared: dict[str, int] | None = None, **others: Any
) -> nodes.NodeClass:
    model = cases.node(name, node_class=name, price_per_h=price, **others)
    return nodes.NodeClass(name=name, model=model, most=most, shared=shared or {})


BIG = node_class("big")
CPU = node_class("cpu", gpus=0, cpus=16)


def waiting(*of: plans.Gang) -> tuple[plans.Gang, ...]:
    return tuple(msgspec.structs.replace(one, submitted_at=float(place)) for place, one in enumerate(of))


def refused(snapshot: plans.Snapshot) -> plans.Snapshot:
    """Return the snapshot after a plan, with the refusals that the plan wrote."""
    plan = planning.plan(snapshot, NOW)
    assert not plan.launches
    gangs = tuple(msgspec.structs.replace(one, refusal=plan.refusals[one.job]) for one in snapshot.waiting)
    return msgspec.structs.replace(snapshot, waiting=gangs)


def snapshot(
    *of: nodes.Node,
    wait: tuple[plans.Gang, ...],
    run: tuple[plans.Running, ...] = (),
    classes: tuple[nodes.NodeClass, ...] = (BIG,),
    tree: tuple[pools.Pool, ...] = (),
) -> plans.Snapshot:
    rules = plans.Rules(policy="fifo", node_classes=classes)
    return plans.Snapshot(nodes=of, running=run, waiting=waiting(*wait), pools=tree, rules=rules)


def asked_before(count: int, nodes: int) -> provisioning.Need:
    """Return the need of a request for `count` tasks of 4 GPUs each."""
    task = provisioning.Tasks(role="worker", amount=holdings.Resources(1000, 0, 4), node_class="big", count=count)
    return provisioning.Need(nodes={"big": nodes}, tasks=(task,))


def lacks(of: plans.Snapshot) -> dict[str, dict[str, int]]:
    return {job: need.nodes for job, need in missing.missing(refused(of)).items()}


def test_a_gang_lacks_the_fewest_nodes_beside_the_free_ones() -> None:
    assert lacks(snapshot(node("a"), wait=(gang("g", tasks=10, gpus=1),))) == {"g": {"big": 2}}
    assert lacks(snapshot(wait=(gang("g", tasks=2, gpus=3),))) == {"g": {"big": 2}}, "a cluster without any node"
    held = running("r", "a", 4)
    assert lacks(snapshot(node("a"), run=(held,), wait=(gang("g", gpus=4),))) == {"g": {"big": 1}}
    assert lacks(snapshot(node("a"), wait=(gang("g", gpus=4),), run=(held,), classes=())) == {}


def test_a_gang_that_no_plan_has_judged_yet_keeps_its_request_for_the_same_tasks() -> None:
    """Its owner has just changed its priority, say. A first request waits for the plan."""
    changed = snapshot(wait=(gang("g", tasks=2, gpus=4),))
    assert missing.missing(changed) == {}
    assert missing.missing(changed, {"g": asked_before(2, 2)}) == {"g": asked_before(2, 2)}
    assert missing.missing(changed, {"g": asked_before(3, 3)}) == {}


def test_the_places_of_all_tasks_are_told() -> None:
    of = refused(snapshot(node("a", node_class="big"), node("b"), wait=(gang("g", tasks=4, gpus=3),)))
    need = missing.missing(of)["g"]
    assert need.nodes == {"big": 2}
    told = {(tasks.role, tasks.node_class): tasks.count for tasks in need.tasks}
    assert told == {("worker", "big"): 3, ("worker", ""): 1}


def test_a_gang_whose_claim_no_new_node_can_serve_asks_for_none() -> None:
    """A disk of one machine, or devices that no class declares: each request would be in vain, for ever."""
    claiming = cases.constrained(gang("g", gpus=4), nodes.Constraints(claims=("devices/slices", "disk")))
    held = running("r", "a", 4)

    def with_classes(*classes: nodes.NodeClass) -> plans.Snapshot:
        return snapshot(node("a"), run=(held,), wait=(claiming,), classes=classes)

    small, big = node_class("small", lacks=("disk",)), node_class("big", lacks=("devices/slices",))
    assert lacks(with_classes(small, big)) == {}
    why = planning.plan(with_classes(small, big), NOW).refusals["g"].message
    assert "no new node would help it: big (no devices of slices), small (the volume of claim disk cannot be" in why
    of = refused(with_classes(small, big, node_class("third")))
    (need,) = missing.missing(of).values()
    assert need.nodes == {"third": 1}
    now = msgspec.structs.replace(of, rules=with_classes(small, big, node_class("third", lacks=("disk",))).rules)
    assert missing.missing(now, {"g": need}) == {}, "an open request ends, too"
    assert missing.missing(of, {"g": need}) == {"g": need}


def test_no_more_nodes_than_the_class_may_have() -> None:
    two = node_class("big", most=2)
    there = node("a", node_class="big")
    of = snapshot(there, run=(running("r", "a", 4),), wait=(gang("g", gpus=4), gang("h", gpus=4)), classes=(two,))
    assert lacks(of) == {"g": {"big": 1}}
    of = snapshot(there, run=(running("r", "a", 4),), wait=(gang("g", tasks=2, gpus=4),), classes=(two,))
    (refusal,) = planning.plan(of, NOW).refusals.values()
    assert refusal.code is not refusals.Code.NEVER_FITS, "it fits once the other gang has ended"
    assert lacks(of) == {}


def test_later_gangs_use_the_space_that_an_earlier_one_leaves_of_its_new_nodes() -> None:
    wait = (gang("g", gpus=3), gang("h", gpus=1), gang("i", gpus=1))
    assert lacks(snapshot(wait=wait)) == {"g": {"big": 1}, "i": {"big": 1}}


@pytest.mark.parametrize(
    ("prices", "expected"),
    [((1.0, 5.0), {"small": 4}), ((1.0, 2.0), {"big": 2}), ((0.0, 0.0), {"big": 2})],
    ids=["many cheap nodes", "few dear ones cost less", "without prices the fewest"],
)
def test_the_cheapest_class_is_taken(prices: tuple[float, float], expected: dict[str, int]) -> None:
    small = node_class("small", most=8, price=prices[0], gpus=2)
    big = node_class("big", price=prices[1])
    assert lacks(snapshot(wait=(gang("g", tasks=4, gpus=2),), classes=(small, big))) == {"g": expected}


def test_tasks_of_several_kinds_take_nodes_of_several_classes() -> None:
    workers = gang("g", tasks=2, gpus=4)
    servers = plans.Ask(role="ps", count=1, min=1, max=1, amount=holdings.Resources(16_000, 0, 0))
    both = msgspec.structs.replace(workers, asks=(*workers.asks, servers))
    found = missing.missing(refused(snapshot(wait=(both,), classes=(BIG, CPU))))["g"]
    assert found.nodes == {"big": 2, "cpu": 1}
    assert {(tasks.role, tasks.node_class) for tasks in found.tasks} == {("worker", "big"), ("ps", "cpu")}


def test_the_type_of_gpu_and_the_topology_choose_the_class() -> None:
    old = node_class("old", kind="v100")
    of = snapshot(wait=(gang("g", gpus=4, gpu_types=("v100",)),), classes=(BIG, old))
    assert lacks(of) == {"g": {"old": 1}}
    same = jobfile.Topology(same=jobfile.Domain.RACK, required=True)
    racks = node_class("racked", most=8, shared={"rack": 2})
    fits = snapshot(wait=(gang("g", tasks=2, gpus=4, topology=same),), classes=(BIG, racks))
    assert lacks(fits) == {"g": {"racked": 2}}
    too_large = snapshot(wait=(gang("g", tasks=3, gpus=4, topology=same),), classes=(BIG, racks))
    assert planning.plan(too_large, NOW).refusals["g"].code is refusals.Code.NEVER_FITS


def test_a_gang_that_the_limit_of_its_pool_holds_back_lacks_no_nodes() -> None:
    limited = pools.Pool(name="default", limit={"gpus": 6.0})
    above = pools.Pool(name="research", limit={"gpus": 6.0})
    leaf = pools.Pool(name="vision", parent="research")
    assert lacks(snapshot(node("a"), run=(running("r", "a", 4),), wait=(gang("g", gpus=4),), tree=(limited,))) == {}
    of = snapshot(wait=(gang("g", gpus=4, pool="vision"), gang("h", gpus=4, pool="vision")), tree=(above, leaf))
    assert lacks(of) == {"g": {"big": 1}}, "the first one takes the limit up"


def test_a_gang_beyond_the_entitlement_of_its_pool_lacks_nodes() -> None:
    tree = (pools.Pool(name="a"), pools.Pool(name="b"))
    run = (msgspec.structs.replace(running("r", "n", 4), gang=gang("r", gpus=4, pool="a")),)
    of = snapshot(node("n"), run=run, wait=(gang("g", gpus=4, pool="a"),), tree=tree)
    assert lacks(of) == {"g": {"big": 1}}


def test_a_gang_that_must_not_be_preempted_lacks_nodes_within_its_reservation() -> None:
    kept = gang("g", gpus=4, preemptible=False)
    assert lacks(snapshot(node("a", gpus=2), wait=(kept,))) == {"g": {"big": 1}}
    tree = (pools.Pool(name="default", reserve={"gpus": 2.0}), pools.Pool(name="b"))
    assert lacks(snapshot(node("a", gpus=2), wait=(kept,), tree=tree)) == {}


def test_a_gang_whose_place_is_being_cleared_lacks_none() -> None:
    of = snapshot(node("a"), run=(running("r", "a", 4),), wait=(gang("g", gpus=4),))
    (one,) = of.waiting
    for code in (refusals.Code.STOPPING, refusals.Code.BACKING_OFF, refusals.Code.POOL_LIMIT):
        said = msgspec.structs.replace(one, refusal=refusals.Refusal(code=code, message=""))
        assert missing.missing(msgspec.structs.replace(of, waiting=(said,))) == {}
    assert missing.missing(of) == {}, "no plan has looked at it yet"


def test_an_open_request_stays_while_its_nodes_come() -> None:
    before = refused(snapshot(wait=(gang("g", tasks=2, gpus=4), gang("h", gpus=4))))
    asked = missing.missing(before)
    assert [need.nodes for need in asked.values()] == [{"big": 2}, {"big": 1}]
    half = msgspec.structs.replace(before, nodes=(node("x", node_class="big"),))
    assert missing.missing(half, asked) == asked
    assert missing.missing(half)["g"].nodes == {"big": 1}, "without a request the rest alone"
    backing = refusals.Refusal(code=refusals.Code.BACKING_OFF, message="")
    waits = tuple(msgspec.structs.replace(one, refusal=backing) for one in half.waiting)
    assert missing.missing(msgspec.structs.replace(half, waiting=waits), asked) == asked


def test_a_request_of_another_size_is_made_anew() -> None:
    old = asked_before(1, 1)
    of = refused(snapshot(wait=(gang("g", tasks=2, gpus=4),)))
    assert missing.missing(of, {"g": old})["g"].nodes == {"big": 2}


def test_nodes_of_open_requests_count_for_the_class() -> None:
    two = node_class("big", most=2)
    old = asked_before(2, 2)
    of = refused(snapshot(wait=(gang("g", gpus=4), gang("h", tasks=2, gpus=4)), classes=(two,)))
    assert missing.missing(of, {"h": old}) == {"h": old}, "the earlier gang finds none left"


def test_plans_are_the_same_without_classes() -> None:
    """A declared class changes which gangs may wait, and no placement."""
    wait = (gang("g", tasks=2, gpus=1), gang("h", tasks=9, gpus=1))
    without = planning.plan(snapshot(node("a"), wait=wait, classes=()), NOW)
    with_class = planning.plan(snapshot(node("a"), wait=wait), NOW)
    assert without.launches == with_class.launches
    assert without.refusals["h"].code is refusals.Code.NEVER_FITS
    assert with_class.refusals["h"].code not in refusals.NEVER


def test_one_look_searches_for_some_gangs_and_the_next_ones_for_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time of a look must not grow with all gangs: the loop that makes it also renews the leadership."""
    monkeypatch.setattr(missing, "SEARCHED", 2)
    tried: list[str] = []
    need = missing.Search.need

    def noted(search: missing.Search, gang: plans.Gang) -> provisioning.Need | None:
        tried.append(gang.job)
        return None if gang.job == "g0" else need(search, gang)

    monkeypatch.setattr(missing.Search, "need", noted)
    of = refused(
        snapshot(wait=tuple(gang(f"g{number}", gpus=4) for number in range(5)), classes=(node_class("big", most=9),))
    )
    now = missing.Look({}, frozenset())
    story = []
    for _ in range(5):
        tried.clear()
        now = missing.look(of, *now)
        story.append((list(tried), sorted(now.needs)))
    assert story == [
        (["g0", "g1"], ["g1"]),
        (["g2", "g3"], ["g1", "g2", "g3"]),
        (["g0", "g4"], ["g1", "g2", "g3", "g4"]),
        (["g0"], ["g1", "g2", "g3", "g4"]),
        (["g0"], ["g1", "g2", "g3", "g4"]),
    ], "also those behind one that no nodes help"


def test_new_nodes_are_of_a_class_that_is_open_to_the_gang() -> None:
    """The cheaper class has a taint that the gang does not tolerate, or lacks the label that it needs."""
    cheap, ours = node_class("cheap", price=1.0, taints=(cases.TEAM_B,)), node_class("ours", price=2.0)
    dedicated = node_class("ours", price=2.0, taints=(cases.TEAM_A,), labels={"disk": "ssd"})
    assert lacks(snapshot(wait=(gang("g", gpus=4),), classes=(cheap, ours))) == {"g": {"ours": 1}}
    held = nodes.Constraints(tolerates=("team=a",), labels=(("disk", "ssd"),))
    asked = cases.constrained(gang("g", gpus=4), held)
    found = missing.missing(refused(snapshot(wait=(asked,), classes=(cheap, dedicated))))
    assert found["g"].nodes == {"ours": 1}
    assert [one.constraints for one in found["g"].tasks] == [held]
    never = planning.plan(snapshot(wait=(asked,), classes=(cheap, ours)), NOW).refusals["g"]
    assert never.code is refusals.Code.NEVER_FITS


def test_a_request_is_made_anew_where_the_profiles_have_changed() -> None:
    wait = (cases.constrained(gang("g", tasks=2, gpus=4), cases.ONLY_A),)
    of = refused(snapshot(wait=wait))
    assert missing.missing(of, {"g": asked_before(2, nodes=2)})["g"].tasks[0].constraints == cases.ONLY_A
