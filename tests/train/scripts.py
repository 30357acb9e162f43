"""What the processes of a crew run: small training scripts, written as a user would write them."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from oarlock import train


class Interrupt(train.Hook):
    """Sends this process a signal after a step: an interruption at a known moment."""

    def __init__(self, step: int, number: int, *, rank: int) -> None:
        self.step, self.number, self.rank = step, number, rank

    def after_step(self, session: train.Session) -> None:
        if session.step == self.step and session.world.rank == self.rank:
            os.kill(os.getpid(), self.number)


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 3))


def examples(count: int = 100) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    return torch.randn(count, 6, generator=generator), torch.randint(0, 3, (count,), generator=generator)


def learn(folder: Path, *, total_steps: int = 21, interrupt: tuple[int, int] | None = None, **options: Any) -> None:
    """Train with every kind of randomness a script has, and save what it ended with as folder/final.pt."""
    world = train.init()
    torch.manual_seed(11 + world.rank)  # ranks begin apart: the session has to bring them together
    random.seed(world.rank)
    np.random.seed(world.rank)
    model = train.data_parallel(net())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=0.1)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [7, 15])
    batches = train.Batches(examples(), 7, seed=3)
    hooks = [Interrupt(interrupt[0], interrupt[1], rank=world.world_size - 1)] if interrupt else []
    options = {
        "checkpoints": folder / "checkpoints",
        "every_steps": 5,
        "keep": 2,
        "total_steps": total_steps,
        "hooks": hooks,
        **options,
    }
    with train.Session(model=model, optimizer=optimizer, scheduler=scheduler, batches=batches, **options) as session:
        for x, y in session.steps(batches):
            noise = 0.1 * random.random() + 0.1 * float(np.random.rand())
            loss = nn.functional.cross_entropy(model(x + noise * torch.randn_like(x)), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            session.log(loss=loss, epoch=batches.epoch)
    if world.is_chief:
        kept = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": session.step}
        torch.save(kept, folder / "final.pt")


def learn_until(folder: Path, step: int, number: int) -> None:
    """`learn`, until the last rank gets a signal after `step`."""
    learn(folder, interrupt=(step, number))
