"""Model parallelism: a model that several ranks hold together, by whichever way of torch.

torch divides the model and makes the exchanges: FSDP2, tensor parallelism, pipelining, or several of them. The strategy
measures these exchanges, so that the scheduler learns of such a job what it learns of data parallelism: the time of a
step, the waiting in it, and the bytes. Messages of a script of its own go through `send` and `receive`.

The model and the optimizer are state of the session, as always. Tensors that the ranks have divided are saved in pieces
(checkpointing/pieces.py); a part of a model that one rank has alone is its `per_rank` state.
"""

from __future__ import annotations

import torch
from torch import distributed, nn
from torch.distributed import fsdp

from oarlock.train import errors, worlds
from oarlock.train.checkpointing import pieces
from oarlock.train.measuring import collectives
from oarlock.train.strategies.strategy import Figures, Strategy


class ModelParallel(Strategy):
    """The measurements of a model on several ranks: `Session(strategy=train.ModelParallel(model))`.

    `models` are this rank's modules with FSDP2, which is measured by module; the others are measured without them. The
    sums between replicas of FSDP2 (HSDP) are not counted, so that the waiting is unknown there. It is also unknown on
    GPUs, where FSDP2 exchanges in streams of its own.
    """

    kind = "model"

    def __init__(self, *models: nn.Module) -> None:
        self._world = worlds.init()
        self.figures: Figures = Figures(self._world)
        self.figures.measures_noise = False
        for module in (each for model in models for each in model.modules()):
            if isinstance(module, fsdp.FSDPModule):
                measured = collectives.measure(module, self.figures) and self._world.device.type == "cpu"
                self.figures.waits_known = self.figures.waits_known and measured and not _has_replicas(module)

    def send(self, tensor: torch.Tensor, rank: int) -> None:
        """Send the values of a tensor to a rank, which receives them."""
        tensor = tensor.detach().contiguous()
        self._check(rank)
        with self.figures.waiting:
            distributed.send(tensor, rank)
        self.figures.sent_bytes += tensor.nbytes

    def receive(self, tensor: torch.Tensor, rank: int) -> torch.Tensor:
        """Receive into a tensor of the shape and type that `rank` sends. Return it."""
        self._check(rank)
        with self.figures.waiting:
            distributed.recv(tensor, rank)
        return tensor

    def _check(self, rank: int) -> None:
        if rank == self._world.rank or not 0 <= rank < self._world.world_size:
            raise errors.WorldError(
                f"rank {self._world.rank} cannot exchange messages with rank {rank} of {self._world.world_size}: name "
                "another rank, and start the script with as many processes as it has parts"
            )

    def begin(self) -> None:
        collectives.open_meter(self.figures)

    def after_step(self, step: int) -> None:
        self.figures.exchanges += 1
        self.figures.waiting.settle()

    def finish(self, wish: int) -> None:
        collectives.open_meter(None)


def _has_replicas(module: nn.Module) -> bool:
    """Return whether FSDP2 sums the gradients of the module over replicas: the first dimension of its mesh."""
    pieces.let_go(module)
    return any(pieces.is_divided(each) and each.placements[0].is_replicate() for each in module.parameters())
