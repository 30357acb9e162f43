"""The squared norms of gradients that parameter servers tell, as samples of the gradients' noise.

A server in lockstep, or with backup workers, knows the gradients of an update and their mean. In every eighth update it
adds to each answer the number of gradients, the mean of their squared norms, and the squared norm of their mean, all of
its own pieces. The sums over all servers are those of the whole gradient, however it is divided.

With backup workers a server may make an update earlier than another one, so a worker keeps the newest norms of each
until all have told of the same update. A sample with different numbers of gradients is dropped.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from oarlock.train.strategies.strategy import Figures

Told = tuple[int, int, float, float]
"""The version after the update, the number of gradients, and the two squared norms."""


class Norms:
    """The norms that the servers of one worker have told, for its figures."""

    def __init__(self) -> None:
        self._version = 0

    def take(self, told: Sequence[Told | None], figures: Figures) -> None:
        """Add a sample where all servers have told of the same update, and it is a new one."""
        known = [each for each in told if each is not None]
        versions = {each[0] for each in known}
        if len(known) < len(told) or len(versions) != 1 or versions == {self._version}:
            return
        (self._version,) = versions
        counts = {each[1] for each in known}
        if len(counts) == 1 and figures.share > 0:
            local, mean = (
                torch.tensor(sum(each[at] for each in known), dtype=torch.float64, device="cpu") for at in (2, 3)
            )
            figures.noise.take(local, mean, figures.share, ranks=counts.pop())
