"""A job's times after a step of the clock: the durations that run stay as they were."""

from __future__ import annotations

import msgspec

from oarlock.spec import attempts, jobs
from oarlock.spec.cluster import provisioning

replace = msgspec.structs.replace

_OF_ATTEMPT = (
    "started_at",
    "launched_at",
    "barrier_at",
    "processing_at",
    "failing_since",
    "aborted_at",
    "stop_at",
    "storing_at",
    "stacks_at",
    "frozen_until",
    "checkpoint_at",
    "held_at",
    "spared_at",
)


def shifted(job: jobs.Job, by_s: float) -> jobs.Job:
    """Return the job with all times moved by `by_s` that something still counts from, or waits for.

    Dates of the past stay, and so does the submission's.
    """
    moved: dict[str, object] = {
        name: at + by_s for name in ("not_before", "stopped_at") if (at := getattr(job, name)) is not None
    }
    if job.node_request is not None:
        moved["node_request"] = _request(job.node_request, by_s)
    if (live := job.live) is not None:
        moved["attempts"] = (*job.attempts[:-1], _attempt(live, by_s))
        moved["phase_at"] = job.phase_at + by_s
        if job.started_at is not None and job.started_at == live.processing_at:
            moved["started_at"] = job.started_at + by_s
    return replace(job, **moved) if moved else job


def _request(request: provisioning.NodeRequest, by_s: float) -> provisioning.NodeRequest:
    answered = None if request.answered_at is None else request.answered_at + by_s
    return replace(request, at=request.at + by_s, answered_at=answered)


def _attempt(live: attempts.Attempt, by_s: float) -> attempts.Attempt:
    times = {name: at + by_s for name in _OF_ATTEMPT if (at := getattr(live, name)) is not None}
    stacks = tuple(replace(one, at=one.at + by_s) for one in live.stacks)
    spared = None if live.spared is None else _task(live.spared, by_s)
    return replace(live, **times, spared=spared, tasks=tuple(_task(task, by_s) for task in live.tasks), stacks=stacks)


def _task(task: attempts.Task, by_s: float) -> attempts.Task:
    dated = {
        name: replace(one, at=one.at + by_s)
        for name in ("progress", "first_progress", "exit")
        if (one := getattr(task, name)) is not None
    }
    if task.leave_by is not None:
        task = replace(task, leave_by=task.leave_by + by_s)
    if task.obstacle:
        task = replace(task, obstacle_at=task.obstacle_at + by_s)
    return replace(task, phase_at=task.phase_at + by_s, moved_at=task.moved_at + by_s, **dated)
