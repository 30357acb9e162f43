"""The gradient noise scale: the batch size above which a larger batch hardly helps.

Source: McCandlish et al. 2018, arXiv 1812.06162, appendix A.1.

With the squared norms of the gradient of one process's examples, |g|^2, and of the mean over N processes, |G|^2,

    squared = (N |G|^2 - |g|^2) / (N - 1)        without bias the squared norm of the true gradient
    variance = (|g|^2 - |G|^2) / (1 - 1/N)       without bias the variance of one process's gradient

and the scale is variance / squared, in units of one process's examples. The numbers of a single step vary greatly, so
both are smoothed, each by itself, before the division.

The cost is two sums over the gradients in every eighth exchange, and no further exchange: each rank measures its own
gradient, and only the chief's value counts. The numbers stay on the gradients' device until they are read. Parameter
servers have the gradients of all, so |g|^2 is the mean over the workers there.

Gradients that are not finite do not count. With a GradScaler the first ones often are not: its scale begins too large.
"""

from __future__ import annotations

import torch

EVERY = 8
SMOOTHING = 0.95
LEAST_SAMPLES = 12


class Noise:
    """The noise scale of `ranks` processes with equal shares. It needs at least two processes."""

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self._exchanges = 0
        self._means: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None = None  # samples, squared, variance

    def due(self) -> bool:
        """Return whether the exchange that begins now should be measured."""
        self._exchanges += 1
        return self._ranks > 1 and self._exchanges % EVERY == 1

    def take(self, local: torch.Tensor, mean: torch.Tensor, share: float, *, ranks: int | None = None) -> None:
        """Add the squared norms of one exchange. `share` is the number of examples in the local gradient, and `ranks`
        the number of gradients in the mean, where it is not that of all processes.
        """
        ranks = self._ranks if ranks is None else ranks
        squared = (ranks * mean - local) / (ranks - 1)
        variance = (local - mean) / (1 - 1 / ranks) * share
        samples, *before = (each.to(squared) for each in self._means or (torch.zeros_like(squared),) * 3)
        finite = torch.isfinite(squared) & torch.isfinite(variance)
        weight = SMOOTHING * (samples > 0).to(squared.dtype)
        smooth = (
            torch.where(finite, torch.lerp(now, one, weight), one) for now, one in zip((squared, variance), before)
        )
        self._means = (samples + finite, *smooth)

    def examples(self) -> float | None:
        """Return the scale in examples; None after too few steps, or if the noise hides the gradient."""
        if self._means is None:
            return None
        samples, squared, variance = torch.stack(self._means).tolist()
        known = samples >= LEAST_SAMPLES and squared > 0 and variance > 0 and variance / squared < float("inf")
        return float(variance / squared) if known else None


def squared_norm(flat: torch.Tensor) -> torch.Tensor:
    """Return the squared norm, computed in at least 32 bits: squares of half precision overflow."""
    flat = torch.view_as_real(flat) if flat.is_complex() else flat
    wide = flat.dtype if flat.dtype in (torch.float32, torch.float64) else torch.float32
    return torch.linalg.vector_norm(flat, dtype=wide).square()
