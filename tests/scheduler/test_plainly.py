"""The fast scheduler decides as the plain one does; and its passing results agree with the definitions."""

from __future__ import annotations

import random
from typing import NamedTuple

import hypothesis
import msgspec
import pytest
from hypothesis import strategies as st
from tests import examples
from tests.scheduler import drafted, lives

from oarlock.scheduler import amounts, planning
from oarlock.scheduler.ordering import budgets
from oarlock.scheduler.placement import freespace, placing
from oarlock.scheduler.pools import poolbounds
from oarlock.scheduler.preemption import clearing, victims
from oarlock.scheduler.reuse import gangfacts, memos, shortcuts
from oarlock.spec import holdings, plans, refusals
from oarlock.spec.cluster import nodes, pools

DICE = st.randoms(use_true_random=False)
STEPS = st.integers(0, 25)
EVERY = ("fifo", "priority", "fair", "las", "gittins", "gandiva", "goodput")
MANY = lives.Kind(policies=EVERY, most_nodes=4, most_waiting=30)
DECIDED = ("launches", "preemptions", "resizes", "moves", "batches")
UNLIMITED = shortcuts.ALL._replace(**dict.fromkeys(("clearances", "looks", "trials"), shortcuts.UNLIMITED))
"""All shortcuts, but no limit: a search that one plan leaves to the next is another decision."""
Code = refusals.Code
TOLD = {Code.STOPPING, Code.BACKING_OFF, Code.OUTRANKED}
"""A reason in words of its own. Where a gang waits for several things, any one may be named: a gang that is like
another one is told the same.
"""

unhurried = hypothesis.settings(
    max_examples=examples.at_most(60),
    deadline=None,
    phases=[hypothesis.Phase.explicit, hypothesis.Phase.reuse, hypothesis.Phase.generate],  # smaller says no more
    suppress_health_check=[hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.data_too_large],
)


def same(snapshot: plans.Snapshot, now: float, memo: memos.Memo | None) -> plans.Plan:
    fast = planning.plan(snapshot, now, memo, shortcuts=UNLIMITED)
    plain = planning.plan(snapshot, now, shortcuts=shortcuts.NONE)
    for part in DECIDED:
        assert getattr(fast, part) == getattr(plain, part), part
    assert {*fast.refusals} == {*plain.refusals}
    for job, refusal in fast.refusals.items():
        other = plain.refusals[job]
        assert refusal.ahead == other.ahead or refusal.code is not other.code, job
        assert refusal.code is other.code or not {refusal.code, other.code} & TOLD, (job, refusal, other)
    return fast


class Twins(lives.Life):
    """Many that come are just like others that are there. A node that comes back is what it was: of one that lost a
    device that is still held the sums say less than its devices.
    """

    def __init__(self, dice: random.Random, kind: lives.Kind = MANY) -> None:
        self.made: dict[str, nodes.Node] = {}
        super().__init__(dice, kind, plan=same)

    def _node(self, name: str) -> nodes.Node:
        if name not in self.made:
            self.made[name] = super()._node(name)
        return self.made[name]

    def draw(self, name: str) -> plans.Gang:
        gang = super().draw(name)
        others = [*self.world.waiting.values(), *(one.gang for one in self.world.running.values())]
        if not others or self.dice.random() < 0.4:
            return gang
        like = self.dice.choice(others)
        kept = {part: getattr(like, part) for part in ("pool", "asks", "placement", "topology", "mixed", "beside")}
        return msgspec.structs.replace(gang, **kept, preemptible=like.preemptible)


@unhurried
@hypothesis.given(DICE, STEPS)
def test_shortcuts_change_nothing(dice: random.Random, steps: int) -> None:
    """A queue that is kept in order, refusals by likeness, sums, memories: against sorting and working out anew."""
    life = Twins(dice)
    for _ in range(8):
        life.arrive()
    for _ in range(steps):
        life.step()


@unhurried
@hypothesis.given(DICE, STEPS)
def test_shortcuts_change_nothing_where_nodes_are_closed_to_some_gangs(dice: random.Random, steps: int) -> None:
    """A refusal by likeness, an index or a sum of one class of gangs must not serve another class."""
    life = Twins(dice, MANY._replace(walls=True))
    for _ in range(8):
        life.arrive()
    for _ in range(steps):
        life.step()


class Situation(NamedTuple):
    """A cluster in the words of `scenario`, and the gangs that start or make others stop."""

    lines: str
    starts: tuple[str, ...] = ()
    stops: tuple[tuple[str, str], ...] = ()


SITUATIONS = {
    "a gang that ends in time is exempt from what is kept": Situation(
        """
        rules policy=priority min_runtime=0
        node n gpus=8
        pool team limit.gpus=4
        running low gpus=1 on=n pool=team priority=10 started=0 end=10100
        running high gpus=3 on=n pool=team priority=90 started=0 end=11000
        job large gpus=4 pool=team
        job long gpus=1 pool=team timeout=5000
        job short gpus=1 pool=team timeout=50
        """,
        stops=(("low", "short"),),
    ),
    "no gang overtakes one like it where a third has freed much": Situation(
        """
        rules policy=priority min_runtime=0
        node n gpus=4 cpus=16
        pool b
        pool c
        running big cpus=12 on=n pool=b priority=10
        running one gpus=2 cpus=1 on=n pool=c
        running two gpus=2 cpus=1 on=n pool=c
        job x cpus=16 pool=c
        job first gpus=1 cpus=1 pool=b
        job small cpus=4 pool=b
        job second gpus=1 cpus=1 pool=b
        """,
        stops=(("big", "small"),),
    ),
    "no limit is kept for a gang behind one like it that waits for space": Situation(
        """
        rules policy=las
        node a gpus=2
        node b gpus=2
        node c gpus=3
        pool p limit.gpus=4
        pool q
        running held gpus=3 on=c pool=q preemptible=no
        job first tasks=3 gpus=1 same=node required pool=p
        job small gpus=2 pool=p
        job second tasks=3 gpus=1 same=node required pool=p
        job last gpus=2 pool=p
        """,
        starts=("small", "last"),
    ),
    "an impossible gang speaks for none that was possible before": Situation(
        """
        rules policy=fifo
        node a gpus=6
        node b gpus=3
        pool p limit.gpus=8 reserve.gpus=4
        running r gpus=1 on=a pool=p
        job old tasks=2 gpus=4 pool=p at=2
        plan
        carry
        finish r
        job new tasks=2 gpus=4 pool=p at=0
        job one gpus=1 pool=p preemptible=no at=1
        job two gpus=1 pool=p preemptible=no at=3
        """,
        starts=("one",),
    ),
}


@pytest.mark.parametrize("situation", SITUATIONS.values(), ids=SITUATIONS.keys())
def test_a_gang_like_an_earlier_one(situation: Situation) -> None:
    plan = same(drafted.cluster(situation.lines).snapshot(), drafted.NOW, None)
    assert tuple(launch.job for launch in plan.launches) == situation.starts
    assert tuple((stopped.job, stopped.by) for stopped in plan.preemptions) == situation.stops


@pytest.mark.long
def test_the_same_in_lives_in_which_much_happens() -> None:
    """Enough is stopped, resized and moved for the property to see something."""
    seen = dict.fromkeys(DECIDED[:4], 0)
    for seed in range(60):
        life = Twins(random.Random(seed))
        for _ in range(40):
            plan = life.step()
            for part in seen:
                seen[part] += len(getattr(plan, part))
    assert min(seen.values()) > 2, seen


# The gangs to stop


class Small(lives.Life):
    """One task for almost every gang, so that many run on few nodes."""

    def _ask(self, role: str) -> plans.Ask:
        ask = super()._ask(role)
        large = self.dice.random() < 0.2
        return ask if large else msgspec.structs.replace(ask, count=1, min=1, max=1)


class Scene:
    """A full cluster, and one that fits nowhere in it."""

    def __init__(self, dice: random.Random) -> None:
        life = Small(dice, lives.Kind(pools=False, faults=False, topology=False, most_nodes=4, most_waiting=30))
        for _ in range(14):
            life.arrive()
        life.step()
        life.step()
        snapshot = life.world.snapshot()
        self.space = freespace.FreeSpace(snapshot.nodes, [claim for job in snapshot.running for claim in job.holdings])
        self.leaving = [claim for job in snapshot.running if job.stopping for claim in job.holdings]
        self.facts = gangfacts.Facts()
        self.candidates = [self._whole(job, dice) for job in snapshot.running if not job.stopping]
        self.gang = life.draw("newcomer")

    def _whole(self, job: plans.Running, dice: random.Random) -> victims.Victim:
        amount = self.facts.held(job).amount
        nothing = (0,) * len(job.gang.asks)
        return victims.Victim(job, job.holdings, nothing, float(dice.choice([0, 1, 1, 5, 60])), amount)

    def need(self, within: amounts.Amount | None) -> clearing.Need:
        """With a bound: so much, at least, must be given up."""

        def enough(freed: clearing.Freed) -> bool:
            together = amounts.NOTHING
            for amount in freed.values():
                together = amounts.plus(together, amount)
            return within is None or all(one >= least for one, least in zip(together, within, strict=True))

        profile = self.facts.of(self.gang)
        return clearing.Need(self.gang, profile.smallest, profile.least, None if within is None else enough)

    def clear(self, need: clearing.Need) -> clearing.Clearance | None:
        searches = clearing.Searches(shortcuts.ALL._replace(trials=shortcuts.UNLIMITED))
        if not searches.may_do(need, self.candidates, self.space):
            return None
        return clearing.clear(need, self.candidates, self.space, _never_bends, searches)

    def fits_without(self, need: clearing.Need, gone: list[victims.Victim]) -> bool:
        """Worked out in a room of its own."""
        left = [one for one in self.candidates if one not in gone]
        others = [node.node for node in self.space.nodes.values()]
        space = freespace.FreeSpace(others, [*self.leaving, *(claim for one in left for claim in one.claims)])
        freed = {("default", True): amounts.NOTHING}
        for one in gone:
            freed["default", True] = amounts.plus(freed["default", True], one.amount)
        within = need.within is None or need.within(freed)
        return within and placing.place(need.gang, space, need.size) is not None


def _never_bends(victim: victims.Victim, size: plans.Size) -> victims.Victim:
    raise AssertionError("none of them bends")


BOUND = st.one_of(st.none(), st.integers(0, 6).map(lambda devices: (1000 * devices, 0, 0)))


@unhurried
@hypothesis.given(DICE, BOUND)
def test_each_victim_is_needed(dice: random.Random, bound: amounts.Amount | None) -> None:
    """It fits once they are gone; and would not, were any one of them still there."""
    context = Scene(dice)
    need = context.need(bound)
    hypothesis.assume(not context.fits_without(need, []))
    found = context.clear(need)
    if found is None:
        assert not context.fits_without(need, list(context.candidates)), (
            "no victim was found, though all together would do"
        )
        return
    chosen = list(found.victims)
    assert context.fits_without(need, chosen)
    for victim in chosen:
        rest = [one for one in chosen if one is not victim]
        assert not context.fits_without(need, rest), (victim.job, [one.job for one in chosen])


# Bounds


@unhurried
@hypothesis.given(DICE, st.integers(1, 20), st.booleans())
def test_a_bound_is_a_sum(dice: random.Random, steps: int, lent: bool) -> None:
    """What would be exceeded once so much is gone, however often it is asked: limits and reservations from what is held
    alone.
    """
    life = lives.Life(dice, lives.Kind(faults=False))
    for _ in range(steps):
        life.step()
    snapshot = life.world.snapshot()
    memo = memos.Memo()
    memo.follow(snapshot)
    bounds = poolbounds.PoolBounds(snapshot, life.now, budgets.whole(snapshot.nodes).amount, memo.totals)
    going = [job for job in snapshot.running if not job.stopping and dice.random() < 0.5]
    freed: dict[poolbounds.Key, amounts.Amount] = {}
    for job in going:
        key = job.gang.pool, job.gang.preemptible
        freed[key] = amounts.plus(freed.get(key, amounts.NOTHING), memo.facts.held(job).amount)
    stays = [job for job in snapshot.running if not job.stopping and job not in going]
    for gang in snapshot.waiting:
        amount = memo.facts.of(gang).least
        for _ in range(2):
            over = bounds.over(gang, amount, freed, lent=lent)
            exceeded = _limits_exceeded(snapshot, gang, [*stays], amount)
            if over is not None and over.kind is poolbounds.Kind.LIMIT:
                assert exceeded
            if exceeded:
                assert over is not None


def _limits_exceeded(
    snapshot: plans.Snapshot, gang: plans.Gang, stays: list[plans.Running], amount: amounts.Amount
) -> bool:
    declared = {pool.name: pool for pool in snapshot.pools}
    if not lives.invariants.bounded(snapshot):
        return False
    asked = holdings.Resources(amount[1], amount[2], 0, amount[0])
    return any(
        pools.amounts(asked)[resource]
        and sum(
            pools.amounts(one)[resource]
            for one in [
                asked,
                *(
                    lives.invariants.total(job.holdings)
                    for job in stays
                    if name in lives.invariants.line(job.gang.pool, declared)
                ),
            ]
        )
        > limit + 1e-6
        for name in lives.invariants.line(gang.pool, declared)
        for resource, limit in declared[name].limit.items()
    )
