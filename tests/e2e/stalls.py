"""The time by which a busy machine is late, for bounds of seconds that real processes must keep."""

from __future__ import annotations

import threading
import time

REST_S = 0.05


class Stalls:
    """A thread that asks for short rests, and adds up by how much they were longer. Processes were held up as long."""

    def __init__(self) -> None:
        self.late_s = 0.0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Stalls:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.is_set():
            began = time.monotonic()
            self._ended.wait(REST_S)
            self.late_s += max(0.0, time.monotonic() - began - REST_S)
