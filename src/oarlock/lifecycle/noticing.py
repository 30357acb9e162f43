"""Observations of the backend that the job's record does not have yet, as events for `stepping.step`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from oarlock.lifecycle.failures import blame
from oarlock.spec import attempts, events, jobs, phases
from oarlock.spec.reconciling import observations

State = observations.State


def notices(job: jobs.Job, observed: Sequence[observations.Observed]) -> list[events.AnyEvent]:
    """Return the events in the order in which they are to be recorded.

    `observed` is all that the backend lists of this job.
    """
    live = job.live
    if live is None:
        return []
    seen = {one.key: one for one in observed}
    keys = ((task.key(job.id, live.number), task) for task in live.tasks)
    return [event for key, task in keys for event in _of_task(key, task, seen.get(key))]


def _of_task(
    key: attempts.TaskKey, task: attempts.Task, seen: observations.Observed | None
) -> Iterator[events.AnyEvent]:
    made = task.phase is not phases.TaskPhase.PENDING
    gone = made if seen is None else seen.state is State.GONE  # made, and not there: lost
    if seen is not None and seen.exit is not None and (task.exit is None or blame.explains(task.exit, seen.exit)):
        yield events.TaskExited(key=key, exit=seen.exit)
    if gone and not task.gone:
        yield events.TaskGone(key=key)
    if not gone and seen is not None and seen.detail != task.obstacle:
        yield events.TaskHindered(key=key, obstacle=seen.detail)
