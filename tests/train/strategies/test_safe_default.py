"""`auto` without permission, measured by what the machine really does: nothing is patched here.

Whatever it finds, it must be dense synchronous training, and a resumed run must repeat it.
"""

from __future__ import annotations

import contextlib
import json
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.train import crew, scripts
from tests.train.servers import farm
from torch import nn

from oarlock import train
from oarlock.train.strategies import choices, dataparallel

STEPS, STOP = 40, 20
"""A choice is made after nine measured steps, thus before the stop."""


class Notes(train.Hook):
    """Notes the choice that each checkpoint holds."""

    def __init__(self, model: nn.Module, folder: Path) -> None:
        self._model, self._folder = model, folder

    def before_checkpoint(self, session: train.Session) -> None:
        strategy = dataparallel.strategy_of(self._model)
        assert strategy is not None
        (self._folder / f"choice-{session.step}.json").write_text(json.dumps(strategy.choice()))


def learn(folder: Path, named: dict[str, Any], stop: int | None, clips: bool) -> None:
    world = train.init()
    torch.manual_seed(1 + world.rank)
    model = nn.Sequential(nn.Linear(6, 40), nn.Tanh(), nn.Linear(40, 3))
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    train.data_parallel(model, optimizer, **named)
    batches = train.Batches(scripts.examples(), 7, seed=3)
    hooks: list[train.Hook] = [Notes(model, folder)] if world.is_chief else []
    hooks += [scripts.Interrupt(stop, signal.SIGTERM, rank=0)] if stop else []
    kept: dict[str, Any] = {"model": model, "optimizer": optimizer, "batches": batches}
    with train.Session(**kept, checkpoints=folder / "checkpoints", total_steps=STEPS, hooks=hooks) as session:
        for x, y in session.steps(batches):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            if clips:
                nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
    if world.is_chief:
        torch.save(model.state_dict(), folder / "final.pt")
    train.shutdown()


def run(folder: Path, named: dict[str, Any], stop: int | None, *, servers: bool, clips: bool) -> list[int]:
    with farm.running(2) if servers else contextlib.nullcontext() as there:
        env = {} if there is None else {**farm.variables(there), choices.VARIABLE: '{"kind": "auto"}'}
        return crew.run(learn, folder, named, stop, clips, folder=folder, env=env)


@pytest.mark.parametrize(
    ("servers", "clips"),
    [(False, False), (True, False), (True, True)],
    ids=["allreduce", "beside servers", "with clipped gradients"],
)
def test_a_resumed_run_repeats_the_choice_and_ends_with_the_bits_of_dense_training(
    servers: bool, clips: bool, tmp_path: Path
) -> None:
    dense = {"strategy": "allreduce", "compression": "none"}
    named, whole, parted = (tmp_path / name for name in ("named", "whole", "parted"))
    for folder in (named, whole, parted):
        folder.mkdir()
    assert run(named, dense, None, servers=False, clips=clips) == [0, 0], crew.output(named)
    assert run(whole, {}, None, servers=servers, clips=clips) == [0, 0], crew.output(whole)
    assert run(parted, {}, STOP, servers=servers, clips=clips) == [143, 143], crew.output(parted)
    (stopped,) = parted.glob("choice-*.json")
    first = json.loads(stopped.read_text())
    permitted = ("none", "ps") if servers and not clips else ("none",) if servers else (None,)
    assert first.get("exchange") in permitted, "only what is lossless and synchronous"
    assert run(parted, {}, None, servers=servers, clips=clips) == [0, 0], crew.output(parted)
    assert json.loads((parted / f"choice-{STEPS}.json").read_text()) == first
    weights = [torch.load(folder / "final.pt", weights_only=True) for folder in (named, whole, parted)]
    for name, tensor in weights[0].items():
        assert all(torch.equal(tensor, other[name]) for other in weights[1:]), name
