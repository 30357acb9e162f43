"""A file that only grows, each time durably before that is acknowledged.

After a failed sync it is unknown which bytes reached the disk, and a later sync may succeed wrongly. The file is
therefore cut back to the acknowledged length, and the bytes are written again when they are sent again. After a restart
the file's length counts; until then the acknowledged length does. A file that became shorter was changed by another
program, and nothing is written after the gap.

Several servers may append to one file, one at a time: each locks the file itself (`flock`), and looks then at what the
others have appended. A lock ends with its process. A server that cannot cut the file back keeps the lock until it can,
so that no other server takes these bytes for acknowledged ones.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

from oarlock.data import durable

PIECE_BYTES = 256 << 10
"""The most bytes in one write. Linux caches a larger write in larger pieces of memory, which took six times as long."""
LOCK_S = 2.0
"""The longest wait for another server that has the lock. It has it for the time of one write."""
FIRST_PAUSE_S = 0.0005
LONGEST_PAUSE_S = 0.02


class AppendOnly:
    """An append-only file, which need not exist yet. Only one thread at a time; any thread may read `length`.

    `length` is what is known to be stored, 0 at first.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.length = 0
        self._place = str(path)  # opened in half of the time of a Path
        self._fd: int | None = None  # open and locked
        self._size = 0  # of the file when it was locked
        self._unsure = False  # bytes after `length` may be there, which must not be

    def __del__(self) -> None:
        self._release()

    @contextlib.contextmanager
    def locked(self, *, create: bool = False, wait_s: float = LOCK_S) -> Iterator[None]:
        """Keep other servers from appending. Without `create` a file that does not exist stays so.

        Raises BlockingIOError where another server has the lock for longer than `wait_s`.
        """
        if self._fd is None or not self._is_there(self._fd):
            self._release()
            self._fd = self._opened(create, wait_s)
        try:
            if self._unsure:
                self._cut()
            yield
        finally:
            if not self._unsure:
                self._release()

    def settle(self) -> None:
        """Take the file's present length for the stored one, once its bytes are durable. The file is locked."""
        if self._fd is not None and self._size > self.length:
            durable.sync(self._fd)  # the process that wrote these bytes may have been killed before it did
        self.length = self._size

    def is_settled(self) -> bool:
        """Return whether the file has the known length. The file is locked."""
        return self.length == self._size

    def append(self, data: bytes) -> int:
        """Store `data` at the end and return the new length. After an OSError no byte of it is stored.

        The file is locked, and was made.
        """
        if not data:
            return self.length
        assert self._fd is not None
        if self._size < self.length:
            raise OSError(errno.EIO, "the file has become shorter than its stored length")
        self._unsure = True
        try:
            write_at(self._fd, data, self.length)
            durable.sync(self._fd)
            if self.length == 0:
                durable.sync_folder(self.path.parent)
            self._unsure = False
        finally:
            if self._unsure:
                with contextlib.suppress(OSError):  # tried again before the next write
                    self._cut()
        self.length = self._size = self.length + len(data)
        return self.length

    def cut(self, length: int) -> None:
        """Cut the file to `length`: the bytes after it are incomplete. The file is locked."""
        if length < self.length:
            self.length = length
            self._unsure = True
            with contextlib.suppress(OSError):
                self._cut()

    def size(self) -> int:
        """Return the file's present length, 0 where there is none. The file is opened for that: on a network file
        system an opened file has the length that its server knows.
        """
        try:
            fd = os.open(self._place, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return 0
        except OSError:
            return self.length  # a disk that does not answer now
        try:
            return os.lseek(fd, 0, os.SEEK_END)
        finally:
            os.close(fd)

    def _opened(self, create: bool, wait_s: float) -> int | None:
        """Return the file, open and locked; None where there is none."""
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        while True:
            try:
                fd = os.open(self._place, flags, 0o600)
            except FileNotFoundError:
                if not create:
                    self._size = 0
                    return None
                durable.make_folder(self.path.parent)
                fd = os.open(self._place, flags, 0o600)
            try:
                _lock(fd, wait_s)
                if self._is_there(fd):
                    return fd
            except BaseException:
                os.close(fd)
                raise
            os.close(fd)  # it was deleted meanwhile

    def _cut(self) -> None:
        """Cut the file to the stored length."""
        assert self._fd is not None
        os.ftruncate(self._fd, self.length)
        durable.sync(self._fd)
        self._size, self._unsure = self.length, False

    def _is_there(self, fd: int) -> bool:
        """Look at the size of a locked file. Return whether it still has a name."""
        found = os.fstat(fd)
        self._size = found.st_size
        return found.st_nlink > 0

    def _release(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
        self._fd, self._unsure = None, False


def _lock(fd: int, wait_s: float) -> None:
    """Lock an open file. Raises BlockingIOError after `wait_s`."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        _lock_later(fd, time.monotonic() + wait_s)


def _lock_later(fd: int, until: float) -> None:
    pause_s = FIRST_PAUSE_S
    while time.monotonic() < until:
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
    raise BlockingIOError(errno.EAGAIN, "another server has not finished writing to it")


def write_at(fd: int, data: bytes, offset: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(fd, view[:PIECE_BYTES], offset)
        view = view[written:]
        offset += written
