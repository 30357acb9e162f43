"""The files of one stream of a log: its bytes, an index of their times of arrival, and a note of lost bytes.

The length of the file says how much is stored. A user may delete or cut a file while the server runs. Each append and
each read therefore compares the length with the acknowledged length. A short stream goes on at the length that is left,
so that its agent sends the missing bytes again. Until they are back, `NAME.lost` holds the acknowledged length, and
readers get a line that reports the missing bytes.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

from oarlock.data import appending, durable, storage
from oarlock.data.logs import cursors
from oarlock.spec import attempts

RESOLUTION_S = 0.02
"""Appends of one stream that follow each other faster share a record of the index."""
MISSING = (
    "[oarlock] {:,} bytes of this log are missing here: its file on the server's disk was deleted or cut."
    " They are shown once the task has sent them again; they are lost if it has ended."
)


class Stream:
    """One append-only file and its index. Writers hold `lock`; readers use the acknowledged length."""

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
        self.lock = threading.RLock()
        self._changed = changed
        self._acknowledged = 0  # more than the file has, while bytes are missing
        self._file: appending.AppendOnly | None = None
        self._last_at = float("-inf")
        self._indexed_at = float("-inf")

    @property
    def index_path(self) -> Path:
        return self.path.with_suffix(".idx")

    @property
    def lost_path(self) -> Path:
        return self.path.with_suffix(".lost")

    def length(self) -> int:
        file = self._opened()
        if file.remaining() < file.length:
            with self.lock:
                self._lose(file)
        return file.length

    @property
    def missing(self) -> int:
        """The number of acknowledged bytes that are gone from the disk."""
        return max(0, self._acknowledged - self.length())

    def missing_line(self) -> storage.Line | None:
        """Return the line that ends a stream with missing bytes, or None."""
        if not self.missing:
            return None
        return storage.Line(
            task=f"{self.key.role}-{self.key.index}",
            attempt=self.key.attempt,
            incarnation=self.key.incarnation,
            stream=self.name,
            offset=self.length(),
            at=max(self._last_at, _changed_at(self.lost_path)),
            text=MISSING.format(self.missing),
        )

    def index(self) -> cursors.Index:
        try:
            fallback = self.path.stat().st_mtime
        except FileNotFoundError:
            fallback = 0.0
        return cursors.Index(self.index_path, fallback)

    def write(self, data: bytes, at: float) -> int:
        """Store `data` at the end and return the new length. After an OSError no byte of it is stored."""
        file = self._opened()
        if data:
            self._note(file.length, at)
        length = file.append(data)
        if self._acknowledged:
            self._regain(length)
        return length

    def _lose(self, file: appending.AppendOnly) -> None:
        """Continue at the length that the file still has. Readers and the task's agent learn how much is missing."""
        left, before = file.remaining(), max(file.length, self._acknowledged)
        if left >= file.length:
            return  # another thread has done it
        file.cut(left)
        self._last_at = self._indexed_at = float("-inf")
        self._recover_index(left)
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

    def _opened(self) -> appending.AppendOnly:
        file = self._file
        if file is None:
            with self.lock:
                file = self._file
                if file is None:
                    file = appending.AppendOnly(self.path)
                    self._recover_index(file.length)
                    self._acknowledged = _number_in(self.lost_path)
                    if self._acknowledged:
                        self._regain(file.length)
                    self._file = file
        return file

    def _recover_index(self, length: int) -> None:
        """Drop the records of bytes that are not there, and continue from the last time that is left."""
        with cursors.Records(self.index_path) as records:
            kept = len(records)
            while kept and records[kept - 1][0] >= length:
                kept -= 1
            if kept:
                self._last_at = self._indexed_at = records[kept - 1][1]
        if self.index_path.exists():
            os.truncate(self.index_path, kept * cursors.RECORD.size)

    def _note(self, offset: int, at: float) -> None:
        """Record the time of the bytes from `offset` on.

        Times never go back, even if the clock does, to be searchable.
        """
        self._last_at = at = max(at, self._last_at)
        if offset > 0 and at - self._indexed_at < RESOLUTION_S:
            return
        try:
            durable.make_folder(self.path.parent)
            with self.index_path.open("ab") as file:
                file.write(cursors.RECORD.pack(offset, at))
        except OSError:
            return  # a full disk: the write of the bytes reports it
        self._indexed_at = at


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
