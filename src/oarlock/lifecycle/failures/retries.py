"""Whether another start makes sense after a failure, beyond the count of `max_restarts`.

A program that fails before it has done anything fails again, and so does one that ended twice in the same way without
progress between. Progress is a step or a checkpoint that goes beyond every earlier one. A program that reports no steps
makes progress by running for five minutes; its output proves nothing. Failures of the platform are always retried.
"""

from __future__ import annotations

import re
import signal

import msgspec

from oarlock.spec import attempts, jobs

Cause = attempts.Cause

LONG_ENOUGH_S = 300.0
"""A program that reports no steps counts as having made progress once it has run for so long."""

HOPELESS_REASONS = frozenset({"command_not_found"})
"""The next attempt would end in the same way whatever was reached before."""

NO_PROGRESS = "it failed before it had made any progress"
TWICE = "it failed twice in the same way, without progress between"
NO_COMMAND = "its command would not be found the next time either"

_SPENDS_RESTART = frozenset(
    {Cause.OOM, Cause.SIGNAL, Cause.ERROR, Cause.PEER, Cause.LEFT_EARLY, Cause.HANG, Cause.START_TIMEOUT}
)
_OWN_SIGNALS = frozenset(
    {signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSEGV, signal.SIGSYS, signal.SIGTRAP}
)
_OUTSIDE_REASONS = frozenset({"download_failed", "secret_missing", "store_failed"})
_CHANGING = re.compile(r"0x[0-9a-fA-F]+|\d+")


def spends_restart(cause: Cause) -> bool:
    """Return whether an end with this cause is the job's own, and counted against `max_restarts`."""
    return cause in _SPENDS_RESTART


def end_of(role: str, cause: Cause, how: attempts.Exit | None, reached_step: int | None) -> attempts.End:
    """Return the end as it is compared with the next one. Numbers and addresses in the last line say nothing."""
    lines = [line for line in how.last_lines if line.strip()] if how is not None else []
    return attempts.End(
        role=role,
        cause=cause,
        code=how.code if how is not None else 0,
        last_line=_CHANGING.sub("#", lines[-1].strip()) if lines else "",
        reached_step=reached_step,
    )


def why_not(job: jobs.Job, live: attempts.Attempt, cause: Cause, task: str, ran_s: float) -> str:
    """Return why no other attempt follows although the count leaves one; empty where one follows.

    `ran_s` is how long the attempt has been processing.
    """
    guilty = next((one for one in (*live.wave, *live.tasks) if one.name == task), None)
    how = guilty.exit if guilty is not None else None
    if how is not None and how.reason in HOPELESS_REASONS:
        return NO_COMMAND
    end = end_of(guilty.role if guilty is not None else "", cause, how, job.reached_step)
    before = job.last_end if guilty is None or guilty.last_end is None else guilty.last_end
    if _repeats(before, end, how, ran_s):
        return TWICE
    started = job.reached_step is not None or job.processed_s + ran_s >= LONG_ENOUGH_S
    return NO_PROGRESS if _is_own(cause, how) and not started else ""


def hopeless_in_place(job: jobs.Job, task: attempts.Task) -> bool:
    """Return whether a failed task would fail again in the same way if it were started again alone.

    Its owner has asked for such restarts in the job file, so that one is made even where no progress was seen.
    """
    how = task.exit
    if how is None:
        return False
    end = end_of(task.role, how.cause, how, job.reached_step)
    return how.reason in HOPELESS_REASONS or _repeats(task.last_end, end, how, task.phase_at - task.moved_at)


def _is_own(cause: Cause, how: attempts.Exit | None) -> bool:
    """Return whether the program itself is surely at fault: not network, secrets, a peer, or a person with `kill`."""
    if cause is Cause.SIGNAL:
        return how is not None and how.signal in _OWN_SIGNALS
    return cause in {Cause.ERROR, Cause.OOM, Cause.LEFT_EARLY} and (how is None or how.reason not in _OUTSIDE_REASONS)


def _repeats(before: attempts.End | None, end: attempts.End, how: attempts.Exit | None, ran_s: float) -> bool:
    """Return whether it is the end before once more, with no progress between."""
    if before is None or msgspec.structs.replace(before, reached_step=end.reached_step) != end:
        return False
    if not spends_restart(end.cause) or (end.cause is Cause.SIGNAL and not _is_own(end.cause, how)):
        return False  # a signal from outside says nothing of the program
    farther = (end.reached_step or 0) > (before.reached_step or 0)
    return not farther and (end.reached_step is not None or ran_s < LONG_ENOUGH_S)
