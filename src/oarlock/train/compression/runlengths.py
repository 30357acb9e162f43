"""Positions as run lengths: 16 bits for each position, however large the tensors are.

Each number is the count of positions that are passed over before the next one. SKIP passes over SKIP positions and
names none; a gap of SKIP or more begins with as many of them as it holds.
"""

from __future__ import annotations

import torch

SKIP = 0xFFFF


def encode(positions: torch.Tensor) -> torch.Tensor:
    """Return the run lengths (int16, to be read without sign) of these ascending positions (int64, all different)."""
    if not len(positions):
        return torch.empty(0, dtype=torch.int16, device=positions.device)
    gaps = torch.diff(positions, prepend=positions.new_tensor([-1])) - 1
    if int(gaps.max()) < SKIP:
        return gaps.to(torch.int16)
    skips = torch.div(gaps, SKIP, rounding_mode="floor")
    places = torch.arange(len(positions), device=positions.device) + torch.cumsum(skips, 0)
    lengths = torch.full((int(places[-1]) + 1,), -1, dtype=torch.int16, device=positions.device)  # -1 is SKIP
    return lengths.scatter_(0, places, (gaps - skips * SKIP).to(torch.int16))


def decode(lengths: torch.Tensor) -> torch.Tensor:
    """Return the positions (int64) of these run lengths."""
    unsigned = lengths.to(torch.int64) & SKIP
    names = unsigned != SKIP
    positions = torch.cumsum(unsigned + names, 0) - 1
    return positions if bool(names.all()) else positions[names]


def most(positions: int, total: int) -> int:
    """Return the largest number of run lengths that so many positions below `total` can need."""
    return positions + total // SKIP
