"""The files of one stream of a log: its bytes, an index of their times of arrival, and a note of lost bytes.

The length of the file says how much is stored. Another server may append to it, and a user may delete or cut it while
the server runs. Each append and each read therefore compares the length with the one that is known. Under the lock of
the file a longer stream is read on, and a short one goes on at the length that is left, so that its agent sends the
missing bytes again. Until they are back, `NAME.lost` holds the acknowledged length, and readers get a line that reports
the missing bytes.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from oarlock.data import appending, durable, storage
from oarlock.data.logs import cursors
from oarlock.spec import attempts, tasklogs

RESOLUTION_S = 0.02
"""Appends of one stream that follow each other faster share a record of the index."""
READER_S = 0.1
"""The longest wait of a reader for another server that appends. It then shows what it knows."""
MISSING = (
    "[oarlock] {:,} bytes of this log are missing here: its file on the server's disk was deleted or cut."
    " They are shown once the task has sent them again; they are lost if it has ended."
)


class Stream:
    """One append-only file and its index. Writers use `held`; readers, of which there may be several, `length`."""

    def __init__(
        self,
        key: attempts.TaskKey,
        name: str,
        path: Path,
        changed: Callable[[Stream, storage.Shortage | None], bool],
    ) -> None:
        self.key = key
        self.name = name
        self.path = path
        self._changed = changed
        self._lock = threading.RLock()
        self._looking = threading.Lock()
        self._looked = False
        self._acknowledged = 0  # more than the file has, while bytes are missing
        self._file = appending.AppendOnly(path)
        self._indexed_at = float("-inf")

    @property
    def index_path(self) -> Path:
        return self.path.with_suffix(".idx")

    @property
    def lost_path(self) -> Path:
        return self.path.with_suffix(".lost")

    def length(self) -> int:
        """Return the stored length. It leaves out bytes that are being written now, by this server or another one.

        Raises OSError where nothing is known yet and the file cannot be read; BlockingIOError where another server
        does not end its write.
        """
        file = self._file
        if not self._looked:
            self._look_first()
        elif file.size() != file.length:
            self._look_again()
        return file.length

    def _look_first(self) -> None:
        if not self._lock.acquire(timeout=appending.LOCK_S):
            raise BlockingIOError(errno.EAGAIN, "the last write has not ended")
        try:
            if not self._looked:
                with self._file.locked():
                    self._look()
        finally:
            self._lock.release()

    def _look_again(self) -> None:
        """Look at what has changed, or wait for the reader that looks already. What is known stays so on a failure, and
        while this server writes: its write looks, too, and readers are told when it ends.
        """
        if not self._looking.acquire(timeout=appending.LOCK_S):
            return
        try:
            if self._file.size() != self._file.length and self._lock.acquire(blocking=False):
                try:
                    with self._file.locked(wait_s=READER_S):
                        self._look()
                except OSError:
                    pass
                finally:
                    self._lock.release()
        finally:
            self._looking.release()

    @contextlib.contextmanager
    def held(self, *, create: bool) -> Iterator[int]:
        """Give the stored length, which stays so until the end. Without `create` a file that is not there stays so.

        Raises OSError; BlockingIOError where another server does not end its write.
        """
        with self._lock, self._file.locked(create=create):
            self._look()
            yield self._file.length

    @property
    def missing(self) -> int:
        """The number of acknowledged bytes that are gone from the disk."""
        return max(0, self._acknowledged - self.length())

    def missing_line(self) -> tasklogs.Line | None:
        """Return the line that ends a stream with missing bytes, or None."""
        if not self.missing:
            return None
        return tasklogs.Line(
            task=f"{self.key.role}-{self.key.index}",
            attempt=self.key.attempt,
            incarnation=self.key.incarnation,
            stream=self.name,
            offset=self.length(),
            at=max(self._last_at(), _changed_at(self.lost_path)),
            text=MISSING.format(self.missing),
        )

    def index(self) -> cursors.Index:
        try:
            fallback = self.path.stat().st_mtime
        except FileNotFoundError:
            fallback = 0.0
        return cursors.Index(self.index_path, fallback)

    def write(self, data: bytes, at: float) -> int:
        """Store `data` at the end, within `held`, and return the new length. After an OSError no byte of it is
        stored.
        """
        if data:
            self._note(self._file.length, at)
        length = self._file.append(data)
        if self._acknowledged:
            self._regain(length)
        return length

    def _look(self) -> None:
        """Look at what other servers have appended, and at what is gone. The file is locked."""
        file, before, first = self._file, self._file.length, not self._looked
        file.settle()
        self._looked = True
        if not first and file.length == before:
            return
        if first or file.length < before:
            self._recover_index(file.length)
        if first:
            self._acknowledged = _number_in(self.lost_path)
        if file.length < before:
            self._lose(file.length, max(before, self._acknowledged))
        elif self._acknowledged:
            self._regain(file.length)

    def _lose(self, left: int, before: int) -> None:
        """Continue at the length that the file still has. Readers and the task's agent learn how much is missing."""
        if self._changed(self, storage.Shortage(left, before - left)):
            self._acknowledged = before
            try:
                durable.make_folder(self.path.parent)
                durable.write(self.lost_path, str(before).encode())
            except OSError:
                return  # a full disk: it is known only until the server ends

    def _regain(self, length: int) -> None:
        """Record that missing bytes were sent again, some or all of them."""
        if length < self._acknowledged:
            self._changed(self, storage.Shortage(length, self._acknowledged - length))
            return
        self._acknowledged = 0
        self._changed(self, None)
        self.lost_path.unlink(missing_ok=True)

    def _recover_index(self, length: int) -> None:
        """Drop the records of bytes that are not there."""
        with cursors.Records(self.index_path) as records:
            kept = len(records)
            while kept and records[kept - 1][0] >= length:
                kept -= 1
        if self.index_path.exists():
            os.truncate(self.index_path, kept * cursors.RECORD.size)
        self._indexed_at = float("-inf")

    def _last_at(self) -> float:
        """Return the time of the last record of the index."""
        with cursors.Records(self.index_path) as records:
            return records[len(records) - 1][1] if len(records) else float("-inf")

    def _note(self, offset: int, at: float) -> None:
        """Record the time of the bytes from `offset` on.

        Times never go back, even if a clock does, to be searchable. The last record may be another server's.
        """
        if offset > 0 and at - self._indexed_at < RESOLUTION_S:
            return
        try:
            self._indexed_at = cursors.add_record(self.index_path, offset, at)
        except OSError:
            return  # a full disk: the write of the bytes reports it


class Shortages:
    """The streams with missing bytes, by task. Any thread may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: dict[attempts.TaskKey, dict[str, storage.Shortage]] = {}

    def of(self, key: attempts.TaskKey) -> dict[str, storage.Shortage]:
        with self._lock:
            return dict(self._found.get(key, {}))

    def note(self, key: attempts.TaskKey, stream: str, shortage: storage.Shortage | None) -> None:
        with self._lock:
            theirs = self._found.setdefault(key, {})
            theirs.pop(stream, None)
            if shortage is not None:
                theirs[stream] = shortage
            if not theirs:
                del self._found[key]

    def forget(self, job: str) -> None:
        with self._lock:
            self._found = {key: theirs for key, theirs in self._found.items() if key.job != job}


def _number_in(path: Path) -> int:
    try:
        text = path.read_text()
    except OSError:
        return 0
    return int(text) if text.isascii() and text.isdigit() else 0


def _changed_at(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
