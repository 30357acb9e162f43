"""Seconds spent waiting for an exchange, on whatever device waits.

With gloo the process itself waits. With NCCL it goes on at once and the GPU's stream waits: there two marks on the
stream say how long, and are read once the GPU has passed them, so that nobody waits for the measuring.
"""

from __future__ import annotations

import time
from typing import Any

import torch

MOST_PENDING = 256
"""Marks that a GPU has not passed yet. What comes beyond that is not measured."""


class Waiting:
    """A context around each wait. `total_s` only grows; on a GPU it follows some steps behind."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._pending: list[tuple[Any, Any]] = []
        self._began: Any = None
        self.total_s = 0.0

    def __enter__(self) -> None:
        if not self._cuda:
            self._began = time.monotonic()
        elif len(self._pending) < MOST_PENDING:
            self._began = torch.cuda.Event(enable_timing=True)
            self._began.record()

    def __exit__(self, *_: object) -> None:
        if not self._cuda:
            self.total_s += time.monotonic() - self._began
        elif self._began is not None:
            ended = torch.cuda.Event(enable_timing=True)
            ended.record()
            self._pending.append((self._began, ended))
        self._began = None

    def settle(self) -> None:
        """Add what the GPU has passed since."""
        while self._pending and self._pending[0][1].query():
            began, ended = self._pending.pop(0)
            self.total_s += began.elapsed_time(ended) / 1000
