"""A model that counts the examples of the steps that all ranks made: a lost, doubled or half applied step shows."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from tests.train.rounds import gang
from torch import nn

from oarlock import train

EXAMPLES = 60
MOST_RANKS = 4


class Counts(nn.Module):
    """A model whose weight number I counts how often example I was in a step that all ranks have made."""

    def __init__(self, ballast: int = 0) -> None:
        super().__init__()
        self.ballast = nn.Parameter(torch.zeros(ballast, dtype=torch.float64))
        self.counts = nn.Parameter(torch.zeros(EXAMPLES, dtype=torch.float64))
        self.steps = nn.Parameter(torch.zeros(1, dtype=torch.float64))

    def forward(self, examples: torch.Tensor) -> torch.Tensor:
        return self.counts[examples].sum() + self.steps.sum() + 0.0 * self.ballast.sum()


class OncePerEpoch(train.Hook):
    """After each epoch: every example was in it once, but those that were too few for a step at its end."""

    def __init__(self, model: Counts, batches: train.Batches, folder: Path) -> None:
        self.model, self.batches, self.folder = model, batches, folder
        self.before: tuple[int, torch.Tensor] | None = None
        self.checked = 0

    def after_step(self, session: train.Session) -> None:
        tell(self.folder, session.step)
        if (self.folder.parent / "stop").exists():
            session.request_stop()
        if not self.batches.last:
            return
        counts = self.model.counts.detach().round(decimals=6)
        if self.before is not None and self.before[0] == self.batches.epoch - 1:
            within = counts - self.before[1]
            assert set(within.tolist()) <= {0.0, 1.0}, within
            assert within.sum() > EXAMPLES - MOST_RANKS, within
            self.checked += 1
        self.before = self.batches.epoch, counts.clone()


def count(folder: Path, pause_s: float, ballast: int = 0, strategy: train.Strategy | None = None) -> None:
    """Train `Counts` until a file says stop, and write down how it ended."""
    world = train.init()
    torch.manual_seed(world.rank)
    model = Counts(ballast)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0 + step % 7)
    if strategy is not None:
        train.data_parallel(model, optimizer, strategy=strategy)
    else:
        train.data_parallel(model, optimizer, bucket_bytes=64)  # two buckets: one may be over when the other breaks
    batches = train.Batches((torch.arange(EXAMPLES),), 1, seed=3)
    once = OncePerEpoch(model, batches, folder)
    begun = joined = 0
    told = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "batches": batches}
    with train.Session(**told, checkpoints=folder.parent / "checkpoints", every_steps=25, hooks=[once]) as session:
        joined = session.step
        for (examples,) in session.steps(batches, epochs=10_000):
            begun += 1
            assert scheduler.last_epoch == session.step - 1
            loss = -world.world_size * model(examples) / optimizer.param_groups[0]["lr"]
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            time.sleep(pause_s)
    kept = {"model": model.state_dict(), "rate": scheduler.state_dict(), "checked": once.checked}
    torch.save({**kept, "repeated": begun - (session.step - joined)}, folder / "final.pt")


def end(made: gang.Gang, names: Sequence[str], *, losses: int) -> None:
    """Stop the training, and compare how the processes ended."""
    (made.folder / "stop").touch()
    made.end()
    finals = {name: torch.load(made.folder / name / "final.pt") for name in names}
    first = finals[names[0]]
    for name, final in finals.items():
        for key, value in first["model"].items():
            assert torch.equal(value, final["model"][key]), f"{name}: {key}\n{made.output()}"
        assert final["rate"] == first["rate"], name
        assert final["repeated"] <= losses, f"{name} repeated {final['repeated']} steps after {losses} losses"


def change(made: gang.Gang, names: Sequence[str], tell: Sequence[str] | None = None) -> None:
    """Make a round with these members, told to them or to `tell`. Wait until they are in it and a few steps on."""
    made.round(names, tell)
    made.wait(lambda: all(made.rounds(name)[-1:] == [made.number] for name in names))
    time.sleep(random.uniform(0, 0.05))


def lose(made: gang.Gang, names: list[str], victim: str) -> None:
    """Kill a member, and let the others go on."""
    made.kill(victim)
    names.remove(victim)
    change(made, names)


def take_in(made: gang.Gang, names: list[str], fresh: str, place: int) -> None:
    """Start a process, and let it take part at this place of the members."""
    made.begin(fresh)
    made.wait(lambda: made.ready(fresh))
    names.insert(place, fresh)
    change(made, names)


def tell(folder: Path, step: int) -> None:
    """Tell `reached` of this step. It never reads half of it."""
    (folder / "step.new").write_text(str(step))
    (folder / "step.new").replace(folder / "step")


def reached(made: gang.Gang, name: str) -> int:
    """Return the last step that the member has made."""
    with contextlib.suppress(FileNotFoundError):  # none yet
        return int((made.folder / name / "step").read_text())
    return 0


def stands_still(made: gang.Gang, names: Sequence[str]) -> None:
    """Wait until these members make no more steps."""
    before, since = None, time.monotonic()
    while time.monotonic() - since < 0.5:
        steps = [reached(made, name) for name in names]
        if steps != before:
            before, since = steps, time.monotonic()
        time.sleep(0.02)


def kill_and_replace(made: gang.Gang, kills: int) -> None:
    """Train with three members, of which one after the other is killed, and replaced. A death costs a step at most."""
    names = ["a", "b", "c"]
    made.start(names)
    made.wait(lambda: all(map(made.ready, names)))
    for number in range(kills):
        lose(made, names, names[number % 3] if number else "a")  # the chief too
        take_in(made, names, f"n{number}", number % 3)
    end(made, names, losses=kills)


def change_every_20_steps(made: gang.Gang, changes: int) -> None:
    """Train with three members, of which one leaves or a new one comes after every 20 steps. No step is repeated."""
    names = ["a", "b", "c"]
    made.start(names)
    made.wait(lambda: all(map(made.ready, names)))
    for number in range(changes):
        made.wait(lambda number=number: any(reached(made, name) >= 20 * number for name in names))
        if number % 2:
            take_in(made, names, f"n{number}", number % 3)
        else:
            left = names.pop(number % 3)
            change(made, names, tell=[*names, left])
    end(made, names, losses=0)
