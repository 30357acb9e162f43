"""A file that only grows, and whose growth is durable before it is acknowledged.

A sync that fails says nothing about what reached the disk, and the next one may lie: the file is cut back to the length
that was acknowledged, and the bytes are written anew when they are sent again. The file's length is the truth after a
restart. Until then the length that was acknowledged is: a file that became shorter was changed by somebody else, and
nothing is written behind the gap.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

from oarlock.data import durable


class AppendOnly:
    """One such file, which need not exist yet. One caller at a time; `length` may be read by anybody."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.length = self._recovered()
        self._unsure = False

    def append(self, data: bytes) -> int:
        """Store `data` at the end and return the new length. Raises OSError, and then nothing of it is stored."""
        if not data:
            return self.length
        new = self.length == 0 and not self.path.exists()
        if new:
            durable.make_folder(self.path.parent)
        fd = os.open(self.path, os.O_WRONLY | (os.O_CREAT if new else 0) | os.O_CLOEXEC, 0o600)
        try:
            if os.fstat(fd).st_size < self.length:
                raise OSError(errno.EIO, "the file has become shorter than what was stored in it")
            self._cut(fd)
            self._unsure = True
            write_at(fd, data, self.length)
            durable.sync(fd)
            if new:
                durable.sync_folder(self.path.parent)
            self._unsure = False
        finally:
            os.close(fd)
            self._cut_now()
        self.length += len(data)
        return self.length

    def remaining(self) -> int:
        """Return how much of `length` the file still has: less where somebody has cut or deleted it."""
        if not self.length:
            return 0
        try:
            return min(self.length, self.path.stat().st_size)
        except FileNotFoundError:
            return 0
        except OSError:
            return self.length  # a disk that does not answer now

    def cut(self, length: int) -> None:
        """Give up what lies behind `length`: what a restart found torn."""
        if length < self.length:
            self.length = length
            self._unsure = True

    def _cut(self, fd: int) -> None:
        """After a failure: what lies behind the acknowledged length goes before anything new comes."""
        if self._unsure:
            os.ftruncate(fd, self.length)
            durable.sync(fd)
            self._unsure = False

    def _cut_now(self) -> None:
        if self._unsure:
            try:
                os.truncate(self.path, self.length)
            except OSError:
                return  # `_unsure` stays: the next append tries again before it writes

    def _recovered(self) -> int:
        """What a killed process wrote may not have reached the disk: sync first, then believe the length."""
        try:
            fd = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return 0
        try:
            durable.sync(fd)
            return os.fstat(fd).st_size
        finally:
            os.close(fd)


def write_at(fd: int, data: bytes, offset: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(fd, view, offset)
        view = view[written:]
        offset += written
