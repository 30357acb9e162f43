"""How the ranks stop and save at the same step.

A signal reaches ranks at different moments, and clocks differ; but a collective that one rank enters alone never ends.
So at step boundaries the ranks exchange two small numbers: the strongest wish to stop, and whether the chief's clock
says that it is time to save. What comes out is the same everywhere.

An exchange between two processes of one host takes about 0.3 ms, so short steps share one: the chief says after how
many steps the next is due, so that one falls due every 50 ms or every step, whichever is longer. At most 16 steps share
one, since the next steps may be slow and the grace is short.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from oarlock.train.world import World

EVERY_S = 0.05
MOST_STEPS = 16

GO_ON, FINISH, STOP = 0, 1, 2  # FINISH: the script has had enough. STOP: a signal asked for it. The stronger wins.


@dataclass(frozen=True)
class Decision:
    """The same on every rank."""

    stop: int
    save: bool


class Agreement:
    """Asked once at every step boundary, by every rank."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._stride, self._steps_left = 1, 1
        self._exchanged_at = time.monotonic()

    def settle(self, *, stop: int, save: bool) -> Decision:
        """This rank's wish to stop and, on the chief, its wish to save, into what all do now."""
        if self._world.world_size == 1:
            return Decision(stop, save)
        self._steps_left -= 1
        if self._steps_left:
            return Decision(GO_ON, False)
        chief = self._world.is_chief
        agreed_stop, agreed_save, self._stride = self._world.largest(
            (stop, int(save and chief), self._next_stride() if chief else 1)
        )
        self._steps_left = self._stride
        return Decision(agreed_stop, bool(agreed_save))

    def _next_stride(self) -> int:
        """As many steps as fit into EVERY_S at the present pace, at most twice as many as last time."""
        now = time.monotonic()
        step_s = (now - self._exchanged_at) / self._stride
        self._exchanged_at = now
        return max(1, min(MOST_STEPS, 2 * self._stride, int(EVERY_S / max(step_s, 1e-9))))
