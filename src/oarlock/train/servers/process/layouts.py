"""The places of a server's pieces in flat memory.

Pieces of one type lie side by side in one flat tensor; a body on the wire has the same order. A piece that travels by
row (of an embedding) may be left out: only some of its rows travel, after the others' order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Any

import torch

from oarlock.train.servers.model import openings, rows
from oarlock.train.servers.process import pushes
from oarlock.train.servers.wire import frames, memory


class Layout:
    """The places of an opening's pieces. `by_row` are the shapes of those that travel by row, by their numbers."""

    def __init__(self, opening: openings.Opening, device: torch.device) -> None:
        self._opened, self._device = opening.pieces, device
        self._runs = [list(run) for _, run in groupby(opening.pieces, key=lambda piece: piece.dtype)]
        self._elements = sum(piece.size for piece in opening.pieces)
        self.by_row = {index: each.shape for index, each in enumerate(opening.pieces) if each.by_row}

    def buffers(self, device: torch.device | str = "cpu", *, by_row: bool = True) -> pushes.Flats:
        """Return memory for all pieces, or for those that do not travel by row: a worker's gradients, or weights. A
        table may be too large to be held several times. Memory of the CPU that a GPU copies from and to is pinned.
        """
        pinned = self._device.type == "cuda" and torch.device(device).type == "cpu"
        return [
            torch.zeros(
                sum(piece.size for piece in run if by_row or not piece.by_row),
                dtype=memory.TYPES[run[0].dtype],
                device=device,
                pin_memory=pinned,
            )
            for run in self._runs
        ]

    def views(
        self, flats: pushes.Flats, absent: frozenset[int] = frozenset(), by_row: Mapping[int, rows.Rows] | None = None
    ) -> list[memoryview]:
        """Return the memory of a body: all pieces but the absent ones, some of them by rows."""
        if not absent and not by_row:
            return [memory.view(flat) for flat in flats]
        found = []
        for index, each in enumerate(self.pieces(flats)):
            if by_row and index in by_row:
                found += by_row[index].views()
            elif index not in absent:
                found.append(memory.view(each))
        return found

    def expected(self, told: Any, absent: frozenset[int]) -> dict[int, rows.Rows]:
        """Return memory for the rows of a gradient. Raises Refused unless each piece that travels by row has some."""
        types = {each: (memory.TYPES[self._opened[each].dtype], shape) for each, shape in self.by_row.items()}
        found = rows.expected(told, types)
        if found.keys() != self.by_row.keys() - absent:
            raise frames.Refused("a gradient lacks the rows of a piece")
        return found

    def clear(self, flats: pushes.Flats, some: frozenset[int]) -> None:
        """Set the elements of these pieces to 0."""
        for index, each in enumerate(self.pieces(flats) if some else ()):
            if index in some and index not in self.by_row:
                each.zero_()

    def check(self, found: Mapping[int, rows.Rows]) -> None:
        """Raise Refused unless the received rows are there."""
        for index, each in found.items():
            rows.check(each, self.by_row[index][0])

    def pieces(self, flats: pushes.Flats) -> Iterator[torch.Tensor]:
        """Yield the view of each piece, an empty one for a piece that is left out."""
        whole = sum(flat.numel() for flat in flats) == self._elements
        for flat, run in zip(flats, self._runs):
            taken = 0
            for piece in run:
                if not whole and piece.by_row:
                    yield flat[:0]
                    continue
                yield flat[taken : taken + piece.size].view(piece.shape)
                taken += piece.size

    def dense(self, *flats: pushes.Flats) -> Iterator[tuple[torch.Tensor, ...]]:
        """Yield what belongs together of these flats: all, but the pieces that travel by row."""
        if not self.by_row:
            yield from zip(*flats)
            return
        for index, alike in enumerate(zip(*map(self.pieces, flats))):
            if index not in self.by_row:
                yield alike
