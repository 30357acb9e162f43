"""Memory that processes of one host share, by way of /dev/shm.

One process offers a segment: a file of a few bytes with a random name, which holds a secret. The others are told both
by a connection that they trust. A process that finds the secret there sees the same /dev/shm. Then the name is removed,
and only after that the file grows: a process that is killed at any moment leaves no memory behind, and in the worst
case a file of a few bytes, which a later offer removes.

Memory is reserved when the file grows. Without that, a full /dev/shm would kill the process that writes (SIGBUS).
"""

from __future__ import annotations

import contextlib
import hmac
import mmap
import os
import re
import secrets
import stat
import time
from pathlib import Path

FOLDER = Path("/dev/shm")
_PREFIX = "oarlock-"
_NAME = re.compile(r"oarlock-[0-9a-f]{32}")
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_SECRET_BYTES = 64
_LEFT_AFTER_S = 120.0
"""An offer is taken within milliseconds. A file that is older was left by a process that was killed."""
_PART = 2
"""A segment takes at most this part of the memory that /dev/shm has left: one half."""


def place() -> str:
    """Return the mark of this process's /dev/shm. It is empty where there is none, and another process that sees the
    same memory has the same mark.
    """
    try:
        return f"{_BOOT.read_text().strip()}:{FOLDER.stat().st_dev}"
    except OSError:
        return ""


class Offer:
    """A segment of `size` bytes that other processes may open. Raises OSError where there is no memory for it, or,
    where it is `sparing`, too little would be left for others.
    """

    def __init__(self, size: int, *, sparing: bool = True) -> None:
        space = os.statvfs(FOLDER)
        if size > space.f_bavail * space.f_frsize // (_PART if sparing else 1):
            raise OSError(f"{FOLDER} has not enough memory for {size} bytes")
        _remove_left()
        self.size = size
        self.name, self.secret = _PREFIX + secrets.token_hex(16), secrets.token_hex(_SECRET_BYTES // 2)
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        self._file = os.open(FOLDER / self.name, flags, 0o600)
        try:
            os.write(self._file, self.secret.encode())
        except OSError:
            self.close()
            raise

    def reserve(self) -> None:
        """Remove the name and reserve the memory, once the others have opened the segment. Raises OSError."""
        self._unlink()
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


def _remove_left() -> None:
    """Remove what processes of this user left that were killed within an offer."""
    with contextlib.suppress(OSError):
        for left in FOLDER.glob(f"{_PREFIX}*"):
            with contextlib.suppress(OSError):
                found = left.lstat()
                if found.st_uid == os.geteuid() and time.time() - found.st_mtime > _LEFT_AFTER_S:
                    left.unlink()
