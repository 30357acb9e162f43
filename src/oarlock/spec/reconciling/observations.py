"""A backend's view of the tasks that it was asked to make."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from oarlock.spec import attempts


class State(StrEnum):
    RUNNING = "running"  # made; its agent lives, or may live
    ENDED = "ended"  # its agent is gone, but something of it may still run: to be killed
    GONE = "gone"  # confirmed: nothing of it runs


class Observed(msgspec.Struct, frozen=True, kw_only=True):
    """One incarnation of one task.

    A task that the backend has never heard of is not listed; `exit` is its exit record, if it left one. `bound_at` is
    when it got its place, in Unix seconds by the platform's clock, but not later than the backend saw that: 0 where it
    had one when it was made, None where it has none yet.
    """

    key: attempts.TaskKey
    state: State
    exit: attempts.Exit | None = None
    bound_at: float | None = 0.0
    detail: str = ""  # the obstacle: an image that cannot be pulled, a lost node, a pod that does not end
