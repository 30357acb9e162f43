"""Values that travel in a shorter type. What that type cannot say is sent in later steps."""

from __future__ import annotations

import torch


def parted(values: torch.Tensor, dtype: torch.dtype, summands: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the values as they are sent in `dtype`, and the rest: rounding errors, and what is beyond the range.

    A sum of so many `summands` in `dtype` is finite, too. A value that is not finite is sent as it is, and leaves no
    rest.
    """
    most = torch.finfo(dtype).max
    if summands > 1:
        most /= 2 * summands  # half of the range for the rounding of the sums
    sent = torch.where(values.isfinite(), values.clamp(-most, most), values).to(dtype)
    rest = (values - sent).masked_fill_(~sent.isfinite(), 0.0)
    return sent, rest
