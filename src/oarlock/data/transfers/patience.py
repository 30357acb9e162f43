"""The patience with a place that is slow, breaks off or is away. All transfers of files share it.

A transfer is tried again as long as bytes move. It ends once no byte further than any before has moved for PATIENCE_S.
An error that no time mends ends it at once (`GivenUp`), and one that time hardly mends, such as a full disk, at the
third try.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from typing import TypeVar

from oarlock.data.transfers import reporting
from oarlock.spec import errors

PATIENCE_S = 300.0
"""A place that takes or gives no further byte of a file for so long counts as dead."""
PAUSE_FIRST_S, PAUSE_MOST_S = 0.5, 15.0
TRIES = 3
_HARDLY_PASS = frozenset(
    {
        errno.EDQUOT,
        errno.EFBIG,
        errno.EINVAL,
        errno.EISDIR,
        errno.EMSGSIZE,
        errno.ENAMETOOLONG,
        errno.ENOSPC,
        errno.ENOSYS,
        errno.ENOTDIR,
        errno.EROFS,
    }
)

Result = TypeVar("Result")


class Patience:
    """The time for one file or part. It begins anew with each byte further than any before."""

    def __init__(
        self, monotonic: Callable[[], float] = time.monotonic, sleep: Callable[[float], object] = time.sleep
    ) -> None:
        self._monotonic, self._sleep = monotonic, sleep
        self._since, self._pauses = monotonic(), 0
        self.furthest = 0

    def moved(self, place: int) -> int:
        """Take note that the transfer has come to this byte of the file. Return how many bytes are new."""
        new = max(0, place - self.furthest)
        if new:
            self._since, self.furthest, self._pauses = self._monotonic(), place, 0
        return new

    @property
    def waited_s(self) -> float:
        return self._monotonic() - self._since

    @property
    def is_over(self) -> bool:
        return self.waited_s >= PATIENCE_S

    def pause(self) -> None:
        """Wait before the next try, twice as long as the last time."""
        self._pauses += 1
        self._sleep(min(PAUSE_MOST_S, PAUSE_FIRST_S * 2.0 ** min(self._pauses - 1, 10)))


def tried(attempt: Callable[[], Result], patience: Patience) -> Result:
    """Return the result of the first attempt that succeeds. An attempt tells `patience` the bytes that have moved.

    GivenUp if the patience ends, or if an attempt says so; Unavailable for an error that time hardly mends. Errors of
    other kinds end the transfer at once.
    """
    failures = 0
    while True:
        place = patience.furthest
        try:
            return attempt()
        except errors.GivenUp:
            raise
        except errors.Unavailable as error:
            failures = 1 if patience.furthest > place else failures + 1
            if failures >= TRIES and hardly_passes(error):
                raise
            if patience.is_over:
                waited = f"nothing has moved for {patience.waited_s:.0f} s"
                raise errors.GivenUp(f"{error.message} ({waited})", hint=error.hint, path=error.path) from error
            reporting.detail(f"{error.message}: it is tried again")
        patience.pause()


def hardly_passes(error: errors.Unavailable) -> bool:
    cause = error.__cause__
    return isinstance(cause, OSError) and cause.errno in _HARDLY_PASS
