"""The processes of this task, found again through /proc: by session, and by the mark in their environment.

The mark is `OARLOCK_TASK_KEY`, which every child inherits. It finds what left the session (setsid, a daemon's double
fork). It does not find a process that overwrote its own environment or runs as another user. Where there is no /proc
(macOS) only the sessions are known.
"""

from __future__ import annotations

import os

from oarlock.agent import files

LIMIT_PROCESSES = 200_000


class Stat:
    """The fields of /proc/PID/stat that the agent uses."""

    def __init__(self, pid: int, state: str, group: int, session: int, start: int) -> None:
        self.pid, self.state, self.group, self.session, self.start = pid, state, group, session, start

    @property
    def alive(self) -> bool:
        return self.state not in ("Z", "X", "x")


def stat(pid: int) -> Stat | None:
    text = files.read_text(f"/proc/{pid}/stat")
    fields = text[text.rfind(")") + 2 :].split()
    if len(fields) < 20:
        return None
    return Stat(pid, fields[0], int(fields[2]), int(fields[3]), int(fields[19]))


def marked(pid: int, mark: bytes) -> bool:
    """Whether the process was started with `mark` (NAME=VALUE) in its environment."""
    return mark in (b"\0" + files.read_bytes(f"/proc/{pid}/environ", 4 << 20)).split(b"\0")


def find(mark: bytes, sessions: frozenset[int]) -> list[Stat]:
    """All live processes of the sessions or with the mark, but never this one. Zombies are dead.

    What is older than this process is none of the task's: on a busy machine that spares reading most environments.
    """
    own = os.getpid()
    since = start_time(own) or 0
    found = []
    for pid in _pids():
        if pid == own:
            continue
        seen = stat(pid)
        if seen is None or not seen.alive or seen.start < since:
            continue
        if seen.session in sessions or marked(pid, mark):
            found.append(seen)
    return found


def start_time(pid: int) -> int | None:
    """Clock ticks since boot, by which a reused pid is told apart."""
    seen = stat(pid)
    return seen.start if seen else None


def catches(pid: int, signum: int) -> bool:
    """Whether the process has a handler for the signal, so that it will not die of it."""
    for line in files.read_text(f"/proc/{pid}/status").splitlines():
        if line.startswith("SigCgt:"):
            return bool(int(line.split()[1], 16) >> (signum - 1) & 1)
    return False


def _pids() -> list[int]:
    try:
        names = os.listdir("/proc")
    except OSError:
        return []
    return [int(name) for name in names if name.isdigit()][:LIMIT_PROCESSES]
