"""The small training scripts that the processes of a crew run, written as a user would write them."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from oarlock import train
from oarlock.train.strategies import dataparallel


class Interrupt(train.Hook):
    """Sends this process a signal after a step: an interruption at a known moment."""

    def __init__(self, step: int, number: int, *, rank: int) -> None:
        self.step, self.number, self.rank = step, number, rank

    def after_step(self, session: train.Session) -> None:
        if session.step == self.step and session.world.rank == self.rank:
            os.kill(os.getpid(), self.number)


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 3))


class Noting(nn.BatchNorm1d):
    """Batch normalisation that keeps its running mean after each forward pass."""

    def __init__(self, hidden: int) -> None:
        super().__init__(hidden)
        self.means: list[torch.Tensor] = []

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        out = super().forward(batch)
        assert self.running_mean is not None
        self.means.append(self.running_mean.clone())
        return out


def examples(count: int = 100) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    return torch.randn(count, 6, generator=generator), torch.randint(0, 3, (count,), generator=generator)


def learn(folder: Path, *, total_steps: int = 40, interrupt: tuple[int, int] | None = None, **options: Any) -> None:
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


class Diary(train.Hook):
    """Writes down what it was told, rank by rank."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / f"diary-{train.rank()}.txt"

    def note(self, text: str) -> None:
        with self.path.open("a") as file:
            file.write(text + "\n")

    def before_step(self, session: train.Session) -> None:
        self.note(f"before {session.step}")

    def after_step(self, session: train.Session) -> None:
        self.note(f"after {session.step}")

    def after_checkpoint(self, session: train.Session, path: Path) -> None:
        self.note(f"checkpoint {path.name}")

    def on_end(self, session: train.Session, error: BaseException | None) -> None:
        self.note(f"end {type(error).__name__} {session.should_stop}")


def count(
    folder: Path, *, total_steps: int | None = 4, stop: int | None = None, fail: int | None = None, **options: Any
) -> None:
    """Steps that compute nothing: one rank may ask to stop after `stop`, one may fail in `fail`."""
    world = train.init()
    model = nn.Linear(1, 1)
    options = {"checkpoints": folder / "checkpoints", **options}
    with train.Session(model=model, total_steps=total_steps, hooks=[Diary(folder)], **options) as session:
        for step in session.steps():
            session.log(loss=1 / step, rank=world.rank)
            if stop == step and world.rank == world.world_size - 1:
                session.request_stop()
            if fail == step and world.rank == world.world_size - 1:
                raise ZeroDivisionError("as asked")


class Averaging(train.Strategy):
    """The smallest strategy other than allreduce: averages the weights after every step."""

    kind = "averaging"

    def __init__(self) -> None:
        self.seen: list[int] = []

    def after_step(self, step: int) -> None:
        self.seen.append(step)

    def state_dict(self) -> dict[str, Any]:
        return {"seen": self.seen}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.seen = state["seen"]


def remember(folder: Path, total_steps: int, expected: dict[str, Any], **given: Any) -> None:
    """A strategy, and a state that is every rank's own: what both hold when the session opens is `expected`."""
    world = train.init()
    strategy, mine = Averaging(), Averaging()
    options: dict[str, Any] = {"checkpoints": folder / "checkpoints", "strategy": strategy, "per_rank": {"mine": mine}}
    options |= given
    with train.Session(model=nn.Linear(1, 1), total_steps=total_steps, **options) as session:
        assert strategy.seen == expected["strategy"], strategy.seen
        assert mine.seen == expected["mine"][world.rank], mine.seen
        for _ in session.steps():
            mine.seen = [world.rank]


def adapt(folder: Path, *, change: dict[int, str], total_steps: int | None = None, epochs: int | None = None) -> None:
    """A script that leaves its batch size to the scheduler. After step S the chief's agent writes `change[S]`."""
    world = train.init()
    torch.manual_seed(3)
    model = train.data_parallel(nn.Linear(6, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    images, labels = examples(96)
    batches = train.Batches((images, labels, torch.arange(96)), 8, seed=1)
    seen: list[tuple[int, int, list[int]]] = []
    options: dict[str, Any] = {"total_steps": total_steps, "adapt": True, "checkpoints": folder / "checkpoints"}
    with train.Session(model=model, optimizer=optimizer, batches=batches, **options) as session:
        for x, y, which in session.steps(batches, epochs=epochs):
            session.backward(nn.functional.cross_entropy(model(x), y))
            seen.append((session.step, batches.epoch, which.tolist()))
            if session.accumulating:
                continue
            optimizer.step()
            optimizer.zero_grad()
            if world.is_chief and session.step in change:
                report = Path(os.environ["OARLOCK_REPORT"])
                (report / "batch.json~").write_text(change[session.step])
                (report / "batch.json~").rename(report / "batch.json")
    strategy = dataparallel.strategy_of(model)
    exchanges = strategy.figures.exchanges if strategy is not None and strategy.figures is not None else 0
    kept = {"model": model.state_dict(), "seen": seen, "batch": (session.batch.local, session.batch.accumulate)}
    kept["exchanges"] = exchanges
    torch.save({**kept, "gain": session.gain, "total": session.total_steps}, folder / f"adapted-{world.rank}.pt")


def drag(folder: Path, total_steps: int, slow_rank: int) -> None:
    """One rank dawdles before each backward pass: the other waits for its gradients."""
    world = train.init()
    model = train.data_parallel(nn.Linear(6, 3))
    batches = train.Batches(examples(96), 8, seed=1)
    with train.Session(model=model, batches=batches, total_steps=total_steps) as session:
        for x, y in session.steps(batches):
            if world.rank == slow_rank:
                time.sleep(0.05)
            nn.functional.cross_entropy(model(x), y).backward()
