"""The cells of a job in a table of jobs (`columns.JOBS`, `columns.JOBS_WIDE`)."""

from __future__ import annotations

import collections

from oarlock.display import amounts, durations, progress
from oarlock.spec import intents, jobs, phases, prices

SHORT = {"worker": "w", "evaluator": "eval"}


def row(job: jobs.Job, now: float) -> list[str]:
    """Return the job's cells for `columns.JOBS`."""
    return [
        jobs.short_id(job.id),
        job.name,
        progress.phase(job, now),
        intent(job),
        tasks(job),
        job.pool,
        durations.clock(job.phase_at or job.created_at, now),
        durations.age(job.ran_s(now)) if job.started_at is not None else "",
        "" if job.terminal and job.phase is not phases.Phase.FAILED else progress.short(job),
        frozen(job, now) or places(job) or reason(job),
    ]


def more(job: jobs.Job, now: float, currency: str) -> list[str]:
    """Return the job's cells for `columns.JOBS_WIDE`."""
    cost = job.cost_at(now)
    return [
        progress.loss(job),
        durations.age(now - job.created_at),
        job.owner,
        str(job.spec.priority),
        prices.amount_text(cost, currency) if cost else "",
    ]


def tasks(job: jobs.Job) -> str:
    """Return `2 w 1 ps`: the tasks that the job has, or asks for while it has none. An elastic gang may have fewer."""
    counts = {name: role.count for name, role in job.spec.roles.items()}
    if job.live is not None:
        held = collections.Counter(task.role for task in job.live.tasks)
        counts = {name: held[name] for name in counts}
    return " ".join(f"{count} {SHORT.get(name, name)}" for name, count in counts.items())


def intent(job: jobs.Job) -> str:
    """Return the wanted state, unless the job is already in it."""
    settled = job.terminal or job.phase is phases.Phase.HALTED or job.intent is intents.Intent.RUN
    return "" if settled else str(job.intent)


def reason(job: jobs.Job) -> str:
    """Return the reason why the job is in its phase."""
    if job.phase is phases.Phase.QUEUED and job.refusal is not None:
        return job.refusal.message
    verdict = job.attempt.verdict if job.attempt is not None else None
    if job.phase is phases.Phase.FAILED and verdict is not None:
        return verdict.message
    return job.reason


def frozen(job: jobs.Job, now: float) -> str:
    """Return `until 16:40: worker-1 exited with code 1` while a failed job keeps its place."""
    until = progress.frozen_until(job, now)
    return "" if until is None else f"until {durations.clock(until, now)}: {job.reason}"


def places(job: jobs.Job) -> str:
    """Return `on n0 (GPUs 0-3), n1 (GPU 2)`; empty for a job that holds nothing or is being stopped."""
    live = job.live
    stops = job.intent is not intents.Intent.RUN
    if live is None or live.stop is not None or live.frozen_until is not None or stops:
        return ""
    devices: dict[str, list[int]] = {}
    for task in live.tasks:
        devices.setdefault(task.node, []).extend(task.devices)
    told = [node + amounts.gpus(held) for node, held in devices.items() if node]
    return f"on {', '.join(told)}" if told else ""
