"""A sketch of a gradient: few numbers with, without bias, the squared norm of the gradient.

Each element is added to one of BUCKETS numbers, with a random sign (the count sketch of Charikar, Chen and
Farach-Colton, ICALP 2002; as feature hashing by Weinberger et al., ICML 2009, arXiv 0902.2206). Sketches with the same
signs add up like their gradients. So ranks that exchange compressed gradients learn the norm of their mean from 16 KB.

A squared norm deviates by about sqrt(2 / BUCKETS), some 2 %, and by another amount with each draw of the signs, so that
a mean over draws is exact. A tensor is taken for a matrix with BUCKETS columns. The sign of the element in row r and
column c is that of r times that of r + c: two short lists of random signs in place of one per element.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

BUCKETS = 4096
_ROWS_AT_ONCE = 64  # of 16 KB: they stay in the cache


def sketch(tensors: Iterable[torch.Tensor], draw: int) -> torch.Tensor:
    """Return the sketch of all these tensors together. Sketches of the same `draw` and the same shapes may be added."""
    signs = torch.Generator().manual_seed(draw)
    flats = [(torch.view_as_real(one) if one.is_complex() else one).reshape(-1) for one in tensors]
    dtype = torch.float64 if any(flat.dtype == torch.float64 for flat in flats) else torch.float32
    total = torch.zeros(BUCKETS, dtype=dtype, device=flats[0].device if flats else "cpu")
    small = [flat.to(total) for flat in flats if len(flat) < BUCKETS]
    large = [flat for flat in flats if len(flat) >= BUCKETS]
    for flat in [*large, *([torch.cat(small)] if small else [])]:
        rows, rest = divmod(len(flat), BUCKETS)
        of_rows = _signs(rows + 1, signs, total)
        of_sums = _signs(rows + 1 + BUCKETS, signs, total).as_strided((rows + 1, BUCKETS), (1, 1))
        matrix = flat[: rows * BUCKETS].view(rows, BUCKETS)
        for begin in range(0, rows, _ROWS_AT_ONCE):
            here = slice(begin, min(rows, begin + _ROWS_AT_ONCE))
            total += of_rows[here] @ (matrix[here] * of_sums[here])
        if rest:
            total[:rest] += of_rows[rows] * of_sums[rows, :rest] * flat[rows * BUCKETS :]
    return total


def _signs(count: int, generator: torch.Generator, like: torch.Tensor) -> torch.Tensor:
    return torch.randint(2, (count,), generator=generator).mul_(2).sub_(1).to(like)
