"""The description of a model's parts, its optimizer and the mode of training, which opens a parameter server."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from oarlock.train.servers.wire import frames, handshake, memory

MOST_PARTS = 1 << 20
MOST_BYTES = 1 << 40


@dataclass(frozen=True)
class Piece:
    """A part of a parameter on one server. `shape` is that of the parameter, or one dimension for a cut one.

    Rows of a piece `by_row` travel alone: those that have a gradient, and those that an update has changed.
    """

    name: str
    start: int
    shape: tuple[int, ...]
    dtype: str
    group: int
    by_row: bool = False

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        return self.size * memory.TYPES[self.dtype].itemsize


@dataclass(frozen=True)
class Mode:
    """How the updates of `workers` workers come together.

    With `sync` an update is the mean of all gradients but the `backup` slowest ones. Without it each gradient is an
    update of its own, and a worker is at most `staleness` steps ahead of the slowest (None: any number). Where they are
    `elastic`, workers come and go, so that their number says nothing. It is that of the round where they have `rounds`:
    the gradients of all its workers make an update.
    """

    workers: int
    sync: bool = True
    backup: int = 0
    staleness: int | None = None
    elastic: bool = False
    rounds: bool = False

    @property
    def lockstep(self) -> bool:
        """Whether all workers make the same steps together."""
        return self.sync and not self.backup

    def fits(self, place: handshake.Place) -> bool:
        """Return whether a worker that introduced itself so may train in this mode."""
        if self.elastic or self.rounds:
            return self.elastic is place.elastic and self.rounds is (place.round > 0)
        return not place.elastic and self.workers == place.workers

    def fields(self) -> dict[str, Any]:
        told = {"workers": self.workers, "sync": self.sync, "backup": self.backup, "staleness": self.staleness}
        return told | {name: True for name in ("elastic", "rounds") if getattr(self, name)}


@dataclass(frozen=True)
class Opening:
    """The description that every worker sends to a server, the same each."""

    pieces: tuple[Piece, ...]
    optimizer: str
    mode: Mode

    @property
    def bytes(self) -> int:
        return sum(piece.bytes for piece in self.pieces)

    def fields(self) -> dict[str, Any]:
        pieces = [
            [each.name, each.start, list(each.shape), each.dtype, each.group, each.by_row] for each in self.pieces
        ]
        return {"pieces": pieces, "optimizer": self.optimizer, "mode": self.mode.fields()}


def read(fields: Mapping[str, Any]) -> Opening:
    """Return the opening of these fields. Raises Refused where one is missing or has the wrong type."""
    try:
        pieces = tuple(
            Piece(_text(name), _count(start), tuple(map(_count, shape)), _text(dtype), _count(group), bool(by_row))
            for name, start, shape, dtype, group, by_row in fields["pieces"]
        )
        told = fields["mode"]
        staleness = told["staleness"]
        mode = Mode(
            _count(told["workers"]),
            bool(told["sync"]),
            _count(told["backup"]),
            None if staleness is None else _count(staleness),
            told.get("elastic") is True,
            told.get("rounds") is True,
        )
        opening = Opening(pieces, _text(fields["optimizer"]), mode)
    except (KeyError, TypeError, ValueError) as cause:
        raise frames.Refused(f"the opening is not valid: {cause!r}") from None
    if any(piece.dtype not in memory.TYPES for piece in pieces):
        raise frames.Refused("a parameter has a type that does not travel")
    if len(pieces) > MOST_PARTS or any(len(piece.shape) > 16 for piece in pieces) or opening.bytes > MOST_BYTES:
        raise frames.Refused("the model is larger than a server takes")
    if any(piece.by_row and len(piece.shape) != 2 for piece in pieces):
        raise frames.Refused("a parameter that travels by row is not a matrix")
    if not 1 <= mode.workers <= 1 << 20 or (mode.backup >= mode.workers and not mode.elastic):
        raise frames.Refused("the number of workers is not valid")
    if mode.elastic and mode.lockstep:
        raise frames.Refused("workers that wait for each other cannot come and go without rounds")
    if mode.rounds and (mode.elastic or not mode.lockstep):
        raise frames.Refused("rounds are those of workers that step together")
    return opening


def _count(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is not a number of things")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is not a text")
    return value
