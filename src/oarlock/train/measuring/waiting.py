"""The seconds spent waiting for an exchange, on the CPU or on a GPU.

With gloo the process itself waits. With NCCL the process continues at once and the GPU's stream waits. Two marks on the
stream then give the time. They are read after the GPU has passed them, so that the measurement causes no waiting.
"""

from __future__ import annotations

import time
from typing import Any

import torch

MOST_PENDING = 256
"""The limit of marks that a GPU has not passed yet. Waits beyond it are not measured."""


class Waiting:
    """A context around each wait. `total_s` only grows; on a GPU it is some steps late."""

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
        """Add the waits that the GPU has passed meanwhile."""
        while self._pending and self._pending[0][1].query():
            began, ended = self._pending.pop(0)
            self.total_s += began.elapsed_time(ended) / 1000
