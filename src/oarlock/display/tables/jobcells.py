"""The cells of a job in a table of jobs (`columns.JOBS`, `columns.JOBS_WIDE`)."""

from __future__ import annotations

from oarlock.display import amounts, durations, marks
from oarlock.display.jobs import progress
from oarlock.spec import jobs, phases, summaries
from oarlock.spec.cluster import prices

SHORT = {"worker": "w", "evaluator": "eval"}


def row(job: summaries.Summary, now: float) -> list[str]:
    """Return the job's cells for `columns.JOBS`."""
    return [
        jobs.short_id(job.id),
        job.name,
        phase(job),
        str(job.wanted or ""),
        tasks(job),
        job.pool,
        durations.clock(job.phase_at, now),
        durations.age(job.ran_s) if job.started_at is not None else "",
        "" if job.terminal and job.phase is not phases.Phase.FAILED else progress.short(job.reading),
        where(job, now),
    ]


def more(job: summaries.Summary, now: float, currency: str) -> list[str]:
    """Return the job's cells for `columns.JOBS_WIDE`."""
    return [
        progress.loss(job.reading),
        durations.age(now - job.created_at),
        job.owner,
        str(job.priority),
        prices.amount_text(job.cost, currency) if job.cost else "",
    ]


def phase(job: summaries.Summary) -> str:
    """Return the phase, or FROZEN."""
    return marks.FROZEN if job.frozen_until is not None else str(job.phase)


def tasks(job: summaries.Summary) -> str:
    """Return `2 w 1 ps`."""
    return " ".join(f"{count} {SHORT.get(name, name)}" for name, count in job.tasks.items())


def where(job: summaries.Summary, now: float) -> str:
    """Return the job's nodes, or the reason why it has none: `until 16:40: worker-1 exited with code 1` if frozen."""
    if job.frozen_until is not None:
        return f"until {durations.clock(job.frozen_until, now)}: {job.reason}"
    return places(job) or job.reason


def places(job: summaries.Summary) -> str:
    """Return `on n0 (GPUs 0-3), n1 (GPU 2)`; empty for a job that holds nothing or is being stopped."""
    told = [place.node + amounts.gpus(place.devices) for place in job.places]
    if job.nodes > len(told):
        told.append(amounts.counted(job.nodes - len(told), "more node"))
    return f"on {', '.join(told)}" if told else ""
