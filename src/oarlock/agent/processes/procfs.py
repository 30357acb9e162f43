"""The processes of this task, found through /proc by parent, session, mark and limit mark.

The mark is `OARLOCK_TASK_KEY` in the environment, which every child inherits. It finds processes that left the session
(setsid, a daemon's double fork), but not a process that was started with another environment; `tracking` finds those.
Without /proc (macOS) only the sessions are known.
"""

from __future__ import annotations

import os

from oarlock.agent import files

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Iterator

LIMIT_PROCESSES = 200_000
LIMIT_CHILDREN_BYTES = 4 << 20
RECENT_PIDS = 32
OWN = "self"
_LIMIT_LINE = b"Max realtime timeout"


class Stat:
    """The fields of /proc/PID/stat that the agent uses."""

    def __init__(
        self, pid: int, state: str, parent: int, group: int, session: int, start: int, threads: int = 1
    ) -> None:
        self.pid, self.state, self.parent = pid, state, parent
        self.group, self.session, self.start = group, session, start
        self.threads = threads

    @property
    def alive(self) -> bool:
        """Return whether the process lives. One that lost its first thread is shown as a zombie, and lives."""
        return self.state not in ("Z", "X", "x") or self.threads > 1


def stat(pid: int) -> Stat | None:
    text = files.read_text(f"/proc/{pid}/stat")
    fields = text[text.rfind(")") + 2 :].split()
    if len(fields) < 20:
        return None
    return Stat(pid, fields[0], int(fields[1]), int(fields[2]), int(fields[3]), int(fields[19]), int(fields[17]))


def marked(pid: int, mark: bytes) -> bool:
    """Return whether the process was started with `mark` (NAME=VALUE) in its environment."""
    return mark in (b"\0" + files.read_bytes(f"/proc/{pid}/environ", 4 << 20)).split(b"\0")


def limit_mark(pid: int | str) -> int | None:
    """Return the soft limit of the process's real-time CPU time in us; None where it is unlimited or cannot be read."""
    raw = files.read_bytes(f"/proc/{pid}/limits", 16 << 10)
    place = raw.find(_LIMIT_LINE)
    words = raw[place + len(_LIMIT_LINE) :].split(None, 1) if place >= 0 else []
    return int(words[0]) if words and words[0].isdigit() else None


def find(mark: bytes, sessions: frozenset[int], limit: int | None = None, adopts: bool = False) -> list[Stat]:
    """Return all live processes of the sessions, with the mark or the limit mark, without this one. Zombies are dead.

    `adopts`: this process is a subreaper, so its descendants belong to the task too. A process older than this one does
    not: on a busy machine that saves reading most environments.
    """
    own = os.getpid()
    since = start_time(own) or 0
    seen = [one for one in map(stat, newest_pids()) if one is not None and one.pid != own and one.start >= since]
    descended = _descendants(own, seen) if adopts else set()
    return [
        one
        for one in seen
        if one.alive and (one.pid in descended or one.session in sessions or _belongs(one.pid, mark, limit))
    ]


def _belongs(pid: int, mark: bytes, limit: int | None) -> bool:
    return (limit is not None and limit_mark(pid) == limit) or marked(pid, mark)


def _descendants(own: int, seen: list[Stat]) -> set[int]:
    children: dict[int, list[int]] = {}
    for one in seen:
        children.setdefault(one.parent, []).append(one.pid)
    found: set[int] = set()
    waiting = [own]
    while waiting:
        for child in children.get(waiting.pop(), ()):
            if child not in found:
                found.add(child)
                waiting.append(child)
    return found


def children() -> Iterator[Stat]:
    """Return this process's children, zombies included, each as soon as it is seen.

    The kernel's own lists name them at once. On a kernel without these lists every process is read, the newest first: a
    child that forks and ends again and again lives shorter than a pass over /proc takes.
    """
    own = os.getpid()
    listed = _listed_children(own)
    for pid in _likely_children() if listed is None else listed:
        seen = stat(pid)
        if seen is not None and seen.parent == own:
            yield seen


def _listed_children(own: int) -> list[int] | None:
    """Return the children in the kernel's lists (one list per thread), or None if the kernel has no lists."""
    if not os.path.exists(f"/proc/self/task/{own}/children"):
        return None
    try:
        threads = os.listdir("/proc/self/task")
    except OSError:
        return None
    lists = [files.read_text(f"/proc/self/task/{thread}/children", LIMIT_CHILDREN_BYTES) for thread in threads]
    return [int(word) for one in lists for word in one.split() if word.isdigit()]


def _likely_children() -> Iterator[int]:
    yield from recent_pids()
    yield from newest_pids()


def start_time(pid: int) -> int | None:
    """Return the start in clock ticks since boot. It tells a process from a later one with the same pid."""
    seen = stat(pid)
    return seen.start if seen else None


def catches(pid: int, signum: int) -> bool:
    """Return whether the process has a handler for the signal, so that the signal does not end it."""
    for line in files.read_text(f"/proc/{pid}/status").splitlines():
        if line.startswith("SigCgt:"):
            return bool(int(line.split()[1], 16) >> (signum - 1) & 1)
    return False


def recent_pids() -> range:
    """Return the pids given out last, the newest first, whether they still live or not.

    A process that forks and ends again and again is found here: it lives shorter than a pass over /proc takes.
    """
    words = files.read_text("/proc/loadavg").split()
    last = int(words[4]) if len(words) > 4 and words[4].isdigit() else 0
    return range(last, max(0, last - RECENT_PIDS), -1)


def newest_pids() -> list[int]:
    """Return all pids, the newest first."""
    try:
        names = os.listdir("/proc")
    except OSError:
        return []
    return sorted((int(name) for name in names if name.isdigit()), reverse=True)[:LIMIT_PROCESSES]
