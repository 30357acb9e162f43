"""The wish of this process to stop: of its script, or of a person or the server, by SIGTERM.

The ranks agree on it at a step boundary (agreement.py). In an elastic job a process may wait for a round while SIGTERM
comes: that round may never come, because the whole gang ends.
"""

from __future__ import annotations

import signal
import threading
import time
from types import FrameType
from typing import Any

from oarlock.train import agreement, patience, worlds

PATIENCE_S = 5.0
"""The wait after SIGTERM for a new round, or for a server that is started anew. After it the members that are left may
still save and end together.
"""


class Stopped(SystemExit):
    """The session was asked to stop, has saved, and is closed. If not caught, the process ends with 128 + SIGTERM."""

    def __init__(self) -> None:
        super().__init__(128 + signal.SIGTERM)


class Wish:
    """The strongest wish until now, one of those of `agreement`."""

    def __init__(self) -> None:
        self.strongest = agreement.GO_ON
        self._asked_at: float | None = None  # by a signal
        self._before: Any = None

    def listen(self) -> None:
        """Take SIGTERM for a wish to stop, until `close`. Only the main thread can."""
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGTERM, self._on_signal)
            patience.keep_waiting = self.keep_waiting

    def close(self) -> None:
        if self._before is not None:
            signal.signal(signal.SIGTERM, self._before)
            self._before, patience.keep_waiting = None, patience.without_end

    def finish(self) -> None:
        """Wish to end the training, though not the process."""
        self.strongest = max(self.strongest, agreement.FINISH)

    def keep_waiting(self) -> None:
        """Raise Stopped if this process should not wait for other processes any more."""
        if self._asked_at is not None and (worlds.joining() or time.monotonic() - self._asked_at > PATIENCE_S):
            raise Stopped

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.strongest = agreement.STOP
        if self._asked_at is None:
            self._asked_at = time.monotonic()
