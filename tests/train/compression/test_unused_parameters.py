"""Parameters that no rank reaches in a step: compression leaves them alone, as dense training does."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.train import crew
from torch import nn

from oarlock import train
from oarlock.train import errors
from oarlock.train.strategies import dataparallel, wholegradient

APART = {"OARLOCK_SHARED_MEMORY": "0"}  # each rank is a node, as if on a host of its own
WAYS: dict[str, Any] = {
    "powersgd": train.PowerSGD(rank=1),
    "dgc": train.DGC(sparsity=0.99, warm_up_steps=0, half_values=True),
    "dense steps of dgc": train.DGC(sparsity=0.0, warm_up_steps=0),
}


class Forked(nn.Module):
    """Uses some of its three layers."""

    def __init__(self) -> None:
        super().__init__()
        self.always, self.sometimes, self.here = (nn.Linear(30, 30) for _ in range(3))

    def forward(self, x: torch.Tensor, used: str) -> torch.Tensor:
        return sum((getattr(self, name)(x).square().mean() for name in used.split()), torch.zeros(()))


def copied(model: nn.Module) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in model.parameters()]


def kept_back(model: nn.Module) -> list[torch.Tensor]:
    """Return what this rank keeps back of `sometimes`, in the order of the names."""
    strategy = dataparallel.strategy_of(model)
    assert strategy is not None
    parts = strategy.state_dict()
    return [
        part["sometimes.weight"].clone()
        for _, part in sorted(parts.items())
        if isinstance(part, dict) and "sometimes.weight" in part
    ]


def learn(way: str) -> None:
    """With weight decay and momentum: a gradient of zeros would move the weights."""
    world = train.init()
    torch.manual_seed(3)
    model = Forked()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=0.1)
    train.data_parallel(model, optimizer, compression=WAYS[way], unused_parameters=True)
    for step in range(9):
        sometimes = " sometimes" if step < 3 or step > 5 else ""
        here = " here" if world.is_chief else ""
        before, kept = copied(model.sometimes), kept_back(model)
        others = copied(model.always) + copied(model.here)
        optimizer.zero_grad()
        model(torch.randn(4, 30) + world.rank, "always" + sometimes + here).backward()
        optimizer.step()
        same = [torch.equal(*pair) for pair in zip(before, copied(model.sometimes), strict=True)]
        assert same == [not sometimes] * 2, f"step {step}: no rank has reached it"
        assert (model.sometimes.bias.grad is None) == (not sometimes)
        if not sometimes:
            assert kept
            assert all(map(torch.equal, kept, kept_back(model))), "it is sent when the layer is reached again"
        now = copied(model.always) + copied(model.here)
        assert not any(map(torch.equal, others, now)), "a layer that one rank has reached is trained on all"
        first, *more = world.gather([each.tolist() for each in copied(model)])
        assert all(each == first for each in more)


@pytest.mark.parametrize("way", WAYS)
def test_a_parameter_that_no_rank_reaches_stays_as_it_is(way: str, tmp_path: Path) -> None:
    assert crew.run(learn, way, folder=tmp_path, env=APART) == [0, 0], crew.output(tmp_path)


class Failing(wholegradient.WholeGradient):
    """Ranks of a compression that cannot find the parameters that none reaches."""

    outlives = True

    def __init__(self, why: Exception) -> None:
        super().__init__(unused_parameters=True)
        self._why, self.exchanges = why, 0

    def exchange(self) -> None:
        self.exchanges += 1

    def start_sum(self, flat: torch.Tensor) -> Any:
        raise self._why


@pytest.mark.parametrize(("why", "exchanges"), [(errors.PeersLost("gone"), 1), (RuntimeError("no memory"), 0)])
def test_gradients_are_kept_back_for_the_loss_of_a_process_alone(why: Exception, exchanges: int) -> None:
    """After another error the other ranks are not in the same exchange."""
    failing = Failing(why)
    failing.named = [("weight", nn.Parameter(torch.zeros(2)))]
    failing.named[0][1].grad = torch.ones(2)
    failing.pass_began()
    failing.gradient_ready(0)
    with pytest.raises(RuntimeError) if not exchanges else contextlib.nullcontext():
        failing.pass_ended()
    assert (failing.exchanges, failing.lost) == (exchanges, bool(exchanges))
