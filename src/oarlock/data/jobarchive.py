"""The archive of deleted jobs: a file that only grows, with one JSON object per line.

The store deletes a job after its line is durable here. A server that is killed between the two steps writes the line
again. A server that is killed within a line leaves a part of it. Readers therefore take the last line of each id, and
skip a line that is not JSON.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path

from oarlock.data import durable


class ArchiveFile:
    """The implementation of `oarlock.controllers.retention.Archive` over a file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def __call__(self, lines: Sequence[bytes]) -> None:
        """Append the lines. Unavailable if the disk fails."""
        await asyncio.to_thread(self._append, lines)

    def _append(self, lines: Sequence[bytes]) -> None:
        try:
            handle = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            with os.fdopen(handle, "rb+", buffering=0) as file:
                data = memoryview(_break_after(file.fileno()) + b"".join(line + b"\n" for line in lines))
                while data:
                    data = data[file.write(data) :]
                os.fsync(handle)
            durable.sync_folder(self._path.parent)
        except OSError as error:
            raise durable.unavailable(error, "the archive", self._path.parent) from error


def _break_after(handle: int) -> bytes:
    """Return the newline that ends an incomplete last line, so that the next job starts on a line of its own."""
    size = os.fstat(handle).st_size
    return b"\n" if size and os.pread(handle, 1, size - 1) != b"\n" else b""
