"""The selection of a tensor's largest elements, in one pass over its memory.

The pass works in chunks that fit into a core's cache. While a chunk is there, it is updated, and of each group of ROWS
elements the largest magnitude is noted. A sample gives a threshold; only groups that reach it are looked at again. The
sample aims at more elements than are wanted, and of those found the largest are taken exactly (the hierarchical
selection of Deep Gradient Compression, arXiv 1712.01887).

NaN counts as larger than everything: it must reach all ranks, as it would without compression.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

CHUNK = 1 << 16
ROWS = 16
COLUMNS = CHUNK // ROWS
SAMPLED = 0.005
LEAST_SAMPLE = 4096
AIM = 1.5  # the threshold aims at so many times the wanted number
ENOUGH = 0.8
LOWER = 0.8
MOST_LOWERINGS = 10


class Peaks:
    """The largest magnitude of each group of a tensor of `size` elements: element r * COLUMNS + c of a chunk belongs to
    the chunk's group c. The rest behind the last whole chunk has no groups.
    """

    def __init__(self, size: int, like: torch.Tensor) -> None:
        self._whole = size // CHUNK
        self._values = like.new_empty(self._whole * COLUMNS)
        self._magnitudes = like.new_empty(CHUNK if self._whole else 0)
        self._rows = torch.arange(ROWS, device=like.device) * COLUMNS

    def note(self, tensor: torch.Tensor, update: Callable[[int, int], None]) -> None:
        """Call `update` with the bounds of each chunk of the flat `tensor`, and note the chunk's groups after it."""
        for chunk in range(self._whole):
            begin = chunk * CHUNK
            update(begin, begin + CHUNK)
            torch.abs(tensor[begin : begin + CHUNK], out=self._magnitudes)
            groups = self._values[chunk * COLUMNS : (chunk + 1) * COLUMNS]
            torch.amax(self._magnitudes.view(ROWS, COLUMNS), 0, out=groups)
        if self._whole * CHUNK < len(tensor):
            update(self._whole * CHUNK, len(tensor))

    def reaching(self, tensor: torch.Tensor, threshold: torch.Tensor) -> torch.Tensor:
        """Return the positions of the elements of `tensor` whose magnitude is not below `threshold`."""
        groups = (~(self._values < threshold)).nonzero().view(-1, 1)
        within = torch.div(groups, COLUMNS, rounding_mode="floor") * CHUNK + groups % COLUMNS + self._rows
        rest = torch.arange(self._whole * CHUNK, len(tensor), device=tensor.device)
        positions = torch.cat([within.view(-1), rest])
        return positions[~(tensor[positions].abs() < threshold)]


def largest(tensor: torch.Tensor, peaks: Peaks, count: int, stride: int, start: int) -> torch.Tensor:
    """Return the ascending positions of about the `count` largest elements of the flat `tensor`, never of more.

    `stride` and `start` choose the sample. With a stride of 1, for small tensors, the selection is exact.
    """
    if stride == 1:
        return torch.topk(tensor.abs(), count, sorted=False).indices.sort().values
    sample = tensor[start % stride :: stride].abs()
    wanted = min(len(sample), max(1, math.ceil(AIM * count * len(sample) / len(tensor))))
    least = torch.finfo(tensor.dtype).tiny  # zeros need not travel
    threshold = torch.topk(sample, wanted, sorted=True).values[-1].clamp(min=least)
    found = peaks.reaching(tensor, threshold)
    for _ in range(MOST_LOWERINGS):
        if len(found) >= ENOUGH * count or threshold <= least:
            break
        threshold = (threshold * LOWER).clamp(min=least)
        found = peaks.reaching(tensor, threshold)
    if len(found) > count:
        found = found[torch.topk(tensor[found].abs(), count, sorted=False).indices]
    return found.sort().values


def stride_of(shape: torch.Size) -> int:
    """Return the stride of the sample for a tensor of this shape. It has no divisor in common with the tensor's sides,
    so that the sample does not keep to some columns.
    """
    size = math.prod(shape)
    stride = max(1, size // max(LEAST_SAMPLE, int(SAMPLED * size)))
    if stride == 1:
        return 1
    while math.gcd(stride, size) > 1:
        stride += 1
    return stride
