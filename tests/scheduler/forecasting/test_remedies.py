"""The smallest changes that would start a waiting gang now: each one that is offered does start it."""

from __future__ import annotations

from collections.abc import Callable

import hypothesis
import msgspec
import pytest
from hypothesis import strategies as st
from tests import examples
from tests.scheduler.forecasting.test_forecasts import NOW, gang, node, queues, running, snapshot, still

from oarlock.scheduler import planning
from oarlock.scheduler.forecasting import remedies
from oarlock.spec import jobfile, plans, refusals
from oarlock.spec.cluster import pools
from oarlock.spec.input import edits


def offered(of: plans.Snapshot, one: plans.Gang, spent: Callable[[], float] = still) -> str:
    waiting = msgspec.structs.replace(of, waiting=(*of.waiting, one))
    refusal = planning.plan(waiting, NOW).refusals[one.job]
    return remedies.smallest(waiting, one, refusal, NOW, spent).words


BUSY = (running("r", "a", 3),)
RACKS = (node("a", domains={"rack": "x"}), node("b", domains={"rack": "y"}))
TREE = (pools.Pool(name="tight", limit={"gpus": 3.0}), pools.Pool(name="wide"))
TIGHT = msgspec.structs.replace(running("r", "a", 2), gang=gang("r", gpus=2, pool="tight"))


@pytest.mark.parametrize(
    ("of", "one", "words"),
    [
        (snapshot(node("a"), run=BUSY), gang(tasks=4, gpus=1), "with 1 worker instead of 4"),
        (snapshot(node("a"), run=BUSY), gang(tasks=4, gpus=1, least=2), "with a `min` of 1 worker instead of 2"),
        (
            snapshot(node("a"), node("old", kind="v100"), run=BUSY),
            gang(gpus=2, gpu_types=("h100",)),
            "on v100 instead of h100",
        ),
        (
            snapshot(*RACKS, run=(running("r", "a", 2), running("s", "b", 2))),
            gang(tasks=2, gpus=2, topology=jobfile.Topology(same=jobfile.Domain.RACK, required=True)),
            "if it need not be within one rack, or with 1 worker instead of 2",
        ),
        (
            snapshot(node("a"), run=(TIGHT,), tree=TREE),
            gang(gpus=2, pool="tight"),
            "in the pool default, or with a limit of 4 GPUs for the pool tight",
        ),
    ],
)
def test_an_offered_change_would_start_it(of: plans.Snapshot, one: plans.Gang, words: str) -> None:
    assert offered(of, one) == f"It would start now {words}."


@pytest.mark.parametrize(
    ("of", "one", "edit"),
    [
        (snapshot(node("a"), run=BUSY), gang(tasks=4, gpus=1), edits.Edit(min=1)),
        (snapshot(node("a"), run=BUSY), gang(tasks=4, gpus=1, least=2), edits.Edit(min=1)),
        (snapshot(node("a"), run=(TIGHT,), tree=TREE), gang(gpus=2, pool="tight"), edits.Edit(pool="default")),
        (snapshot(node("a"), node("old", kind="v100"), run=BUSY), gang(gpus=2, gpu_types=("h100",)), None),
    ],
)
def test_the_edit_of_an_offered_change_would_start_it(of: plans.Snapshot, one: plans.Gang, edit: edits.Edit) -> None:
    waiting = msgspec.structs.replace(of, waiting=(*of.waiting, one))
    refusal = planning.plan(waiting, NOW).refusals[one.job]
    assert remedies.smallest(waiting, one, refusal, NOW, still).remedies[0].edit == edit
    if edit is None:
        return
    least = edit.min if edit.min is not None else one.asks[0].min
    asks = (msgspec.structs.replace(one.asks[0], min=least),)
    edited = msgspec.structs.replace(one, asks=asks, pool=edit.pool or one.pool)
    started = planning.plan(msgspec.structs.replace(of, waiting=(edited,)), NOW).launches
    assert [launch.job for launch in started] == [one.job]


def test_the_end_of_one_job_is_offered_where_that_would_be_enough() -> None:
    held = (running("r", "a", 3), running("s", "a", 1))
    assert offered(snapshot(node("a"), run=held), gang(gpus=2)) == "It would start once r ends."
    assert offered(snapshot(node("a"), run=held), gang(gpus=4)) == ""
    first = gang("first", gpus=3)
    late = gang("late", gpus=2, submitted_at=1.0)
    assert offered(snapshot(node("a"), run=held, wait=(first,)), late) == "", "the first one gets the devices of r"


def test_a_limit_that_is_not_the_only_reason_is_told_with_the_next_one() -> None:
    """8 of 32 GPUs are free, and the pool has its 24; without the limit a gang of 16 would wait for GPUs."""
    tree = (pools.Pool(name="team", limit={"gpus": 24.0}), pools.Pool(name="default", limit={"gpus": 0.0}))
    held = tuple(
        msgspec.structs.replace(running(f"r{name}", name, 8), gang=gang(f"r{name}", gpus=8, pool="team"))
        for name in ("a", "b", "c")
    )
    of = snapshot(*(node(name, gpus=8) for name in "abcd"), run=held, tree=tree)
    assert offered(of, gang(tasks=2, gpus=8, pool="team", least=2)) == (
        "With a limit of 40 GPUs for the pool team it would still wait: "
        "It needs 16 GPUs; the pool team has 24 of the 32 GPUs that it is entitled to."
    )


def test_permission_to_be_preempted_may_be_offered() -> None:
    tree = (pools.Pool(name="vision", reserve={"gpus": 1.0}),)
    one = gang(gpus=1, pool="vision", preemptible=False)
    held = msgspec.structs.replace(running("r", "a", 1), gang=gang("r", gpus=1, pool="vision", preemptible=False))
    assert offered(snapshot(node("a"), run=(held,), tree=tree), one).startswith(
        "It would start now with `preemptible: true`"
    )


def test_a_time_out_that_ends_before_a_kept_place_is_needed() -> None:
    """The head waits for all four; two are free until then."""
    of = snapshot(node("a"), run=(running("r", "a", 2, end=NOW + 3600),), wait=(gang("head", gpus=4),))
    one = gang("quick", gpus=1, submitted_at=1.0)
    refusal = refusals.Refusal(code=refusals.Code.RESERVED, message="", until=NOW + 3600)
    waiting = msgspec.structs.replace(of, waiting=(*of.waiting, one))
    assert remedies.smallest(waiting, one, refusal, NOW, still).words.startswith(
        "It would start now with a `timeout` of 60 min"
    )


def test_without_time_nothing_is_offered_unproven() -> None:
    of = snapshot(node("a"), run=BUSY)
    assert offered(of, gang(tasks=4, gpus=1), spent=lambda: 1.0) == ""


@pytest.mark.parametrize("code", sorted(refusals.NEVER))
def test_a_gang_that_can_never_start_is_offered_nothing(code: refusals.Code) -> None:
    """Even where a change would start it: its owner has to know first that the request is impossible."""
    refusal = refusals.Refusal(code=code, message="")
    one = gang(tasks=4, gpus=1)
    of = snapshot(node("a"), run=BUSY, wait=(one,))
    assert remedies.smallest(of, one, refusal, NOW, still) == remedies.Advice()


def edited(one: plans.Gang, edit: edits.Edit) -> plans.Gang:
    """Return the gang after its owner made the change."""
    asks = tuple(msgspec.structs.replace(ask, min=ask.min if edit.min is None else edit.min) for ask in one.asks)
    priority = one.priority if edit.priority is None else edit.priority
    return msgspec.structs.replace(one, asks=asks, pool=edit.pool or one.pool, priority=priority)


@hypothesis.given(queues(), st.sampled_from([(), TREE]), st.integers(1, 4), st.sampled_from([1, 2]))
@hypothesis.settings(max_examples=examples.at_most(120), deadline=None)
def test_each_edit_that_is_offered_starts_the_gang(
    of: plans.Snapshot, tree: tuple[pools.Pool, ...], tasks: int, gpus: int
) -> None:
    """At most two changes are named, and no more workers than before."""
    one = gang("one", tasks=tasks, gpus=gpus, pool="tight" if tree else "default", submitted_at=99.0)
    waiting = msgspec.structs.replace(of, pools=tree, waiting=(*of.waiting, one))
    refusal = planning.plan(waiting, NOW).refusals.get(one.job)
    hypothesis.assume(refusal is not None)
    found = remedies.smallest(waiting, one, refusal, NOW, still).remedies
    assert len(found) <= remedies.OFFERED
    for edit in (each.edit for each in found if each.edit is not None):
        changed = edited(one, edit)
        assert 1 <= changed.asks[0].min <= tasks
        plan = planning.plan(msgspec.structs.replace(waiting, waiting=(*of.waiting, changed)), NOW)
        assert one.job in {launch.job for launch in plan.launches}, edit


def test_the_most_workers_with_which_it_would_start_are_offered() -> None:
    """Seven of eight devices are free; each worker has one."""
    of = snapshot(node("a"), node("b"), run=(running("r", "a", 1),))
    assert offered(of, gang(tasks=8, gpus=1)) == "It would start now with 7 workers instead of 8."


def test_two_changes_are_offered_though_three_would_start_it() -> None:
    """It may leave its rack, take another type, or have fewer workers."""
    within = jobfile.Topology(same=jobfile.Domain.RACK, required=True)
    one = gang(tasks=2, gpus=2, gpu_types=("h100",), topology=within)
    of = snapshot(
        *RACKS, node("old", kind="v100", domains={"rack": "z"}), run=(running("r", "a", 2), running("s", "b", 2))
    )
    assert offered(of, one) == "It would start now if it need not be within one rack, or on v100 instead of h100."
    alone = msgspec.structs.replace(of, nodes=of.nodes[:1], running=of.running[:1])
    assert offered(alone, one) == "It would start now with 1 worker instead of 2."


@pytest.mark.parametrize(("left_s", "offered_s"), [(60.0, None), (61.0, 60.0), (600.0, 599.0)])
def test_a_time_out_is_offered_only_where_it_leaves_a_minute(left_s: float, offered_s: float | None) -> None:
    refusal = refusals.Refusal(code=refusals.Code.RESERVED, message="", until=NOW + left_s)
    one = gang(gpus=1)
    changes = [change.gang.at_most_s for change in remedies._small_changes(one, refusal, snapshot(node("a")), NOW)]
    assert changes == ([] if offered_s is None else [offered_s])


def test_a_pool_that_has_pools_below_it_is_not_offered() -> None:
    """Jobs wait in leaves only."""
    tree = (
        pools.Pool(name="tight", limit={"gpus": 0.0}),
        pools.Pool(name="above"),
        pools.Pool(name="leaf", parent="above"),
    )
    names = [change.gang.pool for change in remedies._other_pools(gang(pool="tight"), snapshot(node("a"), tree=tree))]
    assert names == ["default", "leaf"]
