"""A request is called impossible exactly if the empty cluster refuses it, and the smaller one that is offered fits."""

from __future__ import annotations

import re

import msgspec
from hypothesis import given
from hypothesis import strategies as some
from tests.scheduler.explaining.test_reasons import ONLY_A, TEAM_A, TEAM_B, constrained, gang, node

from oarlock.scheduler import planning
from oarlock.scheduler.explaining import impossible
from oarlock.spec import plans, refusals
from oarlock.spec.cluster import nodes

MACHINES = some.lists(
    some.builds(
        lambda gpus, kind, cpus: {"gpus": gpus, "kind": kind, "cpus": cpus},
        some.integers(0, 4),
        some.sampled_from(("h100", "t4")),
        some.integers(1, 6),
    ),
    min_size=1,
    max_size=4,
)
ASKED = some.builds(
    lambda tasks, gpus, types, mixed: gang(tasks=tasks, gpus=gpus, gpu_types=types, mixed=mixed),
    some.integers(1, 8),
    some.integers(0, 3),
    some.sampled_from(((), ("h100",), ("t4",), ("h100", "t4"), ("a100",))),
    some.booleans(),
)


def starts(asked: plans.Gang, there: tuple[nodes.Node, ...]) -> bool:
    return bool(planning.plan(plans.Snapshot(nodes=there, waiting=(asked,)), 0.0).launches)


def declared(machines: list[dict[str, object]]) -> tuple[nodes.Node, ...]:
    return tuple(node(f"n{index}", **of) for index, of in enumerate(machines))  # type: ignore[arg-type]


@given(MACHINES, ASKED)
def test_it_is_impossible_exactly_if_the_empty_cluster_refuses_it(
    machines: list[dict[str, object]], asked: plans.Gang
) -> None:
    there = declared(machines)
    never = impossible.Declared(there, ()).never(asked)
    assert (never is None) == starts(asked, there), never
    if never is None:
        return
    assert never.code in refusals.NEVER
    if found := re.search(r"At most (\d+) worker", never.change):
        most = int(found[1])
        assert most < asked.asks[0].min
        assert starts(of_size(asked, most), there)
        assert not starts(of_size(asked, most + 1), there)


def of_size(asked: plans.Gang, tasks: int) -> plans.Gang:
    ask = msgspec.structs.replace(asked.asks[0], count=tasks, min=tasks, max=tasks)
    return msgspec.structs.replace(asked, asks=(ask,))


def test_the_answers_are_kept_until_other_nodes_are_declared() -> None:
    one = impossible.Declared((node("a"),), ())
    snapshot = plans.Snapshot(nodes=one.nodes, pools=one.pools)
    assert one.follow(snapshot) is one
    other = one.follow(plans.Snapshot(nodes=(node("a", gpus=8),), pools=()))
    assert other.never(gang(tasks=1, gpus=8)) is None
    assert one.never(gang(tasks=1, gpus=8)) is not None


def test_a_node_that_did_not_serve_a_claim_lately_makes_nothing_impossible() -> None:
    """A submission was refused for ten minutes because another gang had met a driver without free devices."""
    claiming = constrained(gang(gpus=2), nodes.Constraints(claims=("devices/slices",)))
    lately, never = (node("a", **{field: ("devices/slices",)}) for field in ("barred", "lacks"))
    assert impossible.Declared((lately,), ()).never(claiming) is None
    found = planning.plan(plans.Snapshot(nodes=(lately,), waiting=(claiming,)), 0.0).refusals["job"]
    assert found.code is refusals.Code.NO_NODES
    assert "lately the cluster's scheduler found devices of slices not available there" in found.message
    assert impossible.Declared((never,), ()).never(claiming) is not None


def test_a_gang_is_impossible_where_only_closed_nodes_would_hold_it() -> None:
    """A cordon passes; a taint that its pool's profiles do not tolerate, or a label that they need, does not."""
    cordon = nodes.Taint(key="node.kubernetes.io/unschedulable", effect="NoSchedule")
    there = (node("a", gpus=1, taints=(TEAM_A, cordon)), node("b", gpus=4, taints=(TEAM_B,)))
    found = impossible.Declared(there, ()).never(constrained(gang(gpus=2), ONLY_A))
    assert found is not None
    assert found.message == (
        "It needs 2 GPUs and 1 CPU for 1 task; one task needs 2 GPUs, and no node has more than 1. "
        "Closed to it: b (taint team=b:NoSchedule)."
    )
    assert found.total["gpus"] == 1
    assert impossible.Declared(there, ()).never(constrained(gang(gpus=1), ONLY_A)) is None
    plain = impossible.Declared(there, ()).never(gang())
    assert plain is not None
    assert plain.message.endswith(
        "no node is open to it. Closed to it: a (taint team=a:NoSchedule), b (taint team=b:NoSchedule)."
    )
    assert plain.change == impossible.ANOTHER_POOL
    elsewhere = node("a", gpus=1, taints=(TEAM_A,), lacks=frozenset({"imagenet"}))
    mounting = impossible.Declared((elsewhere,), ()).never(
        constrained(gang(), msgspec.structs.replace(ONLY_A, claims=("imagenet",)))
    )
    assert mounting is not None
    assert mounting.change == impossible.ANOTHER_VOLUME
    other_pool = impossible.Declared((elsewhere,), ()).never(
        constrained(gang(), nodes.Constraints(claims=("imagenet",)))
    )
    assert other_pool is not None
    assert other_pool.change == impossible.ANOTHER_POOL, "the volume is not the only reason"


@given(MACHINES, ASKED, some.lists(some.sampled_from([(), (TEAM_A,), (TEAM_B,)]), min_size=4, max_size=4))
def test_it_is_impossible_exactly_if_the_nodes_that_are_open_to_it_refuse_it(
    machines: list[dict[str, object]], asked: plans.Gang, taints: list[tuple[nodes.Taint, ...]]
) -> None:
    there = declared([{**of, "taints": of_node} for of, of_node in zip(machines, taints, strict=False)])
    held = constrained(asked, ONLY_A)
    never = impossible.Declared(there, ()).never(held)
    assert (never is None) == starts(held, there), never
    only = tuple(one for one in there if TEAM_B not in one.taints)
    assert (never is None) == bool(only and starts(held, only))
