"""Replicas stay together, by the same gradients that DistributedDataParallel or one large batch would give."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tests.train import crew, scripts
from torch import nn

from oarlock import train
from oarlock.train import errors
from oarlock.train.strategies import allreduce


def learned(model: nn.Module, attached: nn.Module, *, steps: int = 4, parts: int = 1) -> list[torch.Tensor]:
    """Weights after some steps of plain SGD on this rank's part of the examples; `parts` backward passes a step."""
    world = train.init()
    x, y = scripts.examples(8 * world.world_size * steps)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    for step in range(steps):
        mine = slice((step * world.world_size + world.rank) * 8, (step * world.world_size + world.rank + 1) * 8)
        optimizer.zero_grad()
        pieces = list(zip(x[mine].chunk(parts), y[mine].chunk(parts), strict=True))
        for number, (some_x, some_y) in enumerate(pieces):
            loss = nn.functional.cross_entropy(attached(some_x), some_y) / parts
            if number < parts - 1:
                with train.no_sync(model):
                    loss.backward()
            else:
                loss.backward()
        optimizer.step()
    return [parameter.detach().clone() for parameter in model.parameters()]


def plain_net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 40), nn.Tanh(), nn.Linear(40, 40), nn.Tanh(), nn.Linear(40, 3))


def as_distributed_data_parallel() -> None:
    """The oracle. Two ranks add two numbers, in whatever order: the bits are the same."""
    train.init()
    torch.manual_seed(1)
    ours, theirs = plain_net(), plain_net()
    theirs.load_state_dict(ours.state_dict())
    expected = learned(theirs, nn.parallel.DistributedDataParallel(theirs))
    for buckets in (25 << 20, 4000):  # one bucket, several
        model = copy.deepcopy(ours)
        assert train.data_parallel(model, bucket_bytes=buckets) is model
        for one, other in zip(learned(model, model), expected, strict=True):
            assert torch.equal(one, other)


def as_one_large_batch() -> None:
    world = train.init()
    torch.manual_seed(1 + world.rank)
    model = train.data_parallel(plain_net(), bucket_bytes=4000)
    alone = plain_net()
    alone.load_state_dict(model.state_dict())
    parts = learned(model, model, parts=4)
    x, y = scripts.examples(8 * world.world_size * 4)
    optimizer = torch.optim.SGD(alone.parameters(), 0.1, momentum=0.9)
    for some_x, some_y in zip(x.chunk(4), y.chunk(4), strict=True):
        optimizer.zero_grad()
        nn.functional.cross_entropy(alone(some_x), some_y).backward()
        optimizer.step()
    for one, other in zip(parts, alone.parameters(), strict=True):
        torch.testing.assert_close(one, other.detach())


def held_back() -> None:
    world = train.init()
    model = train.data_parallel(nn.Linear(2, 1))
    x = torch.ones(1, 2) * (1 + world.rank)
    with train.no_sync(model):
        model(x).sum().backward()
    assert torch.equal(model.weight.grad, x), "nothing is exchanged yet"
    model(x).sum().backward()
    assert torch.equal(model.weight.grad, torch.full((1, 2), 3.0)), "the mean of 1 + 1 and 2 + 2"


class Forked(nn.Module):
    """Uses `left` or `right`, never `never`."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.never = nn.Linear(2, 1), nn.Linear(2, 1), nn.Linear(2, 1)

    def forward(self, x: torch.Tensor, side: str) -> torch.Tensor:
        return getattr(self, side)(x).sum()


def with_unused_parameters() -> None:
    world = train.init()
    torch.manual_seed(1)
    model = train.data_parallel(Forked(), unused_parameters=True)
    x = torch.tensor([[1.0, 3.0]])
    model(x, "left" if world.is_chief else "right").backward()
    for linear in (model.left, model.right):
        assert torch.equal(linear.weight.grad, x / 2), "made on one of two ranks: the mean counts the other as zero"
    assert model.never.weight.grad is None, "an optimizer would decay what no rank has used"

    strict = train.data_parallel(Forked())
    with pytest.raises(errors.StateError, match=r"no gradient to never\.bias, never\.weight, right\.bias and 1 more"):
        strict(x, "left").backward()


def with_different_models() -> None:
    world = train.init()
    with pytest.raises(errors.StateError, match="another model"):
        train.data_parallel(nn.Linear(2 + world.rank, 1))
    torch.manual_seed(world.rank)
    first, second = world.gather(train.data_parallel(nn.Linear(2, 1)).weight.tolist())
    assert first == second, "every rank begins with the chief's weights"
    sparse = train.data_parallel(nn.Embedding(4, 2, sparse=True))
    with pytest.raises(errors.StateError, match="sparse=False"):
        sparse(torch.tensor([1])).sum().backward()


def with_running_statistics() -> None:
    world = train.init()
    model = train.data_parallel(nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 1)))
    for _ in range(3):
        model(torch.randn(8, 2) + world.rank).sum().backward()
    model(torch.randn(8, 2))
    everyones = world.gather(model[0].num_batches_tracked.item())
    assert everyones == [4, 4]
    means = world.gather(model[0].weight.grad.tolist())
    assert means[0] == means[1]


@pytest.mark.parametrize(
    "scenario",
    [
        as_distributed_data_parallel,
        as_one_large_batch,
        held_back,
        with_unused_parameters,
        with_different_models,
        with_running_statistics,
    ],
)
def test_two_ranks(tmp_path: Path, scenario: Callable[[], None]) -> None:
    assert crew.run(scenario, folder=tmp_path) == [0, 0], crew.output(tmp_path)


def test_alone_nothing_is_attached() -> None:
    model = plain_net()
    assert train.data_parallel(model) is model
    assert not model._forward_pre_hooks
    assert not any(parameter._post_accumulate_grad_hooks for parameter in model.parameters())
    with train.no_sync(model):
        model(torch.randn(2, 6)).sum().backward()


def test_buckets_go_from_the_last_layer_to_the_first_and_hold_one_kind() -> None:
    model = nn.Sequential(nn.Linear(100, 100), nn.Linear(100, 100).double(), nn.Linear(100, 100), nn.Linear(100, 2))
    buckets = allreduce._sorted_into_buckets(list(model.named_parameters()), 50_000, 2, False)
    assert [bucket.names for bucket in buckets] == [
        ["3.bias", "3.weight", "2.bias", "2.weight"],
        ["1.bias"],
        ["1.weight"],
        ["0.bias", "0.weight"],
    ]
