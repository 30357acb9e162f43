"""The progress of a job in words: its step, its loss, the time left, and the thing that it waits for."""

from __future__ import annotations

import collections

from oarlock.display import amounts, durations, marks
from oarlock.spec import attempts, jobs, phases, summaries
from oarlock.spec.input import quantities


def phase(job: jobs.Job, now: float = 0.0) -> str:
    """Return the phase, or FROZEN. Without `now` a frozen job counts as frozen until its record says otherwise."""
    return marks.FROZEN if summaries.frozen_until(job, now) is not None else str(job.phase)


def facts(reading: summaries.Reading) -> list[str]:
    """Return `step 120/500`, `loss 0.0213`, `1m 20s left`, `810 examples/s`: the most important first."""
    parts = [f"step {reading.step}" + (f"/{reading.total_steps}" if reading.total_steps else "")]
    if reading.loss is not None:
        parts.append(f"loss {amounts.number(reading.loss)}")
    if reading.left_s is not None:
        parts.append(f"{durations.text(reading.left_s)} left")
    if reading.examples_per_s is not None:
        parts.append(f"{amounts.number(reading.examples_per_s)} examples/s")
    return parts


def speed(told: attempts.Progress) -> list[str]:
    """Return `a step takes 0.25 s`, the parts of it that are waiting, and the rank that the others wait for. Empty
    without measurements.
    """
    if told.step_s is None:
        return []
    parts = [f"a step takes {amounts.number(told.step_s)} s"]
    if told.sync_s is not None:
        parts.append(f"{amounts.number(told.sync_s)} s of it waiting for gradients")
    if told.data_s is not None:
        parts.append(f"{amounts.number(told.data_s)} s for data")
    if told.sent_bytes:
        parts.append(f"{quantities.size_text(told.sent_bytes)} sent")
    if told.slowest_rank is not None and told.slowest_s is not None and told.fastest_s is not None:
        times = f"{amounts.number(told.slowest_s)} s a step, the fastest rank {amounts.number(told.fastest_s)} s"
        parts.append(f"rank {told.slowest_rank} is slow: {times}")
    return parts


def short(reading: summaries.Reading | None) -> str:
    """Return `45%` or `step 120`; empty without a report."""
    if reading is None:
        return ""
    return f"{reading.fraction:.0%}" if reading.fraction is not None else f"step {reading.step}"


def loss(reading: summaries.Reading | None) -> str:
    """Return `0.0213`; empty without a reported loss."""
    return amounts.number(reading.loss) if reading is not None and reading.loss is not None else ""


def waiting_for(job: jobs.Job) -> str:
    """Return the reason why a job does not run yet: the refusal, or the work that its tasks are doing."""
    if job.phase is phases.Phase.QUEUED:
        return job.refusal.message if job.refusal is not None else job.reason
    live = job.live
    if live is None:
        return job.reason
    told = (task.obstacle or task.detail for task in live.tasks)
    return next(filter(None, told), "") or _by_phase(live)


def _by_phase(attempt: attempts.Attempt) -> str:
    """Return `2 PROCESSING, 1 DOWNLOADING`: the number of tasks in each phase."""
    counts = collections.Counter(task.phase for task in attempt.tasks)
    return ", ".join(f"{count} {phase}" for phase, count in counts.items())
