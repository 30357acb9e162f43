"""Named points at which a test may stop the program, to see that nothing was lost and nothing is half-made.

The code says `failpoints.hit("store.before_commit")`. That does nothing unless an action is armed at the point. A
process that is to be killed arms its own end (main.py does, from the environment); a test in the same process arms any
function. Every name is in `NAMES`: one test compares that list with the code, others kill the server at every name.
"""

from __future__ import annotations

from collections.abc import Callable

from oarlock.spec import errors

NAMES: tuple[str, ...] = (
    "store.before_commit",  # the changes of a group are made, but not committed
    "store.after_commit",  # the changes are durable, but no caller has been told
    "leading.after_lead",  # the store has a leader that does not know of it yet
    "scheduling.before_commit",  # there is a plan
    "scheduling.after_launches",  # its launches are admitted, the gangs that must give way have not been told
    "scheduling.after_stops",  # they are asked to stop
    "scheduling.after_commit",  # all of it is recorded, and no task has been made or ended
    "guardian.before_record",  # ended tasks' leftovers are delivered, their ends are not recorded
    "guardian.after_record",  # all observations and due times are recorded, no action is taken
    "guardian.before_kill",
    "guardian.after_kill",  # the backend was asked to end tasks
    "guardian.before_launch",
    "guardian.after_launch",  # the tasks are made, the record does not know
    "guardian.before_release",  # everything is gone, the holdings are still held
    "guardian.after_release",  # they are free, the backend still remembers the attempt
    "guardian.before_discard",
    "guardian.after_discard",
    "kubernetes.before_write",  # a request that changes the cluster is about to be sent
    "retention.after_archive",  # old jobs are in the archive and in the store
    "retention.after_removal",
    "retention.after_unlisting",  # a checkpoint is no longer offered, its files are there
)
"""All failpoints, `room.moment`, with the facts that hold at that moment."""

_armed: dict[str, Callable[[], None]] = {}


def hit(name: str) -> None:
    """Take note that the program has come to this point. An exception of the armed action goes to the caller."""
    if _armed and (action := _armed.get(name)) is not None:
        action()


def arm(name: str, action: Callable[[], None]) -> None:
    """Have `action` called each time the point is reached, in the thread that reaches it.

    Raises InvalidInput for an unknown name.
    """
    if name not in NAMES:
        raise errors.InvalidInput(f"there is no failpoint {name!r}", hint=f"Known are: {', '.join(NAMES)}.")
    _armed[name] = action


def disarm(name: str) -> None:
    """Take the action from the point. Do nothing where there is none."""
    _armed.pop(name, None)
