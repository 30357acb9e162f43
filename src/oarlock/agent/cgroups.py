"""The cgroup v2 directory that the backend may have made for this task: entered, counted, killed; never created."""

from __future__ import annotations

import os
import resource
import sys

from oarlock.agent import files


class Cgroup:
    """`usable` tells whether processes can be put into it; without that the task is killed by session and mark."""

    def __init__(self, path: str | None) -> None:
        self.path = path or ""
        self.usable = bool(path) and os.access(self._file("cgroup.procs"), os.W_OK)
        if os.getpid() in self.pids():
            self.usable = False  # who is in it himself would die of cgroup.kill

    def entry_fd(self) -> int:
        """A descriptor to write `0` to, between fork and exec; -1 where there is no cgroup to enter."""
        return os.open(self._file("cgroup.procs"), os.O_WRONLY | os.O_CLOEXEC) if self.usable else -1

    def holds(self, pid: int) -> bool:
        """Whether the process is in it, seen from outside. One that has ended already is taken at its word."""
        lines = files.read_text(f"/proc/{pid}/cgroup").splitlines()
        inside = [line[3:] for line in lines if line.startswith("0::")]
        return not inside or os.path.realpath(self.path).endswith(inside[0].rstrip("/") or "/")

    def pids(self) -> list[int]:
        """The processes in it and in the groups below it."""
        found = []
        for directory, _, _ in os.walk(self.path) if self.usable else ():
            text = files.read_text(os.path.join(directory, "cgroup.procs"))
            found += [int(line) for line in text.split() if line.isdigit()]
        return [pid for pid in found if pid > 0]

    def kill(self) -> bool:
        """SIGKILL to everything in it, at once. False where the kernel cannot (before 5.14)."""
        try:
            with open(self._file("cgroup.kill"), "w", encoding="ascii") as file:
                file.write("1")
        except OSError:
            return False
        return True

    def _file(self, name: str) -> str:
        return os.path.join(self.path, name)


class OutOfMemory:
    """The kernel's own count of kills for want of memory: of the task alone, else of the cgroup the agent lives in.

    The agent's own may be shared with others (on a laptop), so there only a process that died of SIGKILL counts.
    """

    def __init__(self, cgroup: Cgroup, counter: str | None = None) -> None:
        own = counter or (os.path.join(cgroup.path, "memory.events") if cgroup.usable else "")
        self.exclusive = bool(own) and os.path.exists(own)
        self._path = own if self.exclusive else _counter_of_self()
        self._before = _count(self._path)

    def peak_bytes(self) -> int | None:
        """The most that the task had taken: by its own counter, else what its largest process was."""
        names = ("memory.peak", "memory.max_usage_in_bytes") if self.exclusive else ()
        for name in names:
            text = files.read_text(os.path.join(os.path.dirname(self._path), name)).strip()
            if text.isdigit():
                return int(text)
        largest = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
        return (largest if sys.platform == "darwin" else largest << 10) or None

    def happened(self) -> bool:
        return bool(self._path) and _count(self._path) > self._before


def _counter_of_self() -> str:
    for line in files.read_text("/proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            candidate = "/sys/fs/cgroup" + path.rstrip("/") + "/memory.events"
        elif "memory" in controllers.split(","):
            candidate = "/sys/fs/cgroup/memory" + path.rstrip("/") + "/memory.oom_control"
        else:
            continue
        for found in (candidate, "/sys/fs/cgroup/" + os.path.basename(candidate)):
            if os.path.exists(found):
                return found
    return ""


def _count(path: str) -> int:
    for line in files.read_text(path).splitlines() if path else ():
        name, _, value = line.partition(" ")
        if name == "oom_kill" and value.strip().isdigit():
            return int(value)
    return 0
