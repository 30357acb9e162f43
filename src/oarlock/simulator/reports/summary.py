"""From an outcome to the numbers that are compared: seconds, shares from 0 to 1, interpolated percentiles."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from oarlock.simulator.outcomes import fairness, outcome
from oarlock.spec import phases

LONG_S = 15 * 60.0
"""Longer waits are counted (FfDL, Middleware '19)."""


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers of one run. Completion numbers are over the completed jobs; they are 0 if there are none.

    `queued` is the time from arrival to the first start, or to the end for jobs that never started. Refused jobs do not
    count. `slowdown` is the time to completion relative to the time with an equal part of the cluster (`fairness`).
    """

    run: str
    jobs: int
    refused: int  # they could never run
    started: int
    completed: int
    failed: int
    unfinished: int
    completion_mean_s: float
    completion_median_s: float
    completion_p99_s: float
    makespan_s: float
    held_share: float  # of the time of all devices, from the first arrival to the last end
    useful_share: float  # the same, without start-up, stalls and lost work
    lost_device_h: float
    restarts: int
    restarts_per_job: float
    queued_mean_s: float
    queued_p99_s: float
    queued_long_share: float
    waited_mean_s: float  # all the time in which a job held nothing
    slowdown_median: float
    slower_share: float  # share of jobs that were slower than with an equal part
    jain: float  # index of the slowdowns
    faults: dict[str, int] = {}


class DecisionTimes(msgspec.Struct, frozen=True, kw_only=True):
    """The duration of decisions, measured on this machine."""

    plans: int
    median_s: float
    p99_s: float
    most_s: float
    cpu_s: float


def of(found: outcome.Outcome) -> Summary:
    stories = found.stories
    done = [story for story in stories if story.phase == phases.Phase.COMPLETED]
    completions = [story.ended - story.arrived for story in done if story.ended is not None]
    queued = [_first_start(story, found.over) - story.arrived for story in stories]
    slowdowns = [
        (story.ended - story.arrived) / story.alone_s for story in done if story.ended is not None and story.alone_s
    ]
    makespan = span_s(found)
    available = found.devices * makespan
    held = sum(story.held_device_s for story in stories)
    lost = sum(story.lost_device_s for story in stories)
    advanced = sum(story.advanced_device_s for story in stories)
    restarts = sum(max(0, story.starts - 1) for story in stories)
    return Summary(
        run=found.run,
        jobs=len(stories),
        refused=len(found.refused),
        started=sum(story.first_start is not None for story in stories),
        completed=len(done),
        failed=sum(story.phase == phases.Phase.FAILED for story in stories),
        unfinished=sum(story.ended is None for story in stories),
        completion_mean_s=mean(completions),
        completion_median_s=percentile(completions, 0.5),
        completion_p99_s=percentile(completions, 0.99),
        makespan_s=makespan,
        held_share=held / available if available else 0.0,
        useful_share=(advanced - lost) / available if available else 0.0,
        lost_device_h=lost / 3600,
        restarts=restarts,
        restarts_per_job=restarts / len(stories) if stories else 0.0,
        queued_mean_s=mean(queued),
        queued_p99_s=percentile(queued, 0.99),
        queued_long_share=mean([float(wait > LONG_S) for wait in queued]),
        waited_mean_s=mean([story.waited_s for story in stories]),
        slowdown_median=percentile(slowdowns, 0.5),
        slower_share=mean([float(slowdown > 1) for slowdown in slowdowns]),
        jain=fairness.jain(slowdowns) if slowdowns else 1.0,
        faults={kind: count for kind, count in found.faults.items() if count},
    )


def _first_start(story: outcome.JobStory, over: float) -> float:
    """Return its first start; for a job that never started, when it stopped waiting."""
    if story.first_start is not None:
        return story.first_start
    return over if story.ended is None else story.ended


def decisions(measured: outcome.Decisions) -> DecisionTimes:
    return DecisionTimes(
        plans=len(measured.times_s),
        median_s=percentile(measured.times_s, 0.5),
        p99_s=percentile(measured.times_s, 0.99),
        most_s=max(measured.times_s, default=0.0),
        cpu_s=measured.cpu_s,
    )


def span_s(found: outcome.Outcome) -> float:
    """Return the time from the first arrival to the last end, or to the end of the simulation if a job did not end."""
    first = min((story.arrived for story in found.stories), default=0.0)
    ends = [found.over if story.ended is None else story.ended for story in found.stories]
    return max(ends, default=0.0) - first


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def percentile(values: Sequence[float], share: float) -> float:
    """Return the percentile, linear between the two nearest values; 0 without values."""
    if not values:
        return 0.0
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    lower = int(place)
    upper = min(lower + 1, len(ordered) - 1)
    return ordered[lower] + (ordered[upper] - ordered[lower]) * (place - lower)
