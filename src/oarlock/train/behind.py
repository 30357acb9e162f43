"""The steps that others make without this rank, and its share of the data in the steps to come.

Out of lockstep a rank may be behind: it passes over the steps of the others, and over the data of these steps. Where
workers of parameter servers come and go, their ranks and their number change during the training, for all of them
before the same step.
"""

from __future__ import annotations

from collections.abc import Sequence

from oarlock.train.batches import Batches
from oarlock.train.strategies.strategy import Strategy
from oarlock.train.worlds import World


def catch_up(strategies: Sequence[Strategy], world: World, batches: Batches | None, step: int, parts: int) -> int:
    """Return the step that training has reached, where this rank has done `step`. A step takes `parts` batches.

    The position in the data is that after this step, and `world` is that of the next one.
    """
    reached = max((strategy.reached(step) for strategy in strategies), default=step)
    _take_share(strategies, world, batches, step)
    while step < reached:
        if batches is not None:
            batches.skip(parts)
        step += 1
        _take_share(strategies, world, batches, step)
    return step


def _take_share(strategies: Sequence[Strategy], world: World, batches: Batches | None, step: int) -> None:
    """Take this rank's share of the step after `step`."""
    for strategy in strategies:
        share = strategy.share(step + 1)
        if share is not None and share != (world.rank, world.world_size):
            world.rank, world.world_size = share
            if batches is not None:
                batches.resize(batches.batch_size)
