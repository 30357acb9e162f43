"""Ranks of gangs that restart as a whole are killed at any place of a step. No trace of that is left in the weights."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.train import crew, scripts
from tests.train.servers import farm
from tests.train.test_resume import assert_same
from torch import nn

from oarlock import train
from oarlock.train.strategies import automatic, choices, dataparallel

PLACES = ("before", "within", "exchanged", "stepped", "settled")
"""The places of a step: before its backward pass, in the middle of that, after it, after the optimizer's step, and at
the boundary of steps."""
FIRST, BETWEEN = automatic.WARM_UP + automatic.MEASURED + 5, 3
"""The first step with a death comes after the choice of `auto`."""


class Death(train.Hook):
    """The end of this process at one place of one step, where it is meant."""

    def __init__(self, step: int | None, place: str) -> None:
        self.step, self.place, self.now = step, place, 0

    def at(self, place: str) -> None:
        if (self.now, place) == (self.step, self.place):
            os.kill(os.getpid(), signal.SIGKILL)

    def after_step(self, session: train.Session) -> None:
        self.at("settled")


def learn(folder: Path, kind: str, steps: int, rank: int, dies_at: int | None, place: str) -> None:
    if kind == "ps":
        automatic.may_win = lambda *_: True
        automatic.predict = lambda ranks: {"none": 2.0, "ps": 1.0}  # type: ignore[assignment]
    world = train.init()
    torch.manual_seed(1 + world.rank)
    model = nn.Sequential(nn.Linear(6, 40), nn.Tanh(), nn.Linear(40, 3))
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    train.data_parallel(model, optimizer)
    batches = train.Batches(scripts.examples(), 7, seed=3)
    death = Death(dies_at if world.rank == rank else None, place)
    model[0].weight.register_hook(lambda _: death.at("within"))
    kept = {"model": model, "optimizer": optimizer, "batches": batches}
    options = {"checkpoints": folder / "checkpoints", "every_steps": 1, "total_steps": steps, "hooks": [death]}
    diary = (folder / f"diary-{world.rank}.txt").open("a", buffering=1)
    with train.Session(**kept, **options) as session:
        for x, y in session.steps(batches):
            death.now = session.step
            print(session.step, file=diary)
            death.at("before")
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            death.at("exchanged")
            optimizer.step()
            death.at("stepped")
    choice = dataparallel.strategy_of(model).choice()  # type: ignore[union-attr]
    told = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "choice": choice}
    torch.save(told, folder / f"final-{world.rank}.pt")
    train.shutdown()


def attempt(folder: Path, kind: str, steps: int, rank: int = 0, dies_at: int | None = None, place: str = "") -> Any:
    """Run a gang to its end, with servers of its own. Return the exit codes.

    Where servers were chosen the other worker would wait for a successor. Here the platform ends it, too.
    """
    with farm.running(2) if kind == "ps" else contextlib.nullcontext() as servers:
        env = {**farm.variables(servers), choices.VARIABLE: json.dumps({"kind": "auto"})} if servers else {}
        return crew.run(
            learn, folder, kind, steps, rank, dies_at, place, folder=folder, env=env, ends_together=kind == "ps"
        )


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kills", [5, pytest.param(100, marks=[pytest.mark.soak, pytest.mark.timeout(7200)])])
@pytest.mark.parametrize("kind", ["none", "ps"])
def test_a_rank_is_killed_at_any_step_and_the_gang_restarts(tmp_path: Path, kind: str, kills: int) -> None:
    """Each attempt ends with the death of a rank. The next one repeats the
    step that was not over, and the one before it at most, whose checkpoint was under way.
    """
    steps = FIRST + BETWEEN * kills
    killed, calm = tmp_path / "killed", tmp_path / "calm"
    for folder in (killed, calm):
        folder.mkdir()
    for kill in range(kills):
        rank, dies_at = kill // len(PLACES) % 2 ^ kill % 2, FIRST + BETWEEN * kill
        codes = attempt(killed, kind, steps, rank, dies_at, PLACES[kill % len(PLACES)])
        assert codes[rank] == -signal.SIGKILL, crew.output(killed)
        assert codes[1 - rank] != 0, "the other rank cannot go on alone"
    assert attempt(killed, kind, steps) == [0, 0], crew.output(killed)
    assert attempt(calm, kind, steps) == [0, 0], crew.output(calm)
    for rank in range(2):
        ours, theirs = (torch.load(folder / f"final-{rank}.pt") for folder in (killed, calm))
        assert_same(ours, theirs)
        assert ours["choice"] == ({"exchange": "ps"} if kind == "ps" else {})
        done = [int(line) for line in (killed / f"diary-{rank}.txt").read_text().split()]
        again = [before - after + 1 for before, after in itertools.pairwise(done) if after <= before]
        assert len(again) <= kills, "a step was repeated without a death"
        assert max(again) <= 2, again
