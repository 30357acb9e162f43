"""Ends everything that belongs to this task, whoever its parent is by now.

Two ways, and the exit record says which: `cgroup` (one write kills all that is in it, nothing can escape), else
`session`: the sessions of the user's processes and every process that carries the task's mark. Parents are never
walked: an orphan's parent is a stranger. Every loop has an end; what does not die in time is named and left to the
backend.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time

from oarlock.agent import environment, procfs
from oarlock.agent.failpoints import failpoint

TYPE_CHECKING = False
if TYPE_CHECKING:
    from oarlock.agent.cgroups import Cgroup

GONE_WITHIN_S = 5.0  # how long a killed process may take to go: longer, and it hangs in the kernel
FIRST_PAUSE_S = 0.002
LONGEST_PAUSE_S = 0.2


class Reach:
    """All that the task may have left running. `leaders` are the session leaders that the agent started.

    Errands are among them: they end by SIGKILL at the task's end, but a request to stop is not for them: what they
    bring or take away is wanted then too.
    """

    def __init__(self, key: str, cgroup: Cgroup) -> None:
        self._mark = (f"{environment.MARK}={key}").encode()
        self._cgroup = cgroup
        self.leaders: list[int] = []
        self._unasked: set[int] = set()
        self._changing = threading.Lock()
        self.way = "cgroup" if cgroup.usable else "session"

    def add(self, leader: int, asked: bool = True) -> None:
        with self._changing:
            if not asked:
                self._unasked.add(leader)
            self.leaders = [*self.leaders, leader]

    def forget(self, leader: int) -> None:
        with self._changing:
            self.leaders = [each for each in self.leaders if each != leader]
            self._unasked.discard(leader)

    def alive(self) -> list[int]:
        """Every live process of the task. Without /proc (macOS): the leaders' groups that still have somebody."""
        if not os.path.isdir("/proc/self"):
            return [leader for leader in self.leaders if _signal_group(leader, 0)]
        found = {seen.pid for seen in procfs.find(self._mark, frozenset(self.leaders))}
        for pid in self._cgroup.pids():
            seen = procfs.stat(pid)
            if seen is not None and seen.alive and pid != os.getpid():
                found.add(pid)
        return sorted(found)

    def ask(self) -> None:
        """SIGTERM, once, to every process of the task."""
        groups = set(self.leaders)
        for leader in groups - self._unasked:
            _signal_group(leader, signal.SIGTERM)
        for pid in self.alive():
            seen = procfs.stat(pid)
            if seen is not None and seen.group not in groups and seen.session not in self._unasked:
                self._signal(pid, signal.SIGTERM)
        failpoint("stop.after_term")

    def kill(self) -> list[int]:
        """SIGKILL until nothing is left or GONE_WITHIN_S is over; return what is left."""
        failpoint("kill.before")
        until, pause_s = time.monotonic() + GONE_WITHIN_S, FIRST_PAUSE_S
        left: list[int] = []
        while True:
            if self._cgroup.usable and not self._cgroup.kill():
                self.way = "session"
            for leader in self.leaders:
                _signal_group(leader, signal.SIGKILL)
            left = self.alive()
            for pid in left:
                self._signal(pid, signal.SIGKILL)
            if not left or time.monotonic() > until:
                break
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        failpoint("kill.after")
        return left

    def _signal(self, pid: int, signum: int) -> None:
        """Through a pidfd where there is one, looked at again once it is open: the number may have changed hands."""
        if not hasattr(os, "pidfd_open") or not hasattr(signal, "pidfd_send_signal"):
            _quietly_kill(pid, signum)
            return
        try:
            fd = os.pidfd_open(pid)
        except OSError:
            return
        try:
            seen = procfs.stat(pid)
            if seen is not None and (
                seen.session in self.leaders or procfs.marked(pid, self._mark) or pid in self._cgroup.pids()
            ):
                signal.pidfd_send_signal(fd, signum)
        except OSError:
            pass
        finally:
            os.close(fd)


def _signal_group(leader: int, signum: int) -> bool:
    try:
        os.killpg(leader, signum)
    except OSError:
        return False
    return True


def _quietly_kill(pid: int, signum: int) -> None:
    with contextlib.suppress(OSError):
        os.kill(pid, signum)
