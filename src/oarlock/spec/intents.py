"""The intent of a job: the wish of its owner or the scheduler. The phase, kept apart, is the actual state."""

from __future__ import annotations

from enum import StrEnum


class Intent(StrEnum):
    """Ordered: a stronger intent is not overwritten by a weaker one, except that `resume` turns `halt` into `run`."""

    RUN = "run"
    RESIZE = "resize"  # the scheduler wants another number of extras
    PREEMPT = "preempt"  # the scheduler wants the place; the job goes back to the queue
    HALT = "halt"  # the owner wants it stopped and kept
    CANCEL = "cancel"  # the owner wants it stopped for good


STRENGTH: dict[Intent, int] = {intent: place for place, intent in enumerate(Intent)}
