"""Memory that processes of one host share, by way of /dev/shm.

One process offers a segment: a file of a few bytes with a random name, which holds a secret. The others are told both
by a connection that they trust. A process that finds the secret there sees the same /dev/shm. Then the name is removed,
and only after that the file grows: a process that is killed at any moment leaves no memory behind, and in the worst
case a file of a few bytes, which a later offer removes.

Memory is reserved when the file grows. Without that, a full /dev/shm would kill the process that writes (SIGBUS). It
counts for the memory cgroup of the process that reserves it. At that limit there is no error either: the kernel ends a
process. So each process reserves what it would use without sharing, and looks at its limits before.

OARLOCK_SHARED_MEMORY=0 turns sharing off.
"""

from __future__ import annotations

import contextlib
import fcntl
import hmac
import math
import mmap
import os
import re
import secrets
import stat
import time
from pathlib import Path

from oarlock.train import environment

FOLDER = Path("/dev/shm")
KEPT = "oarlock_kept-"
"""The names of files that outlive their process, for its successor. A living process holds a lock on its file."""
SHOWN = "-shown"
"""The end of the name of a file that lies beside such a file."""
_KEPT_AFTER_S = 900.0
"""No successor comes later. The file of a process that was killed so long ago is removed."""
_PREFIX = "oarlock-"
_NAME = re.compile(r"oarlock-[0-9a-f]{32}")
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_SECRET_BYTES = 64
_LEFT_AFTER_S = 120.0
"""An offer is taken within milliseconds. A file that is older was left by a process that was killed."""
_PART = 2
"""Segments take at most this part of the memory that /dev/shm has left: one half."""
_LEFT_BYTES = 512 << 20
"""And they leave so much of it: the processes of a DataLoader, for one, end where /dev/shm is full."""
_OURS, _CGROUPS = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")
_LIMITS = (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes"))
"""The files of the limit and of the use, in both versions of cgroups."""


def place() -> str:
    """Return the mark of this process's /dev/shm. It is empty where there is none or where it must not be used, and
    another process that sees the same memory has the same mark.
    """
    if not environment.may_share_memory():
        return ""
    try:
        return f"{_BOOT.read_text().strip()}:{FOLDER.stat().st_dev}"
    except OSError:
        return ""


class Offer:
    """A segment of `size` bytes that other processes may open. `beside` are the bytes that others offer meanwhile.

    Raises OSError where there is no memory for it, or, where it is `sparing`, too little would be left for others.
    """

    def __init__(self, size: int, *, beside: int = 0, sparing: bool = True) -> None:
        spare(size, beside=beside, sparing=sparing)
        self.size = size
        self.name, self.secret = _PREFIX + secrets.token_hex(16), secrets.token_hex(_SECRET_BYTES // 2)
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        self._file = os.open(FOLDER / self.name, flags, 0o600)
        try:
            os.write(self._file, self.secret.encode())
        except OSError:
            self.close()
            raise

    def reserve(self, keep_as: Path | None = None) -> None:
        """Remove the name and reserve the memory, once the others have opened the segment. Raises OSError. With
        `keep_as` the file gets this name instead, for a successor of this process.
        """
        if keep_as is None:
            self._unlink()
        else:
            (FOLDER / self.name).replace(keep_as)
        os.posix_fallocate(self._file, 0, self.size)

    def map(self) -> mmap.mmap:
        """Return the memory."""
        return mmap.mmap(self._file, self.size)

    def close(self) -> None:
        """Let go of the file; memory that is mapped stays."""
        self._unlink()
        if self._file >= 0:
            os.close(self._file)
        self._file = -1

    def _unlink(self) -> None:
        with contextlib.suppress(OSError):
            (FOLDER / self.name).unlink()


class Opened:
    """A segment that another process has offered. Raises OSError where this process cannot share it."""

    def __init__(self, name: str, secret: str) -> None:
        if not _NAME.fullmatch(name):
            raise OSError("the name of a segment is not valid")
        self._file = os.open(FOLDER / name, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            found = os.fstat(self._file)
            if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
                raise OSError("the file of a segment is not a plain file of this user")
            if not hmac.compare_digest(os.pread(self._file, _SECRET_BYTES + 1, 0), secret.encode()):
                raise OSError("the file of a segment does not hold its secret")
        except OSError:
            self.close()
            raise

    def map(self, size: int) -> mmap.mmap:
        """Return the memory, once the other process has reserved it. Raises OSError if the file is smaller."""
        if not 0 < size <= os.fstat(self._file).st_size:
            raise OSError("a segment is smaller than it should be")
        return mmap.mmap(self._file, size)

    def close(self) -> None:
        """Let go of the file; memory that is mapped stays."""
        if self._file >= 0:
            os.close(self._file)
        self._file = -1


def spare(size: int, *, beside: int = 0, sparing: bool = True) -> None:
    """Raise OSError where there is no memory for a segment of so many bytes, as `Offer` does."""
    space = os.statvfs(FOLDER)
    free = space.f_bavail * space.f_frsize
    most = min(free // _PART, free - _LEFT_BYTES) if sparing else free
    if size + beside > most or size > _room_bytes():
        raise OSError(f"{FOLDER} has not enough memory for {size} bytes")
    _remove_left()


def _remove_left() -> None:
    """Remove what processes of this user left that were killed within an offer, and what no successor came for."""
    with contextlib.suppress(OSError):
        for left in [*FOLDER.glob(f"{_PREFIX}*"), *FOLDER.glob(f"{KEPT}*")]:
            with contextlib.suppress(OSError):
                kept = left.name.startswith(KEPT)
                found = left.lstat()
                is_old = time.time() - found.st_mtime > (_KEPT_AFTER_S if kept else _LEFT_AFTER_S)
                if found.st_uid == os.geteuid() and is_old and not (kept and _is_locked(left)):
                    left.unlink()


def _is_locked(path: Path) -> bool:
    """Return whether a living process keeps this file, or the one that it lies beside."""
    try:
        file = os.open(path.with_name(path.name.removesuffix(SHOWN)), os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(file)
    return False


def _room_bytes() -> float:
    """Return the memory that the cgroups of this process leave to it."""
    room = math.inf
    with contextlib.suppress(OSError, ValueError):
        for line in _OURS.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers in ("", "memory"):
                top = _CGROUPS / controllers
                place = top / path.lstrip("/")
                for each in (place, *place.parents):
                    if each.is_relative_to(top):
                        room = min(room, _left_bytes(each))
    return room


def _left_bytes(cgroup: Path) -> float:
    """Return what the limit of one cgroup leaves. The kernel gives cached files up before it ends a process."""
    for limit, used in _LIMITS:
        with contextlib.suppress(OSError, ValueError):
            most = int((cgroup / limit).read_text())  # "max" is not a number
            told = dict(line.split() for line in (cgroup / "memory.stat").read_text().splitlines())
            cached = sum(int(told.get(kind, 0)) for kind in ("active_file", "inactive_file"))
            return most - int((cgroup / used).read_text()) + cached
    return math.inf
