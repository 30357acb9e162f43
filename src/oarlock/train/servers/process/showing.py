"""Weights in memory of the server that the workers of its host read: an answer needs no copy of them.

In lockstep no update comes before each worker has pushed its next gradient, so each has read the weights before they
change. All other changes (a worker has left or died, which may live on unseen; other weights are loaded) end the
sharing: the server goes on with a copy, and the shared memory keeps the weights that were answered.

The file is offered until every worker has answered, and grows only after that (segments.py). A worker that comes later
receives copies.
"""

from __future__ import annotations

import mmap
from pathlib import Path

import torch

from oarlock.train.servers.model import openings
from oarlock.train.servers.wire import bodies
from oarlock.train.sharing import segments


def of(opening: openings.Opening, device: torch.device, workers: int) -> Showing | None:
    """Return the showing of a shard's weights to so many workers, where they may lie in shared memory."""
    size = sum(piece.bytes for piece in opening.pieces)
    fits = size >= bodies.LEAST_BYTES and device.type == "cpu" and not any(piece.by_row for piece in opening.pieces)
    return Showing(size, workers) if opening.mode.lockstep and fits else None


class Showing:
    """The offer of `size` bytes to so many workers. The caller guards it against other threads."""

    def __init__(self, size: int, workers: int) -> None:
        self._size, self._workers = size, workers
        self._answers: dict[int, bool] = {}  # whether a worker sees the memory
        self._offer: segments.Offer | None = None
        self._open = True  # whether it may still be offered

    def offered(self, rank: int, beside: int) -> dict[str, str] | None:
        """Return the offer to a worker that has memory of `beside` bytes for its bodies. It answers with `answer`."""
        self._answers.pop(rank, None)
        if self._open and self._offer is None:
            try:
                self._offer = segments.Offer(self._size, beside=beside)
            except OSError:
                self.close()
        return None if self._offer is None else {"name": self._offer.name, "secret": self._offer.secret}

    def answer(self, rank: int, *, sees: bool, keep_as: Path | None = None) -> mmap.mmap | None:
        """Take note of a worker's answer. Return the memory after the last one, where there is any to share. Its file
        gets the name `keep_as`, or none.
        """
        self._answers[rank] = sees
        if not self._open or len(self._answers) < self._workers:
            return None
        try:
            if self._offer is None or not any(self._answers.values()):
                return None
            self._offer.reserve(keep_as)
            return self._offer.map()
        except OSError:
            return None
        finally:
            self.close()

    def is_seen(self, rank: int) -> bool:
        """Return whether this worker sees the memory."""
        return self._answers.get(rank, False)

    def close(self) -> None:
        """Offer it no more."""
        self._open = False
        if self._offer is not None:
            self._offer.close()
        self._offer = None
