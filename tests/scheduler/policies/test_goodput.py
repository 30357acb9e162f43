"""Devices where they bring most: the contract of every policy, and the rules of this one."""

from __future__ import annotations

import asyncio
import statistics

import msgspec
import pytest
from tests import needs
from tests.scheduler.policies import candidates, conformance
from tests.simulator import test_published as measured

from oarlock.scheduler import planning
from oarlock.scheduler.policies import contract, goodput
from oarlock.scheduler.speed import rates
from oarlock.simulator import cluster
from oarlock.simulator.engine import simulation
from oarlock.simulator.workloads import recorded
from oarlock.spec import curves, errors, holdings, jobfile, plans
from oarlock.spec.cluster import nodes

NOW = candidates.NOW
HOUR = 3600.0


def model(exchange_s: float, **known) -> curves.Curve:
    """Compute of 1 s for 100 examples at once; the more an exchange takes, the less more devices bring."""
    return curves.Curve(
        model=curves.Allreduce(
            **{
                "compute_s": 0.0,
                "compute_per_example_s": 0.01,
                "near_s": exchange_s,
                "far_s": exchange_s,
                "noise": 1000.0,
                "seen": 16,
                **known,
            }
        )
    )


BATCH = jobfile.Batch(size=100, max=1600, local_max=100)

GOOD = model(0.1)
POOR = model(5.0)


def job(name: str, curve: curves.Curve | None, **known) -> plans.Gang:
    """One worker of one device at least, 16 at most; an hour old."""
    return candidates.gang(
        name,
        known.pop("at", NOW - HOUR),
        1,
        least=known.pop("least", 1),
        most=known.pop("most", 16),
        curve=curve,
        batch=known.pop("batch", BATCH),
        **known,
    )


def budget(devices: int) -> contract.Budget:
    return contract.Budget(
        amount=holdings.Resources(cpus_milli=1_000_000, memory_bytes=2**45, gpus=devices),
        node_devices=(4,) * (devices // 4),
    )


def ask(crowd: list[contract.Candidate], devices: int = 64, rules: plans.Rules = candidates.RULES, **given) -> dict:
    return {wish.job: wish for wish in goodput.wishes(crowd, budget(devices), NOW, rules, given)}


def sizes(crowd: list[contract.Candidate], devices: int = 64, **given) -> dict[str, int]:
    return {name: wish.size[0] for name, wish in ask(crowd, devices, **given).items()}


def running(
    name: str, curve: curves.Curve | None, size: int, *, since: float = NOW - HOUR, **known
) -> contract.Candidate:
    known.setdefault("starts", 1)
    batch = known.pop("now", None)
    return candidates.running(job(name, curve, **known), since, size=(size,), batch=batch)


class TestContract(conformance.PolicyContract):
    policy = goodput


def test_a_gang_that_speeds_up_more_gets_more() -> None:
    found = sizes([running("good", GOOD, 2), running("poor", POOR, 2)], 16)
    assert found["good"] > found["poor"]
    assert sum(found.values()) <= 16


def test_equal_gangs_get_the_same() -> None:
    assert sizes([running(name, GOOD, 1) for name in "abcd"], 16) == {"a": 4, "b": 4, "c": 4, "d": 4}


def test_everybody_has_its_least_before_anybody_has_more() -> None:
    crowd = [running("old", GOOD, 4), *(candidates.waiting(job(f"new{i}", None, at=NOW)) for i in range(3))]
    assert sizes(crowd, 4) == {"old": 1, "new0": 1, "new1": 1, "new2": 1}


def test_a_gang_without_space_waits_for_its_least() -> None:
    crowd = [candidates.waiting(job(f"j{i}", None, at=i)) for i in range(6)]
    assert sizes(crowd, 4) == dict.fromkeys([f"j{i}" for i in range(6)], 1)


def test_an_unknown_gang_starts_small_and_grows_as_it_is_measured() -> None:
    """Its speed on the 16 devices that it could have is unknown."""
    assert sizes([candidates.waiting(job("new", None))]) == {"new": 4}
    assert sizes([running("once seen", model(0.1, seen=1), 1)]) == {"once seen": 4}
    assert sizes([running("seen on four", model(0.1, seen=4), 4)]) == {"seen on four": 16}
    assert sizes([running("told", curves.Curve(model=curves.Table(rates=tuple(range(1, 17)))), 1)]) == {"told": 16}


def test_beyond_a_bound_service_does_not_count() -> None:
    crowd = [running("old", GOOD, 4, served_s=500 * HOUR), running("middle", GOOD, 4, served_s=20 * HOUR)]
    assert sizes(crowd, 16)["old"] < 8 < sizes(crowd, 16)["middle"]
    assert sizes(crowd, 16, old_s=10 * HOUR) == {"old": 8, "middle": 8}


def test_a_change_must_pay_for_its_restart() -> None:
    """Two devices more bring 17 %: too little for a gang that has only begun, or has been restarted often."""
    curve = curves.Curve(model=curves.Table(rates=(1.0, 1.5, 1.5, 1.76)))
    keeps = {"most": 4, "batch": None}
    assert sizes([running("a", curve, 2, **keeps)]) == {"a": 2}
    assert sizes([running("a", curve, 2, **keeps)], margin=0.05) == {"a": 4}
    assert sizes([running("a", curve, 2, at=NOW - 60, since=NOW - 60, **keeps)], margin=0.05) == {"a": 2}
    assert sizes([running("a", curve, 2, starts=12, **keeps)], margin=0.05) == {"a": 2}


def test_a_gang_that_was_served_much_gives_way_to_one_that_was_not() -> None:
    """The younger of two equal gangs may be the shorter one: no measurement tells."""
    crowd = [
        running("old", GOOD, 1, served_s=500 * HOUR),
        running("young", GOOD, 1, served_s=0.0),
    ]
    found = sizes(crowd, 12)
    assert found["young"] > found["old"]
    assert sizes(crowd, 8, age=0.0) == {"old": 4, "young": 4}


def test_priority_counts() -> None:
    found = sizes([running("dear", GOOD, 1, priority=100), running("cheap", GOOD, 1, priority=0)], 12)
    assert found["dear"] > found["cheap"]


@pytest.mark.parametrize(
    ("why", "known"),
    [
        ("must not be stopped", {"preemptible": False}),
        ("has run too briefly to be stopped", {"since": NOW - 60}),
    ],
)
def test_nothing_is_taken_from_one_that(why, known) -> None:
    crowd = [running("has", POOR, 8, **known), running("wants", GOOD, 4)]
    assert sizes(crowd, 12)["has"] == 8
    crowd = [running("has", POOR, 8), running("wants", GOOD, 4)]
    assert sizes(crowd, 12)["has"] < 8


def test_one_that_must_not_be_stopped_does_not_grow_either() -> None:
    assert sizes([running("a", GOOD, 2, preemptible=False)]) == {"a": 2}


def test_while_it_is_being_resized_it_counts_as_if_it_were() -> None:
    """Else it would be a newcomer to the next plan, and another gang would get the place that was cleared for it."""
    gang = job("a", GOOD, starts=1, stopped_at=NOW - 5)
    gang = msgspec.structs.replace(gang, destined=candidates.holdings_of(gang, (2,)))
    assert sizes([candidates.waiting(gang)], 16) == {"a": 2}
    long_ago = msgspec.structs.replace(gang, stopped_at=NOW - 2 * contract.RESIZING_S)
    assert sizes([candidates.waiting(long_ago)], 16) == {"a": 16}


def test_the_batch_is_decided_with_the_size() -> None:
    wish = ask([running("a", GOOD, 1)])["a"]
    devices = wish.size[0]
    assert wish.batch == rates.best_batch(GOOD, BATCH, rates.Shape(devices // 4, devices))
    assert wish.batch is not None
    assert wish.batch.local * wish.batch.accumulate * devices > BATCH.size
    assert ask([candidates.waiting(job("new", None))])["new"].batch is None


def test_a_batch_that_is_nearly_best_is_kept() -> None:
    fixed = {"least": 4, "most": 4}
    best = ask([running("a", GOOD, 4, **fixed)])["a"].batch
    assert best is not None
    near = curves.Batch(best.local - 1, best.accumulate)
    assert ask([running("a", GOOD, 4, now=near, **fixed)])["a"].batch == near
    assert ask([running("a", GOOD, 4, now=curves.Batch(25), **fixed)])["a"].batch == best


def test_gangs_that_are_not_elastic_are_served_by_priority_and_arrival() -> None:
    crowd = [
        candidates.waiting(candidates.gang("late", 30.0, 4)),
        candidates.waiting(candidates.gang("early", 20.0, 4)),
        candidates.waiting(candidates.gang("high", 40.0, 4, priority=60)),
    ]
    wishes = goodput.wishes(crowd, budget(8), NOW, candidates.RULES, {})
    assert candidates.jobs(wishes) == ["high", "early", "late"]
    assert [wish.size for wish in wishes] == [(4,)] * 3


def test_a_rigid_gang_is_made_room_for_by_elastic_ones() -> None:
    crowd = [running("elastic", GOOD, 16), candidates.waiting(candidates.gang("rigid", NOW, 8))]
    found = sizes(crowd, 16)
    assert found["rigid"] == 8
    assert found["elastic"] <= 8


def test_elastic_gangs_take_turns_where_there_are_too_many() -> None:
    """One that has had its turn may be stopped for a newcomer; a rigid one never is, nor does one stop it."""
    levels = candidates.levels(
        goodput.wishes(
            [
                running("had its turn", GOOD, 1, served_s=5 * HOUR),
                running("has begun", GOOD, 1, since=NOW - 60),
                candidates.waiting(job("new", None)),
                candidates.running(candidates.gang("rigid", 0.0, 1, served_s=500 * HOUR)),
                candidates.waiting(candidates.gang("rigid too", 0.0, 1)),
            ],
            budget(4),
            NOW,
            candidates.RULES,
            {},
        )
    )
    assert levels["had its turn"] > levels["new"]
    assert levels["has begun"] == levels["new"]
    assert levels["rigid"] <= levels["new"]
    assert levels["rigid too"] >= max(levels.values())


def test_waiting_gangs_come_first_then_those_that_gain_most() -> None:
    crowd = [
        running("grows little", POOR, 1, at=0.0),
        running("grows much", GOOD, 1, at=10.0),
        candidates.waiting(job("new", None, at=20.0)),
    ]
    assert candidates.jobs(goodput.wishes(crowd, budget(64), NOW, candidates.RULES, {}))[:2] == ["new", "grows much"]


def test_gangs_without_devices_divide_cpus() -> None:
    plain = candidates.gang("a", 0.0, 1, least=1, most=8)
    asks = tuple(msgspec.structs.replace(one, amount=holdings.Resources(cpus_milli=2000)) for one in plain.asks)
    crowd = [candidates.waiting(msgspec.structs.replace(plain, job=name, name=name, asks=asks)) for name in ("a", "b")]
    room = contract.Budget(
        amount=holdings.Resources(cpus_milli=12_000, memory_bytes=2**40, gpus=64), node_devices=(4,) * 16
    )
    found = {wish.job: wish.size[0] for wish in goodput.wishes(crowd, room, NOW, candidates.RULES, {})}
    assert sum(found.values()) <= 6
    assert min(found.values()) >= 2


@pytest.mark.parametrize(
    "given",
    [
        {"power": 0.0},
        {"power": 1.5},
        {"young_s": 0.0},
        {"first": 0.5},
        {"growth": 0.0},
        {"margin": -0.1},
        {"old_s": -1.0},
    ],
)
def test_a_parameter_that_makes_no_sense_is_refused(given) -> None:
    with pytest.raises(errors.InvalidInput, match=next(iter(given))):
        ask([], **given)


# Through the plan


def machines(count: int, devices: int) -> tuple[nodes.Node, ...]:
    return tuple(
        nodes.Node(
            name=f"n{i}",
            capacity=holdings.Resources(cpus_milli=64_000, memory_bytes=2**40, gpus=devices),
            devices=tuple(nodes.Device(index=d, type="v100", memory_bytes=2**34) for d in range(devices)),
        )
        for i in range(count)
    )


RULES = plans.Rules(policy="goodput")


def test_a_snapshot_of_plain_numbers_is_enough() -> None:
    """Another simulator can ask for sizes, places and batches: no server, no clock, numbers and a curve per job."""
    curve = rates.of_params((0.1, 0.01, 0.2, 0.01, 0.05, 0.005, 1.5), (1.0, 10.0), 128, seen=2)
    gang = plans.Gang(
        job="cifar10-3",
        name="cifar10-3",
        pool="default",
        asks=(plans.Ask(role="worker", count=1, min=1, max=16, amount=holdings.Resources(gpus=1)),),
        submitted_at=120.0,
        curve=curve,
        batch=jobfile.Batch(size=128, max=4096, local_min=32, local_max=1024),
    )
    snapshot = plans.Snapshot(nodes=machines(4, 4), waiting=(gang,), rules=RULES)
    (launch,) = planning.plan(snapshot, 180.0).launches
    assert len(launch.holdings) == 8  # four times as many as it was seen with
    assert launch.batch is not None
    assert 128 <= launch.batch.local * launch.batch.accumulate * 8 <= 4096


def test_a_newcomer_to_a_full_cluster_is_made_room_for() -> None:
    held = candidates.holdings_of(job("old", GOOD), (16,))
    old = plans.Running(gang=job("old", GOOD, starts=1), holdings=held, started_at=NOW - HOUR)
    new = job("new", None, at=NOW)
    snapshot = plans.Snapshot(nodes=machines(4, 4), waiting=(new,), running=(old,), rules=RULES)
    plan = planning.plan(snapshot, NOW)
    (resize,) = plan.resizes
    assert resize.job == "old"
    assert 1 <= resize.size[0] < 16
    stopping = msgspec.structs.replace(old, stopping=True, returns=True)
    gone = msgspec.structs.replace(old.gang, stopped_at=NOW, destined=resize.to)
    between = planning.plan(msgspec.structs.replace(snapshot, running=(stopping,), reallocate=False), NOW + 1)
    assert between.launches == ()
    after = planning.plan(msgspec.structs.replace(snapshot, waiting=(new, gone), running=(), reallocate=False), NOW + 2)
    found = {launch.job: len(launch.holdings) for launch in after.launches}
    assert found["old"] == resize.size[0]
    assert found["new"] >= 1


def test_a_batch_is_changed_without_a_restart() -> None:
    gang = job("a", GOOD, starts=1, least=4, most=4)
    held = candidates.holdings_of(gang, (4,))
    one = plans.Running(gang=gang, holdings=held, started_at=NOW - HOUR, batch=curves.Batch(25))
    plan = planning.plan(plans.Snapshot(nodes=machines(1, 4), running=(one,), rules=RULES), NOW)
    assert (plan.resizes, plan.preemptions, plan.moves) == ((), (), ())
    assert plan.batches["a"].local * plan.batches["a"].accumulate > 25


# Against published figures


@needs.recorded
@pytest.mark.long
@pytest.mark.parametrize(("number", "mean_s"), [(1, 2089.0), (2, 3323.0), (3, 2189.0), (4, 2721.0)])
def test_no_worse_than_pollux(number: int, mean_s: float) -> None:
    """The average completion of Pollux (OSDI '21) on its own workloads, with at most three restarts for each job, and
    without being told how much each still has to do.
    """
    of = measured.read(number, recorded.Freedom.ADAPTIVE)
    settings = simulation.Settings(name="goodput", rules=RULES, ends_told=False)
    sim = simulation.Simulation(of, cluster.machines(cluster.parse(["16x4"])), settings, planning.plan)
    found = asyncio.run(sim.run()).outcome
    assert {story.phase for story in found.stories} == {"COMPLETED"}
    assert statistics.fmean(story.ended - story.arrived for story in found.stories) <= mean_s
    assert statistics.fmean(story.starts - 1 for story in found.stories) <= 3
