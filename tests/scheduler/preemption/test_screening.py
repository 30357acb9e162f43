"""The upper bounds of the screening: a place that there is, once gangs are gone, is never ruled out."""

from __future__ import annotations

import random

import hypothesis
import msgspec
import pytest
from hypothesis import strategies as st
from tests import examples
from tests.scheduler import lives

from oarlock.scheduler.placement import freespace, placing
from oarlock.scheduler.preemption import screening
from oarlock.spec import holdings, jobfile, plans
from oarlock.spec.cluster import nodes


@hypothesis.settings(max_examples=examples.at_most(40), deadline=None)
@hypothesis.given(st.randoms(use_true_random=False), st.integers(2, 12))
def test_a_place_is_never_ruled_out(dice: random.Random, steps: int) -> None:
    life = lives.Life(dice, lives.Kind(faults=False))
    for _ in range(steps):
        life.step()
    snapshot = life.world.snapshot()
    held = [claim for job in snapshot.running for claim in job.holdings]
    space = freespace.FreeSpace(snapshot.nodes, held)
    going = [claim for claim in held if dice.random() < 0.7]
    gang = life.draw("newcomer")
    may_fit = screening.could_fit(gang, gang.smallest, screening.freed(going), space)
    with space.trial():
        space.give_back(going)
        assert may_fit or placing.place(gang, space, gang.smallest) is None


@pytest.mark.parametrize(("tasks", "may_fit"), [(3, True), (4, True), (5, False)])
def test_a_search_in_vain_is_ruled_out(tasks: int, may_fit: bool) -> None:
    """Four nodes with two CPUs each, one of them held: a task needs both CPUs of a node."""
    of = [nodes.Node(name=name, capacity=holdings.Resources(2000)) for name in "abcd"]
    held = [
        holdings.Holding(job=name, attempt=1, role="worker", index=0, node=name, amount=holdings.Resources(1000))
        for name in "abcd"
    ]
    space = freespace.FreeSpace(of, held)
    ask = plans.Ask(role="worker", count=tasks, min=tasks, max=tasks, amount=holdings.Resources(2000))
    gang = plans.Gang(job="newcomer", name="newcomer", pool="default", asks=(ask,), submitted_at=0.0)
    assert screening.could_fit(gang, (tasks,), screening.freed(held), space) is may_fit
    assert not screening.could_fit(gang, (tasks,), screening.freed(held[:2]), space)


@pytest.mark.parametrize(("tasks", "may_fit"), [(3, True), (4, False)])
def test_a_domain_must_take_all_tasks(tasks: int, may_fit: bool) -> None:
    """Two racks of two nodes. One has two free CPUs and gets back one more; the other one has one, and gets one."""
    of = [
        nodes.Node(name=name, capacity=holdings.Resources(2000), domains={"rack": rack})
        for name, rack in (("a", "r"), ("b", "r"), ("c", "s"), ("d", "s"))
    ]
    held = [
        holdings.Holding(job=name, attempt=1, role="worker", index=index, node=name, amount=holdings.Resources(1000))
        for index, name in enumerate("aabccd")
    ]
    held = [msgspec.structs.replace(claim, job=f"j{place}") for place, claim in enumerate(held)]
    space = freespace.FreeSpace(of, held[1:])
    ask = plans.Ask(role="worker", count=tasks, min=tasks, max=tasks, amount=holdings.Resources(1000))
    gang = plans.Gang(
        job="newcomer",
        name="newcomer",
        pool="default",
        asks=(ask,),
        submitted_at=0.0,
        topology=jobfile.Topology(same=jobfile.Domain.RACK, required=True),
    )
    given = screening.freed([held[2], held[3]])
    assert screening.could_fit(gang, (tasks,), given, space) is may_fit


@pytest.mark.parametrize("level", [None, jobfile.Domain.RACK])
def test_nodes_that_could_not_take_the_gang_give_nothing_back(level: jobfile.Domain | None) -> None:
    """One is gone, one is not ready, and one is in no rack, which counts only where a rack is required."""
    of = [
        nodes.Node(name="here", capacity=holdings.Resources(1000), domains={"rack": "r"}),
        nodes.Node(name="lost", capacity=holdings.Resources(9000), domains={"rack": "r"}, ready=False),
        nodes.Node(name="alone", capacity=holdings.Resources(3000)),
    ]
    given = {name: [0, 3000, 0] for name in ("here", "lost", "alone", "gone")}
    held = [
        holdings.Holding(job=name, attempt=1, role="worker", index=0, node=name, amount=holdings.Resources(amount))
        for name, amount in (("here", 1000), ("alone", 3000))
    ]
    space = freespace.FreeSpace(of, held)

    def may_fit(tasks: int) -> bool:
        ask = plans.Ask(role="worker", count=tasks, min=tasks, max=tasks, amount=holdings.Resources(1000))
        topology = None if level is None else jobfile.Topology(same=level, required=True)
        gang = plans.Gang(
            job="newcomer", name="newcomer", pool="default", asks=(ask,), submitted_at=0.0, topology=topology
        )
        return screening.could_fit(gang, (tasks,), given, space)

    most = 6 if level is None else 3
    assert (may_fit(most), may_fit(most + 1)) == (True, False)
