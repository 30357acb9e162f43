"""A file that only grows, and whose growth is durable before it is acknowledged.

After a failed sync it is unknown which bytes reached the disk, and a later sync may succeed wrongly. The file is
therefore cut back to the acknowledged length, and the bytes are written again when they are sent again. After a restart
the file's length counts; until then the acknowledged length does. A file that became shorter was changed by another
program, and nothing is written after the gap.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

from oarlock.data import durable

PIECE_BYTES = 256 << 10
"""The most bytes in one write. Linux caches a larger write in larger pieces of memory, which took six times as long."""


class AppendOnly:
    """An append-only file, which need not exist yet. Only one caller at a time; any thread may read `length`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.length = self._recovered()
        self._unsure = False

    def append(self, data: bytes) -> int:
        """Store `data` at the end and return the new length. After an OSError no byte of it is stored."""
        if not data:
            return self.length
        new = self.length == 0 and not self.path.exists()
        if new:
            durable.make_folder(self.path.parent)
        fd = os.open(self.path, os.O_WRONLY | (os.O_CREAT if new else 0) | os.O_CLOEXEC, 0o600)
        try:
            if os.fstat(fd).st_size < self.length:
                raise OSError(errno.EIO, "the file has become shorter than its stored length")
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
        """Return the bytes of `length` that the file still has: fewer if another program cut or deleted it."""
        if not self.length:
            return 0
        try:
            return min(self.length, self.path.stat().st_size)
        except FileNotFoundError:
            return 0
        except OSError:
            return self.length  # a disk that does not answer now

    def cut(self, length: int) -> None:
        """Cut the file to `length`: a restart found the bytes after it incomplete."""
        if length < self.length:
            self.length = length
            self._unsure = True

    def _cut(self, fd: int) -> None:
        """Cut the file to the acknowledged length before the next write, after a failure."""
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
        """Sync the file, then return its length: bytes written by a killed process may not have reached the disk."""
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
        written = os.pwrite(fd, view[:PIECE_BYTES], offset)
        view = view[written:]
        offset += written
