"""Devices where they save most time: the contract of every policy, and the rules of this one."""

from __future__ import annotations

import asyncio
import statistics
from typing import Any

import msgspec
import pytest
from tests import needs
from tests.scheduler.policies import candidates, conformance
from tests.simulator import published
from tests.simulator import test_published as measured

from oarlock.scheduler import planning
from oarlock.scheduler.policies import contract, optimus
from oarlock.simulator import cluster
from oarlock.simulator.engine import simulation
from oarlock.simulator.workloads import recorded
from oarlock.spec import curves, errors, holdings, plans


class TestContract(conformance.PolicyContract):
    policy = optimus


NOW = candidates.NOW
HOUR = 3600.0


def told(*rates: float, left: float | None = 10_000.0) -> curves.Curve:
    return curves.Curve(model=curves.Table(rates=rates), left=left)


GOOD = told(1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0)
POOR = told(1.0, 1.1, 1.15, 1.17, 1.18, 1.18, 1.18, 1.18)


def job(name: str, curve: curves.Curve | None, **known) -> plans.Gang:
    return candidates.gang(
        name, known.pop("at", NOW - HOUR), 1, least=1, most=known.pop("most", 8), curve=curve, **known
    )


def running(name: str, curve: curves.Curve | None, size: int, **known) -> contract.Candidate:
    return candidates.running(job(name, curve, starts=1, **known), NOW - HOUR, size=(size,))


def sizes(crowd: list[contract.Candidate], devices: int = 64, **given) -> dict[str, int]:
    room = contract.Budget(
        amount=holdings.Resources(cpus_milli=1_000_000, memory_bytes=2**45, gpus=devices),
        node_devices=(4,) * (devices // 4),
    )
    return {wish.job: wish.size[0] for wish in optimus.wishes(crowd, room, NOW, candidates.RULES, given)}


def test_the_next_device_goes_where_it_saves_most_time() -> None:
    """Each next one saves the good one 5000 s, 1667, 833, 500, 333; the poor one 909, 395, 149: six are given away."""
    assert sizes([running("good", GOOD, 1), running("poor", POOR, 1)], 8) == {"good": 5, "poor": 3}


def test_a_gang_with_more_left_saves_more_by_the_same_speed() -> None:
    crowd = [running("long", msgspec.structs.replace(GOOD, left=1e6), 1), running("short", GOOD, 1)]
    found = sizes(crowd, 8)
    assert found["long"] > found["short"] >= 1


def test_the_rest_is_known_only_where_the_job_tells_it() -> None:
    room = contract.Budget(amount=holdings.Resources(cpus_milli=64_000, memory_bytes=2**40, gpus=4), node_devices=(4,))

    def reason(curve: curves.Curve | None) -> str:
        (wish,) = optimus.wishes([candidates.waiting(job("a", curve, most=4))], room, NOW, candidates.RULES, {})
        return wish.reason

    assert reason(GOOD) == "42 min left with 4 tasks"
    unknown = "; its remaining time is not known, and taken to be as long as its time so far"
    assert reason(None).endswith(unknown), "and not 0 minutes"
    assert reason(msgspec.structs.replace(GOOD, left=None)).endswith(unknown)


def test_everybody_has_one_before_anybody_has_two() -> None:
    crowd = [candidates.waiting(job(f"j{i}", GOOD if i else POOR, at=i)) for i in range(4)]
    assert sizes(crowd, 4) == {"j0": 1, "j1": 1, "j2": 1, "j3": 1}


def test_no_gang_gets_devices_that_make_it_slower() -> None:
    assert sizes([running("a", told(1.0, 2.0, 1.5, 1.4), 1, most=4)], restarts=0.0, margin=0.0) == {"a": 2}


def test_a_running_gang_grows_only_where_that_pays_for_its_restart() -> None:
    nearly_done = msgspec.structs.replace(GOOD, left=60.0)
    assert sizes([running("a", nearly_done, 1)]) == {"a": 1}
    assert sizes([running("a", nearly_done, 1)], restarts=0.0) == {"a": 8}
    little = told(1.0, 1.05, left=1e6)
    assert sizes([running("a", little, 1, most=2)]) == {"a": 1}
    assert sizes([running("a", little, 1, most=2)], margin=0.0) == {"a": 2}


def test_an_unknown_rest_is_taken_to_be_as_much_as_was_done() -> None:
    unknown = msgspec.structs.replace(GOOD, left=None)
    crowd = [running("had much", unknown, 1, served_s=100 * HOUR), running("had little", unknown, 1)]
    found = sizes(crowd, 8)
    assert found["had much"] > found["had little"] >= 1


def test_workers_and_servers_compete() -> None:
    """Where servers are the bottleneck the next task is one of them."""
    asks = tuple(
        plans.Ask(role=role, count=1, min=1, max=8, amount=holdings.Resources(cpus_milli=1000, gpus=gpus))
        for role, gpus in (("worker", 1), ("ps", 0))
    )
    gang = msgspec.structs.replace(job("a", None), asks=asks)
    room = contract.Budget(
        amount=holdings.Resources(cpus_milli=12_000, memory_bytes=1, gpus=64), node_devices=(4,) * 16
    )

    def size(*times: float) -> plans.Size:
        curve = curves.Curve(model=curves.Servers(times=times), left=1e6)
        one = candidates.waiting(msgspec.structs.replace(gang, curve=curve))
        return optimus.wishes([one], room, NOW, candidates.RULES, {})[0].size

    workers, servers = size(1.0, 0.0, 0.0, 0.0)  # nothing is waited for at a server
    assert (workers, servers) == (8, 1)
    workers, servers = size(0.1, 5.0, 0.0, 0.0)  # all is
    assert servers > 1
    assert workers + servers == 12


def test_an_error_on_purpose_is_the_same_in_every_round_and_another_for_each_job() -> None:
    crowd = [running(f"j{i}", msgspec.structs.replace(GOOD, left=1e6), 1) for i in range(6)]
    right, wrong = sizes(crowd, 24), sizes(crowd, 24, left_error=0.9)
    assert set(right.values()) == {4}
    assert wrong == sizes(list(reversed(crowd)), 24, left_error=0.9)
    assert len(set(wrong.values())) > 1
    assert sizes(crowd, 24, speed_error=0.5) == sizes(list(reversed(crowd)), 24, speed_error=0.5)


@pytest.mark.parametrize("given", [{"margin": 1.0}, {"restarts": -1.0}, {"left_error": 1.0}, {"speed_error": -0.1}])
def test_a_parameter_that_makes_no_sense_is_refused(given) -> None:
    with pytest.raises(errors.InvalidInput, match=next(iter(given))):
        sizes([], **given)


class Told(published.Optimus):
    """Our scheduler, told what published Optimus was told: true step times, and the steps that are left."""

    def __call__(self, snapshot: plans.Snapshot, now: float, memo: Any) -> plans.Plan:
        told = msgspec.structs.replace(
            snapshot,
            waiting=tuple(self._told(gang) for gang in snapshot.waiting),
            running=tuple(msgspec.structs.replace(one, gang=self._told(one.gang)) for one in snapshot.running),
        )
        return planning.plan(told, now, memo)

    def _told(self, gang: plans.Gang) -> plans.Gang:
        most = min(self._most(gang.job), gang.asks[0].max)
        rates = tuple(1 / self._seconds(gang.job, devices) for devices in range(1, most + 1))
        curve = curves.Curve(model=curves.Table(rates=rates), left=float(self._steps_left(gang.job)))
        return msgspec.structs.replace(gang, curve=curve)


@needs.recorded
@pytest.mark.long
@pytest.mark.parametrize(("number", "mean_s"), [(1, 4087.0), (2, 6914.0), (3, 3944.0), (4, 5968.0)])
def test_as_the_oracle_it_comes_to_the_published_figures(number: int, mean_s: float) -> None:
    """Told everything, and heedless of restarts, it is the Optimus that was simulated for Pollux (OSDI '21)."""
    of = measured.read(number, recorded.Freedom.ELASTIC)
    machines = cluster.machines(cluster.parse(["16x4"]))
    rules = plans.Rules(policy="optimus", min_runtime_s=0.0, policies={"optimus": {"margin": 0.0, "restarts": 0.0}})
    settings = simulation.Settings(name="oracle", lockstep=True, rules=rules)
    sim = simulation.Simulation(of, machines, settings, None)
    sim._plan = Told(of.arrivals, lambda job: sim.agents.works[job].progress, measured.iterations)
    found = asyncio.run(sim.run()).outcome
    assert {story.phase for story in found.stories} == {"COMPLETED"}
    got = statistics.fmean(story.ended - story.arrived for story in found.stories)
    assert got == pytest.approx(mean_s, rel=0.05)
