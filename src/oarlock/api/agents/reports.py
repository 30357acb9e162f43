"""The events of a report, each bounded in size. A user's process may report any number and any text."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from oarlock.api.agents import messages
from oarlock.api.services import inbox
from oarlock.data import storage
from oarlock.spec import attempts, errors, events, jobs, phases

MAX_DETAIL_CHARACTERS = 500
MAX_TYPE_CHARACTERS = 100
MAX_EXAMPLES = 5
MAX_REASONS = 10
MAX_EXAMPLE_CHARACTERS = 200
MAX_MEASURE = 1e12
MAX_COUNT = 1 << 20
_REPORTED = {phase.value: phase for phase in (phases.Phase.DOWNLOADING, phases.Phase.PROCESSING, phases.Phase.STORING)}


def reported(key: attempts.TaskKey, told: messages.TaskReport, now: float) -> events.TaskReported | None:
    if told.phase is None and told.progress is None and told.idle_s is None and told.detail is None and not told.hello:
        return None
    if told.phase is not None and told.phase not in _REPORTED:
        raise errors.InvalidInput(
            f"{told.phase[:100]!r} is not a phase that a task reports.",
            path="phase",
            hint=f"Use one of {', '.join(_REPORTED)}.",
        )
    return events.TaskReported(
        key=key,
        phase=told.phase,
        detail=(told.detail or "")[:MAX_DETAIL_CHARACTERS],
        progress=_progress(told.progress, now),
        idle_s=told.idle_s,
        can_rejoin=told.hello.can_rejoin if told.hello is not None else None,
        lost_round=told.hello.lost_round if told.hello is not None else None,
    )


def urgent(job: jobs.Job, key: attempts.TaskKey, reported: events.TaskReported) -> bool:
    """Return whether the report is urgent: a new phase, another answer about rejoining, a lost round. Progress can
    wait.
    """
    task = inbox.task_of(job, key)
    return task is None or (
        (reported.phase is not None and reported.phase != task.phase.value)
        or (reported.can_rejoin is not None and reported.can_rejoin != task.can_rejoin)
        or (reported.lost_round is not None and reported.lost_round != task.lost_round)
    )


def missing_logs(job: jobs.Job, key: attempts.TaskKey, short: Mapping[str, storage.Shortage]) -> list[events.AnyEvent]:
    """Return the event that bytes of the task's logs are lost, unless the record has it already."""
    task, missing = inbox.task_of(job, key), sum(shortage.missing for shortage in short.values())
    if task is None or task.log_gap == missing:
        return []
    return [events.LogsMissing(key=key, missing=missing)]


def bounded(told: attempts.Kept) -> attempts.Kept:
    """Return the report, shortened to the size that a record may have."""
    short = tuple(
        msgspec.structs.replace(
            one,
            why=one.why[:MAX_EXAMPLE_CHARACTERS],
            examples=tuple(text[:MAX_EXAMPLE_CHARACTERS] for text in one.examples[:MAX_EXAMPLES]),
        )
        for one in told.not_kept[:MAX_REASONS]
    )
    return msgspec.structs.replace(
        told,
        not_kept=short,
        removed=tuple(life[:MAX_EXAMPLE_CHARACTERS] for life in told.removed[:MAX_EXAMPLES]),
        failure=told.failure[:MAX_DETAIL_CHARACTERS],
    )


def _progress(told: messages.ProgressEvent | None, now: float) -> attempts.Progress | None:
    if told is None:
        return None
    return attempts.Progress(
        step=told.step,
        at=told.time if told.time is not None else now,
        total_steps=told.total_steps,
        examples_per_s=told.examples_per_s,
        loss=told.loss,
        epoch=told.epoch,
        step_s=_measure(told.step_s),
        sync_s=_measure(told.sync_s),
        ranks=_count(told.ranks),
        local=_count(told.local),
        accumulate=_count(told.accumulate),
        noise=_measure(told.noise),
        gpu_type=(told.gpu_type or "")[:MAX_TYPE_CHARACTERS],
        data_s=_measure(told.data_s),
        sent_bytes=_measure(told.sent_bytes),
        slowest_rank=_rank(told.slowest_rank),
        slowest_s=_measure(told.slowest_s),
        fastest_s=_measure(told.fastest_s),
    )


def _measure(value: float | None) -> float | None:
    """Return a plausible number, else None: a user's process may report any number, and decisions use it."""
    return value if value is not None and 0 <= value < MAX_MEASURE else None


def _rank(value: int | None) -> int | None:
    return value if value is not None and 0 <= value < MAX_COUNT else None


def _count(value: int | None) -> int | None:
    return value if value is not None and 0 < value <= MAX_COUNT else None
