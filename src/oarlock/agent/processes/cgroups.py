"""The cgroup v2 directory that the backend may have made for this task. The agent never creates one."""

from __future__ import annotations

import os
import resource
import sys

from oarlock.agent import files


class Cgroup:
    """A cgroup. `usable`: processes can be put into it. If not, the task is killed by session and mark."""

    def __init__(self, path: str | None) -> None:
        self.path = path or ""
        self.usable = bool(path) and os.access(self._file("cgroup.procs"), os.W_OK)
        if os.getpid() in self.pids():
            self.usable = False  # the agent itself would die of cgroup.kill

    def entry_fd(self) -> int:
        """Return a descriptor: writing `0` to it after the fork enters the cgroup. -1 if no cgroup is usable."""
        return os.open(self._file("cgroup.procs"), os.O_WRONLY | os.O_CLOEXEC) if self.usable else -1

    def holds(self, pid: int) -> bool:
        """Return whether the process is in the cgroup. True for a process that has ended already."""
        lines = files.read_text(f"/proc/{pid}/cgroup").splitlines()
        inside = [line[3:] for line in lines if line.startswith("0::")]
        return not inside or os.path.realpath(self.path).endswith(inside[0].rstrip("/") or "/")

    def pids(self) -> list[int]:
        """Return the processes in the cgroup and in those below it."""
        found = []
        for directory, _, _ in os.walk(self.path) if self.usable else ():
            text = files.read_text(os.path.join(directory, "cgroup.procs"))
            found += [int(line) for line in text.split() if line.isdigit()]
        return [pid for pid in found if pid > 0]

    def kill(self) -> bool:
        """Send SIGKILL to every process in the cgroup at once. Return False if the kernel cannot (before 5.14)."""
        try:
            with open(self._file("cgroup.kill"), "w", encoding="ascii") as file:
                file.write("1")
        except OSError:
            return False
        return True

    def _file(self, name: str) -> str:
        return os.path.join(self.path, name)


class OutOfMemory:
    """The kernel's count of kills for lack of memory: of the task's own cgroup, else of the agent's.

    Other programs may share the agent's cgroup (on a laptop). There, only a process that died of SIGKILL counts.
    """

    def __init__(self, cgroup: Cgroup, counter: str | None = None) -> None:
        own = counter or (os.path.join(cgroup.path, "memory.events") if cgroup.usable else "")
        self.exclusive = bool(own) and os.path.exists(own)
        self._path = own if self.exclusive else _counter_of_self()
        self._before = _count(self._path)

    def peak_bytes(self) -> int | None:
        """Return the task's peak memory by its own counter, else the peak of its largest process."""
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
