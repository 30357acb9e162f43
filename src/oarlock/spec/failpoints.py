"""Named points at which a test may stop the program, to see that nothing was lost and nothing is half-made.

The code says `failpoints.hit("store.before_commit")`. That does nothing, unless somebody has armed the point with an
action: a process that is to be killed arms it with its own end (main.py does, from the environment), a test in the same
process with what it likes. Every name stands in `NAMES`; a test compares that list with the code, and others kill the
server at every one of them.
"""

from __future__ import annotations

from collections.abc import Callable

from oarlock.spec import errors

NAMES: tuple[str, ...] = (
    "store.before_commit",  # the changes of a group are made, but not committed
    "store.after_commit",  # they are durable, but nobody has been told
)
"""Every failpoint there is, `room.moment`, with what is true at that moment."""

_armed: dict[str, Callable[[], None]] = {}


def hit(name: str) -> None:
    """The program has come to this point. Whatever the armed action raises goes to the caller."""
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
    """Again: nothing."""
    _armed.pop(name, None)
