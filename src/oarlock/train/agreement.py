"""How the ranks stop and save at the same step.

A signal reaches ranks at different moments, and clocks differ; but a collective that one rank enters alone never ends.
So at step boundaries the ranks exchange small numbers: the strongest wish to stop, whether the chief's clock says that
it is time to save, and what the chief has heard of the batch size and of the gradients' noise. What comes out is the
same everywhere.

An exchange takes 0.3 ms on an idle host and some milliseconds on a busy one, mostly waiting. So short steps share one:
the chief says after how many steps the next begins, at most 8, so that about one begins every 50 ms; and its outcome is
looked at when the next one begins, by when it has long arrived. Steps of 25 ms and more wait for an exchange of their
own, so that a request to stop is heeded after the very step it came in.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from oarlock.train.world import World

EVERY_S = 0.05
MOST_STEPS = 8

MOST_NOISE_MILLI = 1 << 60

GO_ON, FINISH, STOP = 0, 1, 2  # FINISH: the script has had enough. STOP: a signal asked for it. The stronger wins.


@dataclass(frozen=True)
class Decision:
    """The same on every rank."""

    stop: int
    save: bool
    batch: int = 0  # the chief's word (`allotment.Batch.code`), 0: none
    noise: float | None = None  # the chief's, in examples


class Agreement:
    """Asked once at every step boundary, by every rank. `clock` gives seconds that never go back."""

    def __init__(self, world: World, clock: Callable[[], float] = time.monotonic) -> None:
        self._world = world
        self._clock = clock
        self._stride = self._steps_left = 1
        self._began_at = clock()
        self._under_way: Callable[[], list[int]] | None = None

    def settle(self, *, stop: int, save: bool, batch: int = 0, noise: float | None = None) -> Decision:
        """This rank's wish to stop and, on the chief, the rest, into what all do and know now."""
        if self._world.world_size == 1:
            return Decision(stop, save, batch, noise)
        self._steps_left -= 1
        if self._steps_left:
            return Decision(GO_ON, False)
        outcomes = [self._under_way()] if self._under_way else []
        save = save and not any(each[1] for each in outcomes)  # or one wish would be granted twice
        self._under_way = self._begin(stop, save, batch, noise)
        if self._stride == 1:
            outcomes.append(self._under_way())
            self._under_way = None
        if outcomes:
            self._stride = outcomes[-1][2]
        self._steps_left = self._stride
        if not outcomes:
            return Decision(GO_ON, False)
        *_, batch, noise_milli = outcomes[-1]
        return Decision(
            max(each[0] for each in outcomes),
            any(each[1] for each in outcomes),
            batch,
            noise_milli / 1000 if noise_milli else None,
        )

    def _begin(self, stop: int, save: bool, batch: int, noise: float | None) -> Callable[[], list[int]]:
        chief = self._world.is_chief
        if not chief:
            return self._world.start_largest((stop, 0, 1, 0, 0))
        noise_milli = min(round(noise * 1000), MOST_NOISE_MILLI) if noise is not None else 0
        return self._world.start_largest((stop, int(save), self._next_stride(), batch, noise_milli))

    def _next_stride(self) -> int:
        """As many steps as fit into EVERY_S at the present pace, at most twice as many as last time."""
        now = self._clock()
        step_s = (now - self._began_at) / self._stride
        self._began_at = now
        return max(1, min(MOST_STEPS, 2 * self._stride, int(EVERY_S / max(step_s, 1e-9))))
