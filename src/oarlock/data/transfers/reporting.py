"""The progress and the errors of `python -m oarlock.data`: one JSON object per line on stderr.

`{"event": "progress", "detail": TEXT, "moved": {"files", "total_files", "bytes", "total_bytes"}}` at most twice a
second, and `{"event": "error", "code", "message", "hint"}` as the last line. The result is the last line on stdout.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from typing import Any

from oarlock.spec import errors
from oarlock.spec.input import quantities

EVERY_S = 0.5
MAX_MESSAGE = 4000


def say(**fields: Any) -> None:
    sys.stderr.write(json.dumps(fields) + "\n")
    sys.stderr.flush()


def detail(text: str) -> None:
    say(event="progress", detail=text)


def failed(error: errors.OarlockError) -> None:
    say(event="error", code=error.code, message=error.message[-MAX_MESSAGE:], hint=error.hint)


def result(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


class Meter:
    """The counter of moved files and bytes, for any thread. It reports the progress."""

    def __init__(self, verb: str, total_files: int, total_bytes: int | None) -> None:
        self._verb = verb
        self._total_files, self._total_bytes = total_files, total_bytes
        self._files = self._bytes = 0
        self._lock = threading.Lock()
        self._said_at = float("-inf")

    def moved(self, size: int) -> None:
        with self._lock:
            self._bytes += size
            now = time.monotonic()
            if now - self._said_at >= EVERY_S:
                self._said_at = now
                self._say()

    def finished_file(self) -> None:
        with self._lock:
            self._files += 1

    def done(self) -> None:
        with self._lock:
            self._say()

    def _say(self) -> None:
        of_bytes = f" of {quantities.size_text(self._total_bytes)}" if self._total_bytes is not None else ""
        say(
            event="progress",
            detail=f"{self._verb} {quantities.size_text(self._bytes)}{of_bytes}, "
            f"{self._files:,} of {self._total_files:,} files",
            moved={
                "files": self._files,
                "total_files": self._total_files,
                "bytes": self._bytes,
                "total_bytes": self._total_bytes,
            },
        )
