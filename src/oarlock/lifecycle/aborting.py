"""The abort of an attempt: its survivors are told to stop at the first failure, before blame is settled.

A gang that has lost a rank can only restart, and its survivors hang, or end by themselves sooner or later. So they get
their order to stop at once, and blame is settled meanwhile, from the ends that were not ours. The next attempt begins
as soon as all have ended.

An end that our signal caused tells nothing of its task. So survivors get the whole second to end in their own way where
that could still matter: where one of them may decide that the job has succeeded; where a later failure may be the
reason of the first (an error, or a connection that broke: a socket closes before its process ends); where the ranks of
a hanging gang tell their stacks; and where no attempt follows that would begin earlier.
"""

from __future__ import annotations

import msgspec

from oarlock.lifecycle import ends, verdicts
from oarlock.lifecycle.failures import blame
from oarlock.spec import attempts, jobs, phases

replace = msgspec.structs.replace

MESSAGE = "another task has failed, and the gang restarts"

SURE = frozenset({attempts.Cause.PLATFORM, attempts.Cause.OOM, attempts.Cause.SIGNAL})
"""Causes that no error of a survivor outweighs. A graver one that led to them has ended its task, and is told late."""


def abort(job: jobs.Job, live: attempts.Attempt, now: float) -> attempts.Attempt:
    """Return the attempt with its survivors told to stop, once it is sure that another attempt follows, and why."""
    if live.failing_since is None or live.stop is not None or live.aborted_at is not None:
        return live
    if live.stacks_at is not None or _may_succeed(job, live) or not _restarts(job, live, now):
        return live
    return replace(live, aborted_at=now)


def _may_succeed(job: jobs.Job, live: attempts.Attempt) -> bool:
    """Return whether the job has succeeded if all tasks that have not ended yet end well."""
    hoped = [
        task if task.phase in phases.ENDED else replace(task, phase=phases.TaskPhase.SUCCEEDED) for task in live.tasks
    ]
    return ends.decided(job.spec, hoped)


def _restarts(job: jobs.Job, live: attempts.Attempt, now: float) -> bool:
    """Return whether another attempt follows, if the blame stays where it is."""
    found = blame.settle((*live.wave, *live.members), job.spec)
    if found is None or found.cause not in SURE:
        return False
    ended = replace(live, stop=found.cause, stop_at=now, stop_task=found.task)
    return not verdicts.final(job, replace(ended, no_restart=verdicts.no_restart(job, ended, now)))
