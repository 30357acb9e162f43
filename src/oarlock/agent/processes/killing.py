"""The killing of all processes of this task, whatever their parents are.

There are two methods, and the exit record names the one used. `cgroup`: one write kills every process in the cgroup,
and none can escape. `session`: SIGKILL to the sessions of the user's processes, to every descendant of this agent, and
to every process that carries the task's mark or limit mark (`tracking`). The search never goes from a child to its
parent, because the parent of an orphan is a stranger. Every loop is bounded: a process that does not die in time is
named and left to the backend.

A process is called gone only when that is certain. An agent that adopts its orphans asks the kernel whether it has a
living child; without one it has no descendant. If orphans cannot be adopted, two empty searches of /proc must suffice.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time

from oarlock.agent import environment
from oarlock.agent.failpoints import failpoint
from oarlock.agent.processes import process, procfs, tracking

TYPE_CHECKING = False
if TYPE_CHECKING:
    from oarlock.agent.processes.cgroups import Cgroup

GONE_WITHIN_S = 5.0  # a killed process that takes longer hangs in the kernel
FIRST_PAUSE_S = 0.002
LONGEST_PAUSE_S = 0.2
EMPTY_SEARCHES = 2  # a process may fork and end while /proc is read, so that neither it nor its child is seen
CHILD_SEARCHES = 100  # between two searches of all of /proc
UNSEEN = 0  # the pid returned for a process that lives and was never found


class TaskProcesses:
    """All processes that the task may have left running. `leaders` are the session leaders that the agent started.

    The helper's process is one of them, but `ask` does not signal it: its transfer is wanted after a stop too.
    """

    def __init__(self, key: str, cgroup: Cgroup, tracked: tracking.Tracking | None = None) -> None:
        self._mark = (f"{environment.MARK}={key}").encode()
        self._cgroup = cgroup
        self._tracking = tracked or tracking.Tracking()
        self.leaders: list[int] = []
        self._unasked: set[int] = set()
        self._changing = threading.Lock()
        self.method = "cgroup" if cgroup.usable else "session"

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
        """Return every live process of the task.

        Without /proc (macOS): the leaders with a live process in their group.
        """
        if not os.path.isdir("/proc/self"):
            return [leader for leader in self.leaders if _signal_group(leader, 0)]
        return sorted(seen.pid for seen in self._found())

    def _found(self) -> list[procfs.Stat]:
        known = procfs.find(self._mark, frozenset(self.leaders), self._tracking.limit_mark, self._tracking.adopts)
        found = {seen.pid: seen for seen in known}
        for pid in self._cgroup.pids():
            seen = procfs.stat(pid)
            if seen is not None and seen.alive and pid != os.getpid():
                found[pid] = seen
        return list(found.values())

    def ask(self) -> None:
        """Send SIGTERM, once, to every process of the task except the helper's."""
        groups = set(self.leaders)
        for leader in groups - self._unasked:
            _signal_group(leader, signal.SIGTERM)
        for seen in self._found():
            if seen.group not in groups and seen.session not in self._unasked:
                self._signal(seen, signal.SIGTERM)
        failpoint("stop.after_term")

    def kill(self) -> list[int]:
        """Send SIGKILL until no process is left or GONE_WITHIN_S is over; return the pids left, or seen last."""
        failpoint("kill.before")
        until, pause_s = time.monotonic() + GONE_WITHIN_S, FIRST_PAUSE_S
        left: list[int] = []
        searches = 0
        while True:
            before, seen = left, self._kill_once(until)
            searches = 0 if seen else searches + 1
            if self._nothing_lives(searches):
                left = []
                break
            left = seen or before or [UNSEEN]
            if time.monotonic() > until:
                break
            if seen:
                time.sleep(pause_s)
                # Other pids than before: a process forks faster than it is killed, so do not pause longer.
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S) if set(left) & set(before) else FIRST_PAUSE_S
        failpoint("kill.after")
        return left

    def _nothing_lives(self, searches: int) -> bool:
        """Return whether no process is left, after `searches` searches in a row that found none."""
        if self._tracking.adopts:
            return searches > 0 and not process.child_lives()
        return searches >= EMPTY_SEARCHES

    def _kill_once(self, until: float) -> list[int]:
        """Send SIGKILL to every process found now; return their pids."""
        if self._cgroup.usable and not self._cgroup.kill():
            self.method = "session"
        for leader in self.leaders:
            _signal_group(leader, signal.SIGKILL)
        left = self._kill_children(until) if self._tracking.adopts else set()
        for seen in self._found():
            self._signal(seen, signal.SIGKILL)
            left.add(seen.pid)
        return sorted(left)

    def _kill_children(self, until: float) -> set[int]:
        """Send SIGKILL to each child as soon as it is found; return the pids of those that lived.

        When a child dies, its own children become children of this process. The kernel does not give a child's pid to
        another process before this process reaps it. Adopted children are reaped here, `leaders` elsewhere.
        """
        found = set()
        for _ in range(CHILD_SEARCHES):
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
        """Send the signal through a pidfd, if there is one, after a check that the pid still means the same process."""
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
