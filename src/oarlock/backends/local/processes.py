"""Processes as Linux shows them in /proc: which live, to which task they belong, and how to end exactly those.

A pid alone means nothing, since numbers are used again: a process is its pid together with its start time, within one
boot. A process belongs to a task when its environment carries the task's mark, when it has the task's limit mark (a
soft limit that is inherited whatever becomes of the environment), when it was started by a process of the task, or when
it sits in a session that such a process leads. Parents are never walked upwards: an orphan's parent is a stranger.
Zombies are dead.

Everything that needs Linux to find and signal processes is in this file.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import resource
import select
import signal
import sys
import time
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

import msgspec

from oarlock.backends.local import forks
from oarlock.spec import errors

KEY_MARK = "OARLOCK_TASK_KEY"
DIRECTORY_MARK = "OARLOCK_TASK_DIR"
"""Both together are a task's mark: the key is the server's, and the directory tells two homes apart."""

MAX_PROCESSES = 200_000
MAX_ENVIRON_BYTES = 4 << 20
RECENT_PIDS = 32
PASSES = 2  # what is in the middle of a fork before the first is there before the second
GLIMPSES = 30
FOLLOWED = 1000  # batches of new pids after a pass: each takes some 50 us where little is started
STRUCK = 300
MAX_LIMITS_BYTES = 16 << 10
_LIMIT_LINE = b"Max realtime timeout"
_LEAST_LIMIT_US = 1 << 61  # 73,000 years: no process meets it
_LIMIT_BITS = 56


class Stat(msgspec.Struct, frozen=True):
    """The used fields of /proc/PID/stat. `start` counts clock ticks since the boot."""

    pid: int
    state: str
    parent: int
    session: int
    start: int
    limit: int = 0  # its limit mark, where `table` has looked for one
    threads: int = 0

    @property
    def alive(self) -> bool:
        """A process that lost its first thread before the others is shown as a zombie, and lives."""
        return self.state not in "ZXx" or self.threads > 1


Table = dict[int, Stat]
"""The living processes of one look, by pid."""


class Mark(msgspec.Struct, frozen=True):
    """The owner of a process: the task key and the task's directory, as its environment has them."""

    key: str
    directory: str

    @property
    def limit(self) -> int:
        """The task's limit mark: microseconds of RLIMIT_RTTIME, which the agent sets for itself and its children."""
        digest = hashlib.sha256(os.fsencode(f"{self.key}\0{self.directory}")).digest()
        return _LEAST_LIMIT_US + int.from_bytes(digest[: _LIMIT_BITS // 8])


def require() -> None:
    """Check for /proc. Raises Unsupported where it is missing."""
    if sys.platform != "linux" or not Path("/proc/self/stat").exists():
        raise errors.Unsupported(
            "the local backend needs Linux with /proc, to be sure that what it started has ended",
            hint="Run the server on Linux (WSL 2 and containers count), or name another one with OARLOCK_SERVER.",
        )


@functools.cache
def boot() -> str:
    """Return the id of this boot of the machine: pids and start times mean something within one only."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def parse(text: str) -> Stat | None:
    """Return a line of /proc/PID/stat. The name in it may hold blanks and brackets: the last bracket ends it."""
    pid, fields = text.partition(" ")[0], text[text.rfind(")") + 2 :].split()
    if len(fields) < 20 or not pid.isdigit():
        return None
    return Stat(int(pid), fields[0], int(fields[1]), int(fields[3]), int(fields[19]), threads=int(fields[17]))


def look(pid: int) -> Stat | None:
    """Return the process of that number, whatever its state; None where there is none."""
    try:
        return parse(Path(f"/proc/{pid}/stat").read_bytes().decode("utf-8", "replace"))
    except (OSError, ValueError):
        return None


def lives(pid: int, start: int) -> bool:
    """Return whether the process that started then still runs."""
    seen = look(pid)
    return seen is not None and seen.alive and seen.start == start


def table() -> Table:
    """Return all living processes with their limit marks, from one pass over /proc."""
    found: Table = {}
    pids = (int(name) for name in os.listdir("/proc") if name.isdigit())  # noqa: PTH208  (half as dear as Path.iterdir)
    for pid, _ in zip(pids, range(MAX_PROCESSES), strict=False):
        seen = look(pid)
        if seen is not None and seen.alive:
            found[pid] = msgspec.structs.replace(seen, limit=limit_mark(pid) or 0)
    return found


def limit_mark(pid: int) -> int | None:
    """Return the limit mark that the process carries; 0 where it carries none, None where there is no such process."""
    try:
        with open(f"/proc/{pid}/limits", "rb") as file:  # noqa: PTH123  (as above)
            raw = file.read(MAX_LIMITS_BYTES)
    except OSError:
        return None
    soft = raw.partition(_LIMIT_LINE)[2].split(None, 1)[:1]
    return int(soft[0]) if soft and soft[0].isdigit() and int(soft[0]) >= _LEAST_LIMIT_US else 0


def set_limit_mark(pid: int, limit: int) -> None:
    """Let the process, a child that was started at this moment, and all that it starts carry the limit mark."""
    with contextlib.suppress(OSError, ValueError):  # it has ended, or a lower hard limit is in force
        resource.prlimit(pid, resource.RLIMIT_RTTIME, (limit, resource.prlimit(pid, resource.RLIMIT_RTTIME)[1]))


def mark(pid: int) -> Mark | None:
    """Return the mark in the environment that the process was started with.

    None also where it may not be read: a stranger's.
    """
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:  # noqa: PTH123  (as above)
            raw = file.read(MAX_ENVIRON_BYTES)
    except OSError:
        return None
    if KEY_MARK.encode() not in raw:
        return None
    values = dict(line.partition(b"=")[::2] for line in raw.split(b"\0"))
    key, directory = values.get(KEY_MARK.encode()), values.get(DIRECTORY_MARK.encode())
    if key is None or directory is None:
        return None
    return Mark(os.fsdecode(key), os.fsdecode(directory))


def members(
    marks: Collection[Mark], seen: Table | None = None, roots: dict[Mark, set[int]] | None = None
) -> dict[Mark, list[Stat]]:
    """Return the living processes of each task. `roots` names processes known to be theirs (members of a cgroup).

    This process is never among them, even where it carries the mark itself.
    """
    seen = dict(table() if seen is None else seen)
    # Not even as a parent: processes started by these two do not belong to the task for that.
    for nobody in (os.getpid(), 1):
        seen.pop(nobody, None)
    owner: dict[int, Mark] = {}
    by_limit = {one.limit: one for one in marks}
    for pid, one in seen.items():
        found = by_limit.get(one.limit) or mark(pid)
        if found is not None and found in marks:
            owner[pid] = found
    for known, pids in (roots or {}).items():
        owner.update((pid, known) for pid in pids if pid in seen)
    _adopt_sessions(owner, seen)
    _adopt_children(owner, seen)
    sorted_out: dict[Mark, list[Stat]] = {one: [] for one in marks}
    for pid, whose in owner.items():
        if whose in sorted_out:
            sorted_out[whose].append(seen[pid])
    return sorted_out


def _adopt_sessions(owner: dict[int, Mark], seen: Table) -> None:
    """Add processes in sessions that a process of the task leads, even with an environment of their own."""
    for pid, one in seen.items():
        if pid not in owner and one.session in owner and one.session in seen:
            owner[pid] = owner[one.session]


def _adopt_children(owner: dict[int, Mark], seen: Table) -> None:
    """Add processes that a process of the task has started."""
    children: dict[int, list[int]] = {}
    for one in seen.values():
        children.setdefault(one.parent, []).append(one.pid)
    unseen = list(owner)
    while unseen:
        parent = unseen.pop()
        for child in children.get(parent, ()):
            if child not in owner:
                owner[child] = owner[parent]
                unseen.append(child)


def in_session(leader: Stat, seen: Table | None = None) -> list[Stat]:
    """Return the living processes of the session that this process leads or led, and their children."""
    seen = dict(table() if seen is None else seen)
    seen.pop(os.getpid(), None)
    whose = Mark("", "")
    owner = {pid: whose for pid, one in seen.items() if one.session == leader.pid and one.start >= leader.start}
    _adopt_children(owner, seen)
    return [seen[pid] for pid in owner]


def open_pidfd(pid: int, start: int | None = None) -> int | None:
    """Return a descriptor that becomes readable when that process ends; None where there is none, or no such thing."""
    try:
        fd = os.pidfd_open(pid)
    except (OSError, AttributeError):
        return None
    # Looked at after the descriptor is ours: the number may have changed hands in between.
    seen = look(pid)
    if start is not None and (seen is None or seen.start != start):
        os.close(fd)
        return None
    return fd


def end(pid: int, start: int) -> None:
    """Send SIGKILL to the process that started then, and to no other that has its number by now."""
    fd = open_pidfd(pid, start)
    try:
        if fd is not None:
            signal.pidfd_send_signal(fd, signal.SIGKILL)
        elif lives(pid, start):  # a kernel without pidfd
            os.kill(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass
    finally:
        if fd is not None:
            os.close(fd)


class Remains(msgspec.Struct, frozen=True):
    """What one look found. `proven`: it is certain that nothing else lives, see `forks`."""

    found: dict[Mark, list[Stat]]
    proven: bool


def remains(marks: Collection[Mark], roots: dict[Mark, set[int]] | None = None) -> Remains:
    """Look for all living processes of these tasks, including those that live shorter than a pass over /proc takes.

    A process that forks and ends again and again is mostly met among the newest pids. After these the look goes on to
    the processes that were started since its beginning, until none was. That proves that no process of the tasks lives.
    Where the machine starts processes faster than they are looked at, the look ends after `FOLLOWED` batches, without a
    proof.
    """
    series = forks.Series()
    found: dict[Mark, list[Stat]] = {one: [] for one in marks}
    missing = list(marks)
    for _ in range(PASSES):
        if missing:
            found.update(members(missing, roots=roots))
            missing = [one for one in marks if not found[one]]
    for _ in range(GLIMPSES):
        for whose, seen in _glimpses(missing, reversed(forks.recent(RECENT_PIDS)) if missing else ()):
            found[whose].append(seen)
        missing = [one for one in marks if not found[one]]
    for _ in range(FOLLOWED):
        pids = series.new() if missing else None
        if pids is None:
            return Remains(found, proven=not series.lost)
        for whose, seen in _glimpses(missing, pids):
            found[whose].append(seen)
        missing = [one for one in marks if not found[one]]
    return Remains(found, proven=False)


def _glimpses(marks: Collection[Mark], pids: Iterable[int]) -> Iterator[tuple[Mark, Stat]]:
    """Yield those of the pids that belong to one of these tasks, each at the moment when it is seen."""
    by_limit = {one.limit: one for one in marks}
    for pid in pids:
        limit = limit_mark(pid)
        whose = by_limit.get(limit) or mark(pid) if limit is not None else None
        if whose is None or whose not in marks or pid in (os.getpid(), 1):
            continue
        seen = look(pid)
        if seen is None:  # it lived a moment ago, and what it has started may live
            yield whose, Stat(pid, "R", 0, 0, 0, whose.limit)
        elif seen.alive:
            yield whose, seen


def strike(marks: Collection[Mark]) -> None:
    """Send SIGKILL to processes that live too short to be found first and ended afterwards.

    It is sent only to processes with a limit mark, which their children have too. A process that is known by its
    environment alone may have children that are known by it alone: `members` has to see them before it ends.
    """
    limits = {one.limit for one in marks}
    series = forks.Series()
    pids: Iterable[int] | None = forks.recent(RECENT_PIDS) if marks else None
    for _ in range(STRUCK):
        if pids is None:
            return
        for pid in pids:
            if limit_mark(pid) in limits and pid not in (os.getpid(), 1):
                _strike(pid, limits)
        pids = series.new()


def _strike(pid: int, limits: set[int]) -> None:
    fd = open_pidfd(pid)
    if fd is not None:
        with contextlib.suppress(OSError):
            if limit_mark(pid) in limits:  # looked at again: the pid may have changed hands
                signal.pidfd_send_signal(fd, signal.SIGKILL)
        os.close(fd)


def await_ends(ended: Iterable[Stat], timeout_s: float) -> None:
    """Return when all of these are dead, or after the time-out."""
    until = time.monotonic() + timeout_s
    with contextlib.ExitStack() as stack:
        poll, waiting = select.poll(), set[int]()
        for fd in _pidfds(ended):
            stack.callback(os.close, fd)
            poll.register(fd, select.POLLIN)
            waiting.add(fd)
        while waiting and (left_s := until - time.monotonic()) > 0:
            for fd, _ in poll.poll(left_s * 1000):
                poll.unregister(fd)
                waiting.discard(fd)


def _pidfds(ended: Iterable[Stat]) -> Iterator[int]:
    for one in ended:
        fd = open_pidfd(one.pid, one.start)
        if fd is not None:
            yield fd


def reap(pidfd: int) -> None:
    """Take the zombie away where the process was our child. One that was adopted is its new parent's."""
    with contextlib.suppress(OSError):
        os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOHANG)
