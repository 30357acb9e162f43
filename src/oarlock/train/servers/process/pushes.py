"""A gradient as it reaches a parameter server."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from oarlock.train.measuring import noise
from oarlock.train.servers.model import rows

Flats = list[torch.Tensor]
"""One flat tensor for each run of pieces of one type: of all pieces, or of all but those that travel by row."""


@dataclass
class Push:
    """A gradient that waits for its update. `base` is the version of the weights from which it was computed."""

    base: int
    gradients: Flats
    absent: frozenset[int]
    settings: Sequence[Mapping[str, Any]]
    number: int = 0  # counts the gradients of this worker; 0: not counted
    rows: Mapping[int, rows.Rows] = field(default_factory=dict)  # the gradients of pieces that travel by row
    all_rows: bool = False  # whether this worker may hold rows that no version here has had
    life: int = 0  # of the worker (`Shard.life`)
    hold: bool = False  # the update waits for `Shard.commit`, because other servers may lack gradients
    squared_norm: float | None = None  # where the norms of its update are measured


def squared_norm(flats: Flats, by_row: Iterable[rows.Rows]) -> float:
    """Return the squared norm of a gradient: of these flats, and of these rows."""
    return sum(float(noise.squared_norm(each)) for each in [*flats, *(some.values for some in by_row)])
