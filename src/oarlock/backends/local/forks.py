"""The order in which the machine starts processes, by which a look at /proc is known to have missed none.

One pass over /proc may miss a process that forks and ends again and again: its turn comes when it has ended, and its
child was not there yet when the pass began. Pids are given out in a circle, and the kernel tells the last one and
counts all forks. So a look is complete when, after the pass, every pid that was given out since before the pass was
looked at too, the oldest first, and no process was started since the last of these numbers was read.

This is a proof for a process that carries its task's marks, as all its ancestors in the task do. It is alive at the end
of the look, so it was started before. Either its number was met while it lived, or its number was looked at before
it appeared there. Its parent was in the middle of the fork then, alive, and had the older number: it was met, or the
same holds for its parent. Some ancestor was there through one whole pass.

A process that chooses its own number (`clone3` with `set_tid`, which needs a capability) is outside the proof. So is a
machine where the two numbers are not the kernel's own (a sandbox): `usable` finds out, and then nothing is proven.
"""

from __future__ import annotations

import functools
import itertools
import os
import threading
from collections.abc import Iterable

MOST_PIDS = 1 << 22
MAX_BATCH = 20_000
"""Pids looked at in one go. Where more were given out, the look has to begin anew."""


class Series:
    """The pids that are given out from now on. `lost`: too many at a time to be followed, or the kernel tells none."""

    def __init__(self) -> None:
        self._forks = count()  # before the last pid: whatever is counted has a number up to that one
        self._last = last_pid()
        self.lost = not usable()

    def new(self) -> Iterable[int] | None:
        """Return the pids given out since the call before, the oldest first; None where no process was started."""
        forks = count()
        if forks == self._forks:
            return None
        last, limit = last_pid(), pid_limit()
        pids = between(self._last, last, limit)
        started, self._forks, self._last = forks - self._forks, forks, last
        if started >= limit // 2 or sum(map(len, pids)) > MAX_BATCH:
            self.lost = True
            return ()
        return itertools.chain(*pids)


def between(last: int, now: int, limit: int) -> tuple[range, ...]:
    """Return the pids after `last`, up to `now`, in the order of the circle. `limit` is the first that is too large."""
    return (range(last + 1, now + 1),) if now >= last else (range(last + 1, limit), range(1, now + 1))


def recent(pids: int) -> list[int]:
    """Return so many pids that were given out last, the oldest first, whether they still live or not."""
    last = last_pid()
    return list(itertools.chain(*between((last - pids) % pid_limit(), last, pid_limit())))


def count() -> int:
    """Return how many processes and threads the machine has started since its boot; 0 where it does not say."""
    return _number(_read("/proc/stat").partition(b"\nprocesses ")[2].split(None, 1), 0)


def last_pid() -> int:
    """Return the pid that was given out last in this process's namespace; 0 where the system does not say."""
    return _number(_read("/proc/loadavg").split(), 4)


def pid_limit() -> int:
    """Return the number from which on no pid is given out."""
    return _number(_read("/proc/sys/kernel/pid_max").split(), 0) or MOST_PIDS


@functools.cache
def usable() -> bool:
    """Return whether both numbers are the kernel's own. Sandboxes have files of these names with other contents.

    A thread is started to see it: it counts as a fork, and its number is out of the same circle.
    """
    forks, last = count(), last_pid()
    thread = threading.Thread(target=_nothing, name="forks")
    thread.start()
    thread.join()
    met = any(thread.native_id in pids for pids in between(last, last_pid(), pid_limit()))
    ours = os.path.exists(f"/proc/self/task/{os.getpid()}")  # noqa: PTH110  (else /proc is another namespace's)
    return ours and last > 0 and count() > forks and met


def _nothing() -> None:
    """Return at once: this is a thread's whole work."""


def _number(words: list[bytes], place: int) -> int:
    return int(words[place]) if len(words) > place and words[place].isdigit() else 0


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:  # noqa: PTH123  (read in a tight loop)
            return file.read()
    except OSError:
        return b""
