"""Properties of every plan, over random clusters, queues and lives."""

from __future__ import annotations

import random
from collections import Counter

import hypothesis
import msgspec
import pytest
from hypothesis import strategies as st
from tests import examples, marks
from tests.scheduler import invariants, lives, world

from oarlock.scheduler import gangs, planning
from oarlock.scheduler.forecasting import forecasts, remedies
from oarlock.scheduler.reuse import memos
from oarlock.spec import errors, holdings, plans, refusals
from oarlock.spec.cluster import nodes, pools, profiles

DICE = st.randoms(use_true_random=False)
STEPS = st.integers(0, 15)
SIMPLE = lives.Kind(pools=False, roles=False)
unhurried = hypothesis.settings(
    max_examples=examples.at_most(40),
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.data_too_large],
)


def lived(dice: random.Random, steps: int, kind: lives.Kind = lives.ANY) -> lives.Life:
    """Every plan on the way is checked (`invariants`)."""
    life = lives.Life(dice, kind)
    for _ in range(steps):
        life.step()
    life.happen()
    return life


@unhurried
@hypothesis.given(DICE, STEPS)
def test_every_plan_keeps_its_promises(dice: random.Random, steps: int) -> None:
    """Gangs whole, no device twice, limits and reservations kept, no gang touched that must not be."""
    lived(dice, steps)


@unhurried
@hypothesis.given(DICE, STEPS, st.integers(0, 2**32))
def test_the_order_of_the_input_changes_nothing(dice: random.Random, steps: int, seed: int) -> None:
    life = lived(dice, steps)
    snapshot = life.world.snapshot()
    shuffled = msgspec.structs.replace(
        snapshot, **{part: mixed(getattr(snapshot, part), seed) for part in ("nodes", "pools", "waiting", "running")}
    )
    assert planning.plan(shuffled, life.now) == planning.plan(snapshot, life.now)


def mixed(of: tuple[object, ...], seed: int) -> tuple[object, ...]:
    return tuple(random.Random(seed).sample(of, len(of)))


@unhurried
@hypothesis.given(DICE, STEPS)
def test_a_memo_saves_work_and_changes_nothing(dice: random.Random, steps: int) -> None:
    def both(snapshot: plans.Snapshot, now: float, memo: memos.Memo | None) -> plans.Plan:
        answer = planning.plan(snapshot, now, memo)
        assert answer == planning.plan(snapshot, now), "with a memory of all the rounds before"
        return answer

    life = lives.Life(dice, plan=both)
    for _ in range(steps):
        life.step()


@unhurried
@hypothesis.given(DICE, STEPS)
def test_a_plan_can_be_made_again_before_it_is_carried_out(dice: random.Random, steps: int) -> None:
    """A server that dies half way through is followed by one that decides the same."""
    life = lived(dice, steps)
    snapshot = life.world.snapshot()
    assert planning.plan(snapshot, life.now, life.memo) == planning.plan(snapshot, life.now, life.memo)


@unhurried
@hypothesis.given(DICE, STEPS)
def test_a_gang_starts_once_its_victims_are_gone(dice: random.Random, steps: int) -> None:
    """Replayed step by step: the victims are told, they go, and then the newcomers start; the moved and the resized do
    so where they were meant to.
    """
    life = lived(dice, steps, SIMPLE)
    first = planning.plan(life.world.snapshot(), life.now)
    life.world.carry_out(first, life.now)
    second = planning.plan(life.world.snapshot(reallocate=False), life.now)
    by = {stopped.by for stopped in first.preemptions} & second.refusals.keys()
    assert all(second.refusals[job].code is refusals.Code.STOPPING for job in by), second.refusals
    life.world.all_gone(life.now)
    third = planning.plan(life.world.snapshot(reallocate=False), life.now)
    started = {launch.job: launch.holdings for launch in third.launches}
    assert by <= started.keys()
    for changed in (*first.resizes, *first.moves):
        if changed.job not in third.refusals or third.refusals[changed.job].code is not refusals.Code.BACKING_OFF:
            assert spots(started[changed.job]) == spots(changed.to)


def spots(claims: tuple[object, ...]) -> list[tuple[object, ...]]:
    return sorted((claim.role, claim.index, claim.node, claim.devices) for claim in claims)  # type: ignore[attr-defined]


@unhurried
@hypothesis.given(DICE, STEPS)
def test_no_gang_is_stopped_again_for_one_with_a_kept_place(dice: random.Random, steps: int) -> None:
    """While victims are on their way out, the same plan is made, not the next victims looked for."""
    life = lived(dice, steps)
    first = planning.plan(life.world.snapshot(), life.now)
    life.world.carry_out(first, life.now)
    again = planning.plan(life.world.snapshot(), life.now)
    assert not {one.by for one in first.preemptions} & {one.by for one in again.preemptions}


@pytest.mark.timeout(1800)  # a forecast for each waiting gang of each life
@unhurried
@hypothesis.given(DICE, STEPS)
def test_never_means_never(dice: random.Random, steps: int) -> None:
    """A gang that is refused for ever does not fit the empty cluster either, and every other gang does."""
    life = lived(dice, steps, lives.Kind(pools=False))
    for _ in range(3):
        life.world.waiting[f"x{life.born}"] = life.draw(f"x{life.born}")
        life.born += 1
    snapshot = life.world.snapshot()
    revived = tuple(msgspec.structs.replace(node, ready=True) for node in snapshot.nodes)
    for gang in snapshot.waiting:
        hopeful = msgspec.structs.replace(gang, not_before=None, refusal=None, destined=())
        alone = planning.plan(plans.Snapshot(nodes=revived, waiting=(hopeful,)), life.now)
        verdict = forecasts.forecast(snapshot, gang, life.now, spent=lambda: 0.0)
        if not snapshot.nodes:  # nothing is impossible before there is a node
            assert verdict.when is plans.When.LATER
            continue
        assert (verdict.when is plans.When.NEVER) == (not alone.launches)
        if verdict.when is plans.When.NEVER:
            assert verdict.refusal is not None
            assert verdict.refusal.code in refusals.NEVER
            assert verdict.refusal.message


CROWD = lives.Kind(faults=False, most_nodes=3)


@pytest.mark.parametrize("policy", ["fifo", "priority", "fair"])
@pytest.mark.parametrize("seed", range(3))
def test_where_nothing_changes_no_gang_is_stopped_for_ever(policy: str, seed: int) -> None:
    """A crowd that neither grows nor ends comes to rest: no gang takes another's place and gives it back."""
    life = crowded(policy, seed)
    stopped = [len(still(life).preemptions) for _ in range(150)]
    assert not any(stopped[-75:]), (life.world.preempted, stopped)
    assert max(life.world.preempted.values(), default=0) <= 4


@pytest.mark.parametrize("seed", [1, 3])
def test_by_attained_service_a_gang_is_stopped_a_few_times_in_its_life(seed: int) -> None:
    """At most once a band: it falls from one to the next, never back."""
    life = crowded("las", seed, kind=lives.Kind(faults=False, most_nodes=3, pools=False))
    bands = {"band1_s": 3250.0, "band2_s": 7200.0, "band3_s": 18_000.0}
    life.world.rules = msgspec.structs.replace(life.world.rules, policies={"las": bands})
    for _ in range(500):
        still(life)
    assert sum(life.world.preempted.values()), "there is something to see"
    assert max(life.world.preempted.values()) <= 4


def crowded(policy: str, seed: int, kind: lives.Kind = CROWD) -> lives.Life:
    dice = random.Random(seed)
    life = lives.Life(dice, kind)
    life.world.rules = msgspec.structs.replace(life.world.rules, policy=policy, min_runtime_s=0.0, round_s=10.0)
    life.world.pools = {name: msgspec.structs.replace(pool, policy=None) for name, pool in life.world.pools.items()}
    for _ in range(10):
        life.arrive()
    return life


def still(life: lives.Life) -> plans.Plan:
    """Ten seconds later, and nothing else happens: stopped gangs are gone."""
    life.now += 10.0
    life.world.all_gone(life.now)
    snapshot = life.world.snapshot()
    answer = planning.plan(snapshot, life.now, life.memo)
    invariants.check(snapshot, answer, life.now)
    life.world.carry_out(answer, life.now)
    return answer


@pytest.mark.parametrize("rounds", marks.long_except([200], [200, 1000]))
def test_no_gang_stops_its_own_preemptor(rounds: int) -> None:
    """Jobs come and end over many rounds: by priority no gang takes back the place that was taken from it, and
    no gang stops the same gang twice in one life of its own.
    """
    kind = lives.Kind(policies=["priority"], pools=False, faults=False, most_nodes=3, most_waiting=6)
    life = lives.Life(random.Random(2), kind)
    pairs: Counter[tuple[str, str]] = Counter()
    starts: Counter[str] = Counter()
    for _ in range(rounds):
        plan = life.step()
        starts.update(launch.job for launch in plan.launches)
        pairs.update((one.by, one.job) for one in plan.preemptions)
    assert len(pairs) >= 5, "there is something to see"
    assert not any((victim, by) in pairs for by, victim in pairs)
    assert all(count <= max(1, starts[by]) for (by, _), count in pairs.items())


def test_a_round_touches_no_gang_that_it_must_not_touch() -> None:
    """The same crowd: others are stopped in a round, and only there."""
    touching, quiet = Counter[str](), Counter[str]()
    for seed in range(10):
        life = lives.Life(random.Random(seed))
        for _ in range(30):
            life.step()
            for reallocate, seen in ((True, touching), (False, quiet)):
                answer = planning.plan(life.world.snapshot(reallocate=reallocate), life.now)
                seen["stopped"] += len(answer.preemptions)
                seen["resized"] += len(answer.resizes)
                seen["moved"] += len(answer.moves)
    assert touching["stopped"] > 0
    assert touching["resized"] > 0
    assert not any(quiet.values())


def test_an_unknown_policy_is_refused() -> None:
    shared = world.World(plans.Rules(policy="fairest")).snapshot()
    waiting = lives.Life(random.Random(0), SIMPLE).draw("a")
    with pytest.raises(errors.InvalidInput, match="no policy 'fairest'"):
        planning.plan(msgspec.structs.replace(shared, waiting=(waiting,)), 0.0)
    own = plans.Snapshot(nodes=(), pools=(pools.Pool(name="default", policy="lass"),), waiting=(waiting,))
    with pytest.raises(errors.InvalidInput, match="no policy 'lass'"):
        planning.plan(own, 0.0)


TEAM = nodes.Taint(key="team", value="a", effect="NoSchedule", tolerable=True)


def held_to(pool: str) -> tuple[plans.Gang, plans.Snapshot]:
    """Return a gang of that pool in a cluster of one free node, which the gangs of `research` alone tolerate."""
    rules = plans.Rules(profiles=(profiles.Profile(pools=("research",), tolerate=("team",)),))
    ask = plans.Ask(role="worker", count=1, min=1, max=1, amount=holdings.Resources(1000))
    gang = plans.Gang(job="j", name="j", pool=pool, asks=(ask,), submitted_at=0.0)
    free = nodes.Node(name="free", capacity=holdings.Resources(4000), taints=(TEAM,))
    full = nodes.Node(name="full", capacity=holdings.Resources(4000), taken=holdings.Resources(4000))
    declared = tuple(pools.Pool(name=name) for name in ("research", "web"))
    waiting = gangs.in_pool(gang, pool, rules.profiles)
    return waiting, plans.Snapshot(nodes=(free, full), pools=declared, waiting=(waiting,), rules=rules)


def test_a_tainted_node_is_free_for_the_gangs_whose_profile_tolerates_it() -> None:
    _, snapshot = held_to("research")
    (launch,) = planning.plan(snapshot, 0.0).launches
    assert [claim.node for claim in launch.holdings] == ["free"]
    _, snapshot = held_to("web")
    assert planning.plan(snapshot, 0.0).refusals["j"].code is refusals.Code.NO_CAPACITY


def test_the_pool_whose_profile_opens_a_node_is_offered() -> None:
    gang, snapshot = held_to("web")
    refusal = planning.plan(snapshot, 0.0).refusals["j"]
    assert (
        remedies.smallest(snapshot, gang, refusal, 0.0, lambda: 0.0).words == "It would start now in the pool research."
    )


def test_a_gang_leaves_the_nodes_that_others_may_use_to_them() -> None:
    gang, snapshot = held_to("research")
    both = [nodes.Node(name=name, capacity=holdings.Resources(4000)) for name in ("a", "z")]
    of = msgspec.structs.replace(snapshot, nodes=(both[0], snapshot.nodes[0], both[1]))
    (launch,) = planning.plan(of, 0.0).launches
    assert [claim.node for claim in launch.holdings] == ["free"]
    assert gang.constraints == nodes.Constraints(tolerates=("team",))


def test_a_gang_goes_where_its_volume_can_be_mounted() -> None:
    """Else the plan is the same each time, and each launch of it fails."""
    gang, snapshot = held_to("web")
    asks = tuple(
        msgspec.structs.replace(ask, constraints=nodes.Constraints(claims=("data", "disk"))) for ask in gang.asks
    )
    mounts = msgspec.structs.replace(gang, asks=asks)
    there = [
        nodes.Node(name=name, capacity=holdings.Resources(4000), lacks=lacks)
        for name, lacks in (("a", ("disk",)), ("b", ()), ("c", ("data", "other")))
    ]
    of = msgspec.structs.replace(snapshot, nodes=tuple(there), waiting=(mounts,))
    (launch,) = planning.plan(of, 0.0).launches
    assert [claim.node for claim in launch.holdings] == ["b"]
    without = msgspec.structs.replace(of, nodes=(there[0], there[2]))
    message = planning.plan(without, 0.0).refusals["j"].message
    assert "a (the volume of claim disk cannot be mounted there)" in message
    assert "c (the volume of claim data cannot be mounted there)" in message
