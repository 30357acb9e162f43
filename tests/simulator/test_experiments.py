"""The experiments of examples/11-scheduling, on fewer jobs and seeds: the better variant there is better, by a margin.

The whole ones, with their charts, are in docs/experiments.md. Beside each margin stand the results of seeds 1 to 5.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest

from oarlock.simulator import scenario
from oarlock.simulator.outcomes import outcome
from oarlock.simulator.reports import summary
from oarlock.simulator.workloads import distributions

EXAMPLE = Path(__file__).parents[2] / "examples" / "11-scheduling"


def loaded() -> ModuleType:
    """The example's own script measures; this test checks the same values."""
    spec = importlib.util.spec_from_file_location("scheduling_experiments", EXAMPLE / "draw.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


draw = loaded()


def reduced(name: str, *runs: str, part: float = 1.0, **changed: Any) -> scenario.Scenario:
    """The scenario with so large a part of each group's jobs, and of its runs only these."""
    of: scenario.Scenario = draw.read(name)
    jobs = tuple(msgspec.structs.replace(group, count=math.ceil(group.count * part)) for group in of.jobs)
    return msgspec.structs.replace(of, **{"jobs": jobs, "runs": {run: of.runs[run] for run in runs}} | changed)


def simulated(of: scenario.Scenario, *seeds: int) -> dict[str, list[outcome.Outcome]]:
    found: dict[str, list[outcome.Outcome]] = draw.by_run(draw.simulated(of, seeds))
    return found


def mean(of: Callable[[summary.Summary], float], found: Iterable[outcome.Outcome]) -> float:
    return summary.mean([of(summary.of(one)) for one in found])


def completion_s(of: summary.Summary) -> float:
    return of.completion_mean_s


def waited_s(of: summary.Summary) -> float:
    return of.waited_mean_s


@pytest.mark.parametrize("name", draw.EXPERIMENTS)
def test_every_experiment_can_be_simulated_and_has_its_picture(name: str) -> None:
    of = draw.read(name)
    assert of.runs
    page = (EXAMPLE.parents[1] / "docs" / "experiments.md").read_text()
    assert f"(experiments/{name}.png)" in page
    assert f"draw.py {name}" in page
    assert 0 < (draw.PICTURES / f"{name}.png").stat().st_size < 100_000
    for title, run, policy in scenario.titles(of):
        assert scenario.case(of, EXAMPLE, title, run, policy, scenario.Run()).workload.arrivals


def test_there_is_no_scenario_without_a_picture() -> None:
    assert {path.stem for path in EXAMPLE.glob("*.yaml")} == set(draw.EXPERIMENTS)


@pytest.mark.long
def test_spreading_queues_more_jobs_for_long_than_packing() -> None:
    """Five seeds: 0 to 1 % packed, 2 to 8.5 % spread, none where those in the way are moved."""
    of = reduced("pack-or-spread", "pack", "spread", "spread, with moves", part=0.3)
    packed, spread, moved = (mean(lambda one: one.queued_long_share, found) for found in simulated(of, 3, 4).values())
    assert spread > 0.02 + 2 * packed
    assert moved < spread / 2


@pytest.mark.long
def test_learners_one_by_one_wait_for_their_siblings_and_a_gang_never_does() -> None:
    """Five seeds: 3 to 13 % of pairs of one GPU, 13 to 33 % of two, 33 to 47 % of fours."""
    runs = ["2 learners of 1 GPU", "2 learners of 2 GPUs", "4 learners of 1 GPU"]
    gangs = simulated(reduced("gang-or-pods", *(f"{run}, gang" for run in runs), until="2m"), 1)
    assert [draw.deadlocked(one) for found in gangs.values() for one in found] == [0, 0, 0]
    pods = simulated(reduced("gang-or-pods", *(f"{run}, pod by pod" for run in runs), until="2m"), 1, 2, 3)
    ones, twos, fours = (summary.mean([draw.deadlocked(one) for one in found]) for found in pods.values())
    assert 0.05 < ones < twos - 0.05
    assert twos < fours - 0.05
    assert 0.25 < fours < 0.6


@pytest.mark.long
def test_in_any_order_as_many_learners_wait_as_chance_says() -> None:
    """60 of 100 learners in random order get a GPU; the sibling of each is among the other 59 of 99."""
    of = reduced("gang-or-pods", "2 learners of 1 GPU, pod by pod", until="2m")
    at_once = msgspec.structs.replace(of.jobs[0], arrivals=distributions.Arrivals(), jitter="60s")
    (found,) = simulated(msgspec.structs.replace(of, jobs=(at_once,)), *range(1, 9)).values()
    assert summary.mean([draw.deadlocked(one) for one in found]) == pytest.approx(1 - 59 / 99, abs=0.05)


@pytest.mark.long
def test_gpus_that_wait_for_siblings_cost_all_jobs_time() -> None:
    """Five seeds: no GPU is idle with gangs. One by one 32 to 42 % are, and jobs take 29 to 46 % longer."""
    of = reduced("gang-or-pods", "4 learners of 1 GPU, gang", "4 learners of 1 GPU, pod by pod", part=0.6)
    (gang,), (pods,) = simulated(of, 1).values()
    assert draw.mean_idle(gang) == pytest.approx(0.0, abs=0.001)
    assert draw.mean_idle(pods) > 0.2
    assert summary.of(pods).completion_mean_s > 1.15 * summary.of(gang).completion_mean_s


@pytest.mark.long
def test_under_a_heavy_load_preemption_shortens_the_wait() -> None:
    """Five seeds: twice the load makes fifo wait 1.3 to 82 times as long; fifo then waits 1.3 to 6.4 times as long as
    las, 1.1 to 6.5 times as long as gittins, and its jobs take 6 to 59 and 2 to 59 % longer. At half of it they take
    -1.3 to 0.4 % longer than with las, but 54 % in seed 4, where large ones come together.
    """
    runs = ["0.5x fifo", "0.5x las", "1x fifo", "1x las", "1x gittins"]
    found = list(simulated(reduced("load", *runs, part=0.15, nodes="8x4"), 1, 2, 3).values())
    light, light_las, heavy, *served = ([mean(of, one) for of in (completion_s, waited_s)] for one in found)
    assert light[0] == pytest.approx(light_las[0], rel=0.03)
    assert heavy[1] > 3 * light[1]
    for completion, waited in served:
        assert heavy[0] > 1.03 * completion
        assert heavy[1] > 1.2 * waited


@pytest.mark.long
def test_elastic_jobs_are_done_sooner_and_leave_fewer_gpus_idle() -> None:
    """Five seeds: 38 to 49 % sooner; 16 to 42 points more of the GPUs at work."""
    of = reduced("elastic-or-fixed", "fixed, fifo", "elastic, goodput", part=0.25)
    fixed, elastic = simulated(of, 1, 2).values()
    assert mean(completion_s, elastic) < 0.8 * mean(completion_s, fixed)
    assert mean(lambda one: one.useful_share, elastic) > 0.08 + mean(lambda one: one.useful_share, fixed)


@pytest.mark.long
def test_wrong_speeds_cost_time_and_wrong_remaining_work_hardly_any() -> None:
    """Five seeds: speeds wrong by up to 90 % cost 11 to 21 %; remaining work, -3 to 1 %."""
    of = reduced("prediction-error", "no error", "remaining work, 90 %", "speed, 90 %", part=0.2)
    exact, left, speed = (mean(completion_s, found) for found in simulated(of, 1, 2, 3).values())
    assert speed > 1.06 * exact
    assert left == pytest.approx(exact, rel=0.05)
