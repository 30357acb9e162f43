"""The selection of a tensor's largest elements, in one pass over its memory.

The pass works in chunks that fit into a core's cache. While a chunk is there, it is updated, and of each group of ROWS
elements the largest magnitude, the peak, is noted. A sample of the peaks gives a threshold; only groups that reach it
are looked at again. The sample aims at more groups than elements are wanted, and of the elements found the largest are
taken exactly (the hierarchical selection of Deep Gradient Compression, arXiv 1712.01887).

NaN counts as larger than everything: it must reach all ranks, as it would without compression.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

ROWS = 16
COLUMNS = 64  # a block of ROWS x COLUMNS elements is one page of memory
BLOCK = ROWS * COLUMNS
CHUNK = 256 * BLOCK
EXACT_BELOW = 2 * 4096
SAMPLED_PEAKS = 1 << 13
SAMPLED_ELEMENTS = 0.005
MOST_FOR_PEAKS = 1 / 64  # where more elements are wanted, many share a group: peaks say little of their number
AIM = 1.1  # the threshold aims at so many times the wanted number
ENOUGH = 0.8
LOWER = 0.8
MOST_LOWERINGS = 10
_ALL_BELOW = 0x0101010101010101  # eight times true


class Peaks:
    """The largest magnitude of each group of the flat `tensor`: element r * COLUMNS + c of a block belongs to the
    block's group c. The rest behind the last whole block has no groups.

    `pieces` are the sizes of the chunks and of the rest. Views are made once: making them anew costs as much as the
    arithmetic on a chunk.
    """

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor
        self._end = len(tensor) // BLOCK * BLOCK
        chunk = CHUNK if tensor.device.type == "cpu" else max(BLOCK, self._end)
        whole = [min(chunk, self._end - begin) for begin in range(0, self._end, chunk)]
        self.pieces = [*whole, len(tensor) - self._end]
        self.values = tensor.new_empty(self._end // ROWS)
        magnitudes = tensor.new_empty(max(whole, default=0))
        self._chunks = [
            (piece, magnitudes[: len(piece)], groups.view(-1, COLUMNS))
            for piece, groups in zip(tensor.split(self.pieces), self.values.split([size // ROWS for size in whole]))
        ]
        self._by_row = [scratch.view(-1, ROWS, COLUMNS) for _, scratch, _ in self._chunks]
        self._rows = torch.arange(ROWS, device=tensor.device) * COLUMNS
        self._eight = torch.arange(8, device=tensor.device)
        self._rest = torch.arange(self._end, len(tensor), device=tensor.device)

    def note(self, update: Callable[[int], None]) -> None:
        """Call `update` with the number of each piece of the tensor, and note the piece's groups after it."""
        for number, ((piece, magnitudes, groups), rows) in enumerate(zip(self._chunks, self._by_row)):
            update(number)
            torch.abs(piece, out=magnitudes)
            torch.amax(rows, 1, out=groups)
        update(len(self._chunks))

    def reaching(self, threshold: torch.Tensor) -> torch.Tensor:
        """Return the positions of the elements whose magnitude is not below `threshold`."""
        groups = self._groups(self.values < threshold)
        blocks = torch.div(groups, COLUMNS, rounding_mode="floor")
        within = groups + blocks * (BLOCK - COLUMNS) + self._rows
        positions = torch.cat([within.view(-1), self._rest])
        magnitudes = self._tensor.index_select(0, positions).abs_()  # twice as fast as tensor[positions]
        return positions.index_select(0, (~(magnitudes < threshold)).nonzero().view(-1))

    def _groups(self, below: torch.Tensor) -> torch.Tensor:
        """Return the numbers of the groups that are not below, as a column. They are few, so eight are read at once."""
        words = (below.view(torch.int64) != _ALL_BELOW).nonzero()
        places = (~below.view(-1, 8).index_select(0, words.view(-1)).view(-1)).nonzero().view(-1)
        return (words * 8 + self._eight).view(-1).index_select(0, places).view(-1, 1)


def largest(tensor: torch.Tensor, peaks: Peaks, count: int, start: int) -> torch.Tensor:
    """Return the ascending positions of about the `count` largest elements of the flat `tensor`, never of more.

    `start` chooses the sample. For small tensors the selection is exact.
    """
    if len(tensor) < EXACT_BELOW:
        return torch.topk(tensor.abs(), count, sorted=False).indices.sort().values
    if count <= MOST_FOR_PEAKS * len(tensor):
        sample, part = _sampled(peaks.values, SAMPLED_PEAKS, start, len(tensor)), 1 / len(peaks.values)
    else:
        wanted = max(1 << 12, int(SAMPLED_ELEMENTS * len(tensor)))
        sample, part = _sampled(tensor, wanted, start, len(tensor)).abs(), 1 / len(tensor)
    above = min(len(sample), max(1, math.ceil(AIM * count * len(sample) * part)))
    least = torch.finfo(tensor.dtype).tiny  # zeros need not travel
    threshold = torch.topk(sample, above, sorted=True).values[-1].clamp(min=least)
    found = peaks.reaching(threshold)
    for _ in range(MOST_LOWERINGS):
        if len(found) >= ENOUGH * count or threshold <= least:
            break
        threshold = (threshold * LOWER).clamp(min=least)
        found = peaks.reaching(threshold)
    if len(found) > count:
        found = found[torch.topk(tensor.index_select(0, found).abs_(), count, sorted=False).indices]
    return found.sort().values


def _sampled(values: torch.Tensor, wanted: int, start: int, size: int) -> torch.Tensor:
    """Return about `wanted` of these values."""
    stride = stride_of(len(values), wanted, size)
    return values[start % stride :: stride]


def stride_of(length: int, wanted: int, size: int) -> int:
    """Return the stride that leaves about `wanted` of `length` values. It is odd and has no divisor in common with the
    tensor's `size`, so that the sample does not keep to some of its columns.
    """
    stride = max(1, length // wanted)
    while math.gcd(stride, 2 * size) > 1:
        stride += 1
    return stride
