"""The actions still to take for a job: the output of `lifecycle.wants`. Every action can be repeated without harm.

Orders to agents are not actions: `lifecycle.orders` derives them from the job at every request.
"""

from __future__ import annotations

import msgspec

from oarlock.spec import attempts, events


class Action(msgspec.Struct, frozen=True, kw_only=True, tag_field="action"):
    """Root of all actions."""


class Launch(Action, frozen=True, kw_only=True, tag="launch"):
    """Make and bind these tasks of the attempt: all of the gang at first, one where it is replaced in place.

    `until` is the time at which a gang that is bound in part must be whole; None: none of it is bound yet.
    """

    attempt: int
    tasks: tuple[attempts.Task, ...]
    until: float | None = None


class Kill(Action, frozen=True, kw_only=True, tag="kill"):
    """The backend ends these tasks by force: the grace and 10 s are over, their agents do not answer, or they are
    stale.
    """

    attempt: int
    tasks: tuple[attempts.Task, ...]
    reason: str


class Release(Action, frozen=True, kw_only=True, tag="release"):
    """Everything is confirmed gone: free the holdings, end the attempt (`events.Released`), clean up."""

    attempt: int


class Vacate(Action, frozen=True, kw_only=True, tag="vacate"):
    """These tasks have left for good and are confirmed gone: free their holdings (`events.Vacated`)."""

    attempt: int
    tasks: tuple[attempts.Task, ...]


class Discard(Action, frozen=True, kw_only=True, tag="discard"):
    """The attempt was released, all of it is gone: the backend may forget it."""

    attempt: int


class Note(Action, frozen=True, kw_only=True, tag="note"):
    """Something has become true by the passing of time: record it."""

    event: events.AnyEvent
