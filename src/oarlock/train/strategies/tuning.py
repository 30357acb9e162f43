"""The size of buckets by measurement, with `bucket_bytes="tuned"`.

The best size depends on the link, the model and the ranks. So the first steps use several sizes in turn, the present
default first. Each step exchanges the gradients of the training, so no step is wasted: only the order of additions
changes with the size, and that for three ranks or more alone. Each size has one step that does not count, because it
writes to new memory, and then MEASURED steps. The ranks tell each other the medians once, so all of them choose the
same size: the default, unless another one makes a step shorter by more than MARGIN.

A checkpoint ends the search. The size is then chosen among those that are measured by now, and is part of the
checkpoint. So the run that goes on and a run that is resumed from there use the same size, and get the same bits.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

TUNED = "tuned"
SIZES = (1 << 20, 4 << 20, 16 << 20, 64 << 20)
WARM_UP = 3
"""The steps before the first size: torch and the processor's caches are not warm yet."""
MEASURED = 5
MARGIN = 0.05


def choose(sizes: Sequence[int], ranks: Sequence[Sequence[float]]) -> tuple[int, dict[int, float]]:
    """Return the best of `sizes` (the default first), and the seconds of a step by size.

    `ranks` are the seconds that each rank has measured, of the same first sizes. A step is as long as on the slowest.
    """
    steps = {size: max(each) for size, each in zip(sizes, zip(*ranks))}
    default = sizes[0]
    best = min(steps, key=lambda size: steps[size], default=default)
    return (best if steps and steps[best] * (1 + MARGIN) < steps[default] else default), steps


class Tuning:
    """The search of one rank: which size is used now, and the steps that were measured.

    `default` is the size to begin with, and `most` the bytes of all gradients: no other size is larger than these.
    """

    def __init__(self, default: int, most: int) -> None:
        self.sizes = (default, *(size for size in SIZES if size != default and size <= most))
        self.restart()

    def restart(self) -> None:
        """Begin anew, with the default."""
        self.medians: list[float] = []
        self._steps: list[float] = []
        self._cold = WARM_UP
        self._ended: float | None = None

    @property
    def present(self) -> int:
        """The size of the present steps."""
        return self.sizes[min(len(self.medians), len(self.sizes) - 1)]

    @property
    def over(self) -> bool:
        """Whether all sizes are measured."""
        return len(self.medians) >= len(self.sizes)

    def step_ended(self, now: float) -> bool:
        """Take note that an exchange has ended at `now`. Return whether the next step has another size, or none is
        left. All ranks call it for the same steps.
        """
        before, self._ended = self._ended, now
        if self._cold:
            self._cold -= 1
            return False
        if before is not None:
            self._steps.append(now - before)
        if len(self._steps) < MEASURED:
            return False
        self.medians.append(statistics.median(self._steps))
        self._steps.clear()
        self._cold = 1
        return True
