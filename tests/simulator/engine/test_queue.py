"""The simulator against queueing theory: one node with one device is an M/D/1 queue."""

from __future__ import annotations

import math
import random
import statistics

import pytest
from tests.simulator import smallcases

from oarlock.simulator.outcomes import outcome
from oarlock.simulator.workloads import workload

SERVICE_S = 100.0
JOBS = 3000


def arrivals(load: float, seed: int, jobs: int = JOBS) -> list[workload.Arrival]:
    chance, at, made = random.Random(seed), 0.0, []
    for number in range(jobs):
        at += chance.expovariate(load / SERVICE_S)
        made.append(smallcases.job(f"j{number:05}", at, SERVICE_S))
    return made


def waits(found: outcome.Outcome) -> list[float]:
    return [story.first_start - story.arrived for story in found.stories]


@pytest.mark.long
@pytest.mark.parametrize("load", [0.6])
def test_the_mean_wait_is_that_of_an_m_d_1_queue(load: float) -> None:
    """rho / (2 mu (1 - rho)). The standard error comes from the queue's own cycles: each begins with a job that finds
    nobody, and is independent of the others, so the ratio of their means has a known variance.
    """
    waited = waits(smallcases.run(arrivals(load, seed=7)))
    cycles: list[tuple[float, int]] = []
    for wait in waited:
        if wait == 0.0:
            cycles.append((0.0, 0))
        total, count = cycles[-1]
        cycles[-1] = (total + wait, count + 1)
    mean = sum(total for total, _ in cycles) / sum(count for _, count in cycles)
    spread = statistics.fmean((total - mean * count) ** 2 for total, count in cycles)
    error = math.sqrt(spread / len(cycles)) / statistics.fmean(count for _, count in cycles)
    expected = load * SERVICE_S / (2 * (1 - load))
    assert error < 0.09 * expected, "the run is too short to say anything"
    assert abs(mean - expected) < 2.5 * error, f"{mean:.2f} s, expected {expected:.2f} s, standard error {error:.2f} s"


def test_every_single_wait_follows_from_the_one_before() -> None:
    """Lindley's recursion: a job waits as long as the one before and its service, less the time between them."""
    came = arrivals(0.9, seed=3, jobs=400)
    found = smallcases.run(came)
    wait = 0.0
    for before, story in zip([None, *found.stories], found.stories, strict=False):
        if before is not None:
            wait = max(0.0, wait + SERVICE_S - (story.arrived - before.arrived))
        assert story.first_start - story.arrived == pytest.approx(wait, abs=1e-6), story
        assert story.ended - story.first_start == pytest.approx(SERVICE_S, abs=1e-6)
