"""The one rule by which a running gang may be restarted: for its own sake, or for the sake of another gang."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from tests.scheduler import clusters, drafted, world

from oarlock.scheduler import planning
from oarlock.scheduler.preemption import victims
from oarlock.scheduler.reuse import memos
from oarlock.spec import holdings, plans
from oarlock.spec.cluster import nodes

NOW = 1000.0
RULES = plans.Rules(policy="priority", min_runtime_s=60.0, restart_s=10.0)


class Case(NamedTuple):
    """A gang that has run for `ran_s`, and the answers: for its own sake, for another's, and for a better place."""

    ran_s: float = 600.0
    own: bool = True
    other: bool = True
    settled: bool = True
    preemptible: bool = True
    stopping: bool = False
    decided: bool = False
    spared: bool = False
    reallocate: bool = True


CASES = {
    "it has run for long": Case(),
    "it has just started": Case(ran_s=0.0, other=False, settled=False),
    "it has run for the minimum": Case(ran_s=60.0, settled=False),
    "a little less than the minimum": Case(ran_s=59.0, other=False, settled=False),
    "it has run for ten restarts": Case(ran_s=100.0),
    "it must not be preempted": Case(preemptible=False, own=False, other=False, settled=False),
    "it is stopping": Case(stopping=True, own=False, other=False, settled=False),
    "this plan has decided about it": Case(decided=True, own=False, other=False, settled=False),
    "an earlier gang waits for its end": Case(spared=True, other=False),
    "the plan may touch no gang": Case(reallocate=False, own=False, other=False, settled=False),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_whether_a_running_gang_may_be_restarted(case: Case) -> None:
    ask = plans.Ask(role="worker", count=1, min=1, max=1, amount=holdings.Resources(1000))
    gang = plans.Gang(
        job="one", name="one", pool="default", asks=(ask,), submitted_at=0.0, preemptible=case.preemptible
    )
    claim = holdings.Holding(job="one", attempt=1, role="worker", index=0, node="a", amount=ask.amount)
    running = plans.Running(gang=gang, holdings=(claim,), started_at=NOW - case.ran_s, stopping=case.stopping)
    node = nodes.Node(name="a", capacity=holdings.Resources(4000))
    snapshot = plans.Snapshot(nodes=(node,), running=(running,), rules=RULES, reallocate=case.reallocate)
    found = planning.begun(snapshot, NOW, memos.Memo()).victims
    if case.decided:
        found.decided("one")
    if case.spared:
        found.spare({"one"})
    assert found.may_restart(running) is case.own
    assert found.may_give_way(running) is case.other
    assert found.may_restart(running, found.settled_s) is case.settled


def test_the_tasks_that_a_gang_keeps_are_numbered_anew_for_an_attempt_to_come() -> None:
    ask = plans.Ask(role="worker", count=4, min=1, max=4, amount=holdings.Resources(1000))
    gang = plans.Gang(job="one", name="one", pool="default", asks=(ask,), submitted_at=0.0)
    held = tuple(
        holdings.Holding(job="one", attempt=3, role="worker", index=index, node=node, amount=ask.amount)
        for index, node in enumerate("abba")
    )
    running = plans.Running(gang=gang, holdings=held, started_at=0.0)
    kept = victims.left(running, (held[0], held[2]))
    assert [(claim.node, claim.index, claim.attempt) for claim in kept] == [("b", 0, 0), ("a", 1, 0)]


MANY = "rules policy=priority min_runtime=60 restart=10\nnode a gpus=9\n"


@pytest.mark.parametrize(
    ("running", "moved"),
    [
        ("gpus=2 on=a started=0", True),
        ("gpus=3 on=a started=0", False),  # more than half of what the gang needs
        ("gpus=2 on=a started=9901", False),  # less than ten restarts ago
        ("gpus=2 on=a started=0 priority=91", False),  # it ranks before the gang
        ("gpus=2 on=a started=0 preemptible=no", False),
    ],
)
def test_small_gangs_that_rank_no_higher_may_be_moved(running: str, moved: bool) -> None:
    draft = drafted.draft(f"{MANY}running one {running}\njob new gpus=4 priority=90")
    (gang,) = draft.snapshot.waiting
    found = draft.victims.movable(gang, -90.0)
    assert [(one.job, one.stays) for one in found] == ([("one", True)] if moved else [])


POOLS = "rules policy=priority\npool x reserve.gpus=2\npool y"
ELASTIC = "node a gpus=4\nrunning one tasks=4 min=1 gpus=1 on=a*4 started=0"
SHRINKING = {
    "below in its own pool": f"rules policy=priority\n{ELASTIC}\njob new gpus=2",
    "as its policy wishes": f"rules policy=goodput\n{ELASTIC}\njob new gpus=2",
    "in a pool that borrows": f"{POOLS}\n{ELASTIC} pool=y\njob new gpus=2 pool=x",
}


@pytest.mark.parametrize("lines", SHRINKING.values(), ids=SHRINKING.keys())
@pytest.mark.parametrize(
    ("change", "shrinks"),
    [
        ({}, True),
        ({"taints": (clusters.HINT,)}, True),
        ({"taints": (clusters.CORDON,)}, False),
        ({"taints": (clusters.TEAMS[0],)}, False),
        ({"ready": False}, False),
    ],
    ids=["open", "not preferred", "cordoned", "tainted", "lost"],
)
def test_a_gang_shrinks_only_on_nodes_that_it_could_start_on(
    lines: str, change: dict[str, object], shrinks: bool
) -> None:
    """It is restarted there, and a restart in a closed place would end it."""
    cluster = drafted.cluster(lines)
    cluster.nodes["a"] = world.replace(cluster.nodes["a"], **change)
    draft = drafted.draft(cluster)
    (gang,) = draft.snapshot.waiting
    assert [one.job for one in draft.victims.shrinkable(gang, -50.0)] == (["one"] if shrinks else [])


@pytest.mark.parametrize(("tolerates", "shrinks"), [("team=a", True), ("team=b", False)])
def test_a_gang_shrinks_on_a_node_whose_taint_it_tolerates(tolerates: str, shrinks: bool) -> None:
    cluster = drafted.cluster(SHRINKING["below in its own pool"])
    cluster.nodes["a"] = world.replace(cluster.nodes["a"], taints=(clusters.TEAMS[0],))
    one = cluster.running["one"]
    asks = tuple(world.replace(ask, constraints=nodes.Constraints(tolerates=(tolerates,))) for ask in one.gang.asks)
    cluster.running["one"] = world.replace(one, gang=world.replace(one.gang, asks=asks))
    draft = drafted.draft(cluster)
    (gang,) = draft.snapshot.waiting
    assert [one.job for one in draft.victims.shrinkable(gang, -50.0)] == (["one"] if shrinks else [])
