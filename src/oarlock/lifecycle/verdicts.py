"""The end of an attempt, and its effect on the job."""

from __future__ import annotations

import msgspec

from oarlock.lifecycle import ends, sizes
from oarlock.lifecycle.failures import hints, missing, retries
from oarlock.spec import attempts, intents, jobs, phases

Cause = attempts.Cause

NEUTRAL = frozenset({Cause.STOPPED, Cause.TIMEOUT, Cause.HANG, Cause.START_TIMEOUT})
"""Ends that our own signal caused. A task that ended well before the signal reached it has succeeded."""

BACKOFF_FIRST_S = 1.0
BACKOFF_MOST_S = 30.0
"""Failures of the platform are waited out: 1, 2, 4 ... seconds, at most this. A minute after it is well, all is."""

LONG_ENOUGH_S = 300.0
"""An attempt that has processed for so long says that the platform was well meanwhile: failures in a row start anew."""

OF_THE_SCHEDULER = frozenset({intents.Intent.PREEMPT, intents.Intent.RESIZE})

EXIT_TIMEOUT = 124  # as coreutils' timeout
EXIT_CANCELED = 130  # as a shell's Ctrl-C


def succeeded(job: jobs.Job, live: attempts.Attempt) -> bool:
    if live.stop is Cause.SUCCEEDED:
        return True
    return live.stop in NEUTRAL and ends.decided(job.spec, live.tasks)


def final(job: jobs.Job, live: attempts.Attempt) -> bool:
    """Return whether this attempt, at its decided end, is the job's last: FAILED."""
    if live.stop is Cause.TIMEOUT or live.no_restart:
        return True
    return live.stop is not None and retries.spends_restart(live.stop) and not _leaves_restart(job)


def no_restart(job: jobs.Job, live: attempts.Attempt, now: float) -> str:
    """Return why no attempt follows this one, at its decided end, although the count leaves one."""
    if live.stop is None or not retries.spends_restart(live.stop) or not _leaves_restart(job):
        return ""
    return retries.why_not(job, live, live.stop, live.stop_task, _processed_s(live, now))


def _leaves_restart(job: jobs.Job) -> bool:
    return job.restarts < job.spec.max_restarts


def released(job: jobs.Job, live: attempts.Attempt, now: float) -> jobs.Job:
    """Return the job once nothing of its attempt runs any more."""
    verdict = _verdict(job, live, now)
    phase = _next_phase(job, live, verdict)
    own = retries.spends_restart(verdict.cause)
    spent = own and phase is not phases.Phase.FAILED
    failures = _platform_failures(job, live, verdict)
    ended = msgspec.structs.replace(live, verdict=verdict, ended_at=now, led_to=phase)
    intent = job.intent if phase is not phases.Phase.QUEUED else intents.Intent.RUN
    for_others = verdict.cause is Cause.STOPPED and job.intent in OF_THE_SCHEDULER
    return msgspec.structs.replace(
        job,
        attempts=(*job.attempts[:-1], ended),
        phase=phase,
        phase_at=now,
        intent=intent,
        reason=_reason(job, phase, verdict, restart=job.restarts + spent),
        restarts=job.restarts + spent,
        last_end=_end(job, live, verdict) if own else job.last_end,
        processed_s=job.processed_s + _processed_s(live, now),
        served_s=job.served_s + sizes.served_s(live, now),
        cost=job.cost + ended.cost_at(now),
        stopped_at=now if for_others else job.stopped_at,
        lasts_s=_lasts_s(job, live),
        platform_failures=failures,
        not_before=now + _backoff_s(failures) if failures and phase is phases.Phase.QUEUED else None,
        ended_at=now if phase in phases.TERMINAL else None,
        exit_code=_exit_code(phase, verdict),
    )


def _next_phase(job: jobs.Job, live: attempts.Attempt, verdict: attempts.Verdict) -> phases.Phase:
    """Return the next phase. The earlier wins: a good end before our signal, a last failure before a wish."""
    if verdict.cause is Cause.SUCCEEDED:
        return phases.Phase.COMPLETED
    if final(job, live):
        return phases.Phase.FAILED
    if job.intent is intents.Intent.CANCEL:
        return phases.Phase.CANCELED
    return phases.Phase.HALTED if job.intent is intents.Intent.HALT else phases.Phase.QUEUED


def _verdict(job: jobs.Job, live: attempts.Attempt, now: float) -> attempts.Verdict:
    if succeeded(job, live):
        return attempts.Verdict(cause=Cause.SUCCEEDED, message="", at=now)
    cause = live.stop or Cause.PLATFORM
    guilty = live.guilty
    how = guilty.exit if guilty is not None else None
    code = how.code if how is not None and how.code != 0 and cause not in NEUTRAL else 1
    return attempts.Verdict(
        cause=cause,
        message=live.stop_message,
        at=now,
        task=live.stop_task,
        exit_code=EXIT_TIMEOUT if cause is Cause.TIMEOUT else code,
        last_lines=how.last_lines if how is not None else (),
        hint=_hint(job, guilty) if cause not in NEUTRAL else "",
    )


def _hint(job: jobs.Job, guilty: attempts.Task | None) -> str:
    how = guilty.exit if guilty is not None else None
    lacking = missing.hint(job.left_out, how.last_lines) if how is not None else ""
    return lacking or hints.hint(job.spec, guilty)


def _end(job: jobs.Job, live: attempts.Attempt, verdict: attempts.Verdict) -> attempts.End:
    guilty = live.guilty if verdict.task else None
    role, how = ("", None) if guilty is None else (str(guilty.role), guilty.exit)
    return retries.end_of(role, verdict.cause, how, job.reached_step)


def _exit_code(phase: phases.Phase, verdict: attempts.Verdict) -> int | None:
    if phase is phases.Phase.FAILED:
        return verdict.exit_code
    return {phases.Phase.COMPLETED: 0, phases.Phase.CANCELED: EXIT_CANCELED}.get(phase)


def _reason(job: jobs.Job, phase: phases.Phase, verdict: attempts.Verdict, *, restart: int) -> str:
    if phase is phases.Phase.QUEUED and retries.spends_restart(verdict.cause):
        return f"{verdict.message}: restart {restart} of {job.spec.max_restarts}"
    return verdict.message


def _platform_failures(job: jobs.Job, live: attempts.Attempt, verdict: attempts.Verdict) -> int:
    if verdict.cause is not Cause.PLATFORM:
        return 0
    was_well = _processed_s(live, live.stop_at or verdict.at) >= LONG_ENOUGH_S
    return 1 if was_well else job.platform_failures + 1


def _backoff_s(failures: int) -> float:
    return min(BACKOFF_MOST_S, BACKOFF_FIRST_S * 2.0 ** min(failures - 1, 30))


def _processed_s(live: attempts.Attempt, now: float) -> float:
    if live.processing_at is None:
        return 0.0
    return max(0.0, (live.stop_at if live.stop_at is not None else now) - live.processing_at)


def _lasts_s(job: jobs.Job, live: attempts.Attempt) -> float | None:
    """Return the seconds still needed from the next attempt's checkpoint, at this attempt's pace.

    An attempt with another number of tasks than the owner's does not tell: the earlier value stays.
    """
    if not sizes.as_asked(job, live):
        return job.lasts_s
    known = (live.checkpoint_step, live.restore_step, live.offered_step)
    kept = next((step for step in known if step is not None), 0)
    needed = [
        max(0, task.progress.total_steps - kept) * pace_s
        for task in live.tasks
        if task.progress is not None and task.progress.total_steps and (pace_s := task.pace_s) is not None
    ]
    return max(needed, default=job.lasts_s)
