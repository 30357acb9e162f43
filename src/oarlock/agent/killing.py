"""The end of all processes of this task, under any parent.

Two ways, and the exit record says which: `cgroup` (one write kills all that is in it, nothing can escape), else
`session`: the sessions of the user's processes, every descendant of this agent, and every process that carries the
task's mark or limit mark (`following`). The parents of a process are never walked upwards: an orphan's parent is a
stranger. Every loop has an end; what does not die in time is named and left to the backend.

Nothing is called gone because it was not seen. An agent that adopts its orphans asks the kernel whether it has a living
child; without one it has no descendant. Only where orphans are not adopted do two looks at /proc have to do.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time

from oarlock.agent import environment, following, process, procfs
from oarlock.agent.failpoints import failpoint

TYPE_CHECKING = False
if TYPE_CHECKING:
    from oarlock.agent.cgroups import Cgroup

GONE_WITHIN_S = 5.0  # how long a killed process may take to go: longer, and it hangs in the kernel
FIRST_PAUSE_S = 0.002
LONGEST_PAUSE_S = 0.2
LOOKS_WITHOUT_FINDING = 2  # a process may fork and end while /proc is read, so that neither it nor its child is seen
LOOKS_AT_CHILDREN = 100  # between two looks at all of /proc
UNSEEN = 0  # stands among those that are left for a process that lives and was never met


class Reach:
    """All that the task may have left running. `leaders` are the session leaders that the agent started.

    Errands are among them: they end by SIGKILL at the task's end, but a request to stop is not for them: what they
    bring or take away is wanted then too.
    """

    def __init__(self, key: str, cgroup: Cgroup, hold: following.Hold | None = None) -> None:
        self._mark = (f"{environment.MARK}={key}").encode()
        self._cgroup = cgroup
        self._hold = hold or following.Hold()
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
        return sorted(seen.pid for seen in self._found())

    def _found(self) -> list[procfs.Stat]:
        known = procfs.find(self._mark, frozenset(self.leaders), self._hold.limit_mark, self._hold.adopts)
        found = {seen.pid: seen for seen in known}
        for pid in self._cgroup.pids():
            seen = procfs.stat(pid)
            if seen is not None and seen.alive and pid != os.getpid():
                found[pid] = seen
        return list(found.values())

    def ask(self) -> None:
        """SIGTERM, once, to every process of the task."""
        groups = set(self.leaders)
        for leader in groups - self._unasked:
            _signal_group(leader, signal.SIGTERM)
        for seen in self._found():
            if seen.group not in groups and seen.session not in self._unasked:
                self._signal(seen, signal.SIGTERM)
        failpoint("stop.after_term")

    def kill(self) -> list[int]:
        """SIGKILL until nothing is left or GONE_WITHIN_S is over; return what is left, or was seen last."""
        failpoint("kill.before")
        until, pause_s = time.monotonic() + GONE_WITHIN_S, FIRST_PAUSE_S
        left: list[int] = []
        looks = 0
        while True:
            before, seen = left, self._kill_once(until)
            looks = 0 if seen else looks + 1
            if self._nothing_lives(looks):
                left = []
                break
            left = seen or before or [UNSEEN]
            if time.monotonic() > until:
                break
            if seen:
                time.sleep(pause_s)
                # Others than before: something forks faster than it is killed, and must not be given time.
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S) if set(left) & set(before) else FIRST_PAUSE_S
        failpoint("kill.after")
        return left

    def _nothing_lives(self, looks: int) -> bool:
        """Whether it is certain, or as good as that can be had here, after so many looks that found nothing."""
        if self._hold.adopts:
            return looks > 0 and not process.child_lives()
        return looks >= LOOKS_WITHOUT_FINDING

    def _kill_once(self, until: float) -> list[int]:
        """SIGKILL to all that is seen now; return what was seen."""
        if self._cgroup.usable and not self._cgroup.kill():
            self.way = "session"
        for leader in self.leaders:
            _signal_group(leader, signal.SIGKILL)
        left = self._kill_children(until) if self._hold.adopts else set()
        for seen in self._found():
            self._signal(seen, signal.SIGKILL)
            left.add(seen.pid)
        return sorted(left)

    def _kill_children(self, until: float) -> set[int]:
        """SIGKILL to each child at the moment when it is seen: with its death its own children become ours.

        A child's pid is not given to another process before it is reaped, which only this process does. Those that were
        adopted are reaped here; `leaders` are reaped by what started them. Return the children that lived.
        """
        found = set()
        for _ in range(LOOKS_AT_CHILDREN):
            if not process.child_lives() or time.monotonic() > until:
                break
            for child in procfs.children():
                if child.alive:
                    _quietly_kill(child.pid, signal.SIGKILL)
                    found.add(child.pid)
                elif child.pid not in self.leaders:
                    process.reap(child.pid)
        return found

    def _signal(self, seen: procfs.Stat, signum: int) -> None:
        """Through a pidfd where there is one, looked at again once it is open: the number may have changed hands."""
        if not hasattr(os, "pidfd_open") or not hasattr(signal, "pidfd_send_signal"):
            _quietly_kill(seen.pid, signum)
            return
        try:
            fd = os.pidfd_open(seen.pid)
        except OSError:
            return
        try:
            if procfs.start_time(seen.pid) == seen.start:
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
