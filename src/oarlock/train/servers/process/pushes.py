"""A gradient as it reaches a parameter server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

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
