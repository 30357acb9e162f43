"""Elastic membership with two models, one of them under compression: a step has two exchanges, and one may be over when
the other one breaks.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.train.rounds import counting as counts
from tests.train.rounds import gang, test_rounds_compressed
from torch import nn

from oarlock import train
from oarlock.train import errors, worlds
from oarlock.train.compression.dgc import DeepGradientCompression
from oarlock.train.strategies import dataparallel
from oarlock.train.strategies.allreduce import AllReduce

COLUMNS = 60


def lose_after(kind: type[Any], name: str, number: int, folder: Path) -> None:
    """Lose the round on rank b, after both ranks have made exchange `number` of this kind."""
    exchange = getattr(kind, name)
    made: list[None] = []

    def losing(self: Any, *args: Any) -> None:
        exchange(self, *args)
        made.append(None)
        if len(made) == number and folder.name == "a":
            (folder / "made").touch()
        elif len(made) == number:
            while not (folder.parent / "a" / "made").exists():
                time.sleep(0.002)
            assert worlds.rounds is not None
            worlds.rounds.lose()
            raise errors.PeersLost("a member is gone")

    setattr(kind, name, losing)


def sum_up(folder: Path, first: str) -> None:
    """The gradients of the compressed model are in a row of its own for each process, which adds them up as well."""
    if first == "dense":
        lose_after(AllReduce, "_exchange", 10, folder)
    else:
        lose_after(DeepGradientCompression, "exchange", 10, folder)
    world = train.init()
    models = {"dense": nn.Linear(3, 2, bias=False).double(), "sparse": nn.Linear(COLUMNS, 2, bias=False).double()}
    for model in models.values():
        nn.init.zeros_(model.weight)
    optimizers = {kind: torch.optim.SGD(model.parameters(), lr=1.0) for kind, model in models.items()}
    train.data_parallel(models["dense"], optimizers["dense"])
    train.data_parallel(models["sparse"], optimizers["sparse"], compression=train.DGC(sparsity=0.9, warm_up_steps=0))
    row = "ab".index(folder.name)
    ours: dict[int, torch.Tensor] = {}
    kept = {**{f"{kind} optimizer": each for kind, each in optimizers.items()}, **models}
    with train.Session(**kept, hooks=[test_rounds_compressed.Steps(folder)]) as session:
        for step in session.steps():
            gradient = torch.randn(
                COLUMNS, dtype=torch.float64, generator=torch.Generator().manual_seed(2 * step + row)
            )
            ours[step] = gradient / world.world_size
            for kind in ("dense", "sparse") if first == "dense" else ("sparse", "dense"):
                optimizers[kind].zero_grad()
                weight = models[kind].weight
                ((weight[row] * gradient).sum() if kind == "sparse" else weight.sum()).backward()
                optimizers[kind].step()
    strategy = dataparallel.strategy_of(models["sparse"])
    assert strategy is not None
    rest = strategy.state_dict()["residual"]["weight"].view(2, COLUMNS)[row]
    sums = {"sent": -models["sparse"].weight[row].detach(), "total": sum(ours.values()) - rest}
    state = {f"{kind} {name}": each for kind, model in models.items() for name, each in model.state_dict().items()}
    torch.save({"model": state, "sums": sums, "rate": 0, "repeated": 0}, folder / "final.pt")


@pytest.mark.parametrize("first", ["dense", "sparse"])
def test_the_rank_with_one_exchange_of_two_gives_its_state(tmp_path: Path, first: str) -> None:
    made = gang.Gang(tmp_path, sum_up, first)
    try:
        made.start(["a", "b"])
        made.meet_again(["a", "b"])
        made.wait(lambda: counts.reached(made, "a") > 40)
        counts.end(made, ["a", "b"], losses=0)
        for name in ("a", "b"):
            sums = torch.load(tmp_path / name / "final.pt")["sums"]
            torch.testing.assert_close(sums["sent"], sums["total"], rtol=1e-6, atol=1e-6)
    finally:
        made.close()
