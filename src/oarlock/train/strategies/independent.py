"""The strategy `none`: every rank begins with the chief's weights and trains by itself. A baseline for comparisons."""

from __future__ import annotations

import sys

from torch import nn, optim

from oarlock.train import worlds
from oarlock.train.strategies import replicas
from oarlock.train.strategies.strategy import Strategy


class Independent(Strategy):
    """No exchange at all."""

    kind = "none"

    def attach(self, model: nn.Module, optimizer: optim.Optimizer | None = None) -> nn.Module:
        replicas.broadcast(model)
        world = worlds.init()
        if world.world_size > 1 and world.is_chief:
            sys.stderr.write(
                "oarlock.train: strategy none: gradients are not exchanged, each process trains a model of its own\n"
            )
        return model
