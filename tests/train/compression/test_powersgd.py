"""PowerSGD: factors of many matrices, in one order of exchanges, with an error that comes later."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.train import crew
from torch import nn

from oarlock import train
from oarlock.train import errors
from oarlock.train.compression import powersgd
from oarlock.train.strategies import dataparallel

RANKS = 3


def told(step: int, rank: int, shape: tuple[int, ...]) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def exchanged(model: nn.Module, step: int) -> None:
    model.zero_grad()
    rank = train.rank()
    sum((p * told(step, rank, tuple(p.shape))).sum() for p in model.parameters()).backward()


def a_matrix_of_low_rank_travels_whole() -> None:
    """Where all ranks' gradients have the factors' rank, the second exchange already gives their mean."""
    world = train.init()
    model = train.data_parallel(nn.Linear(40, 30, dtype=torch.float64), compression=train.PowerSGD(rank=2))
    left = torch.randn(30, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    for step in range(3):
        parts = [left @ told(step, rank, (2, 40)) for rank in range(RANKS)]
        model.zero_grad()
        ((model.weight * parts[world.rank]).sum() + model.bias.sum() * (1 + world.rank)).backward()
        torch.testing.assert_close(model.weight.grad, sum(parts) / RANKS)
        torch.testing.assert_close(model.bias.grad, torch.full_like(model.bias, 2.0))


def complex_matrices_too() -> None:
    """The factors of a complex matrix are conjugate. A matrix without elements has none, and travels as it is."""
    world = train.init()
    model = nn.ParameterList(
        [nn.Parameter(torch.zeros(30, 40, dtype=torch.complex128)), nn.Parameter(torch.zeros(0, 40))]
    )
    train.data_parallel(model, compression=train.PowerSGD(rank=2))
    left = torch.complex(told(0, 0, (30, 2)), told(0, 1, (30, 2)))
    for step in range(3):
        parts = [
            left @ torch.complex(told(step, rank, (2, 40)), told(step, 9 + rank, (2, 40))) for rank in range(RANKS)
        ]
        model.zero_grad()
        ((model[0] * parts[world.rank].conj()).real.sum() + model[1].sum()).backward()
        torch.testing.assert_close(model[0].grad, sum(parts) / RANKS)


def nothing_is_lost() -> None:
    """The sent parts and those that the ranks keep back add up to the computed gradients, in every step."""
    world = train.init()
    model = train.data_parallel(nn.Linear(40, 30, dtype=torch.float64), compression=train.PowerSGD(rank=1))
    strategy = dataparallel.strategy_of(model)
    sent, computed = torch.zeros(30, 40, dtype=torch.float64), torch.zeros(30, 40, dtype=torch.float64)
    for step in range(6):
        exchanged(model, step)
        sent += model.weight.grad
        computed += sum(told(step, rank, (30, 40)) for rank in range(RANKS)) / RANKS
        kept = sum(world.gather(strategy.state_dict()["error"]["weight"])) / RANKS
        torch.testing.assert_close(sent + kept, computed)
        assert torch.linalg.matrix_rank(model.weight.grad) == 1
        assert kept.norm() > 0.1 * computed.norm(), "otherwise this says nothing"


def an_overflow_is_over_after_its_step() -> None:
    """A GradScaler begins with overflows. Kept as an error, one would make all later gradients NaN."""
    world = train.init()
    model = train.data_parallel(nn.Linear(40, 30, dtype=torch.float64), compression=train.PowerSGD(rank=1))
    for wrong in (float("inf"), float("nan")):
        exchanged(model, 0)
        model.zero_grad()
        factor = torch.full((30, 40), wrong if world.rank == 1 else 1.0, dtype=torch.float64)
        ((model.weight * factor).sum() + model.bias.sum()).backward()
        assert world.gather(bool(model.weight.grad.isfinite().all())) == [False] * RANKS, "all pass over the step"
        exchanged(model, 1)
        assert model.weight.grad.isfinite().all()
        kept = dataparallel.strategy_of(model).state_dict()
        assert all(kept[part]["weight"].isfinite().all() for part in ("error", "factor"))


def many_matrices_keep_their_order() -> None:
    """Thirty layers, some too small to compress, in two types: the same bits on every rank, and fewer bytes."""
    world = train.init()
    torch.manual_seed(world.rank)
    layers = [nn.Linear(64, 64) for _ in range(28)] + [nn.Linear(64, 3), nn.Linear(3, 2)]
    model = train.data_parallel(nn.Sequential(*layers, nn.Linear(64, 64).double()), compression="powersgd")
    for step in range(20):
        exchanged(model, step)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.01 * parameter.grad
    for parameter in model.parameters():
        first, *others = world.gather(parameter.detach())
        assert all(torch.equal(first, other) for other in others)
    figures = dataparallel.strategy_of(model).figures
    dense = 2 * (RANKS - 1) / RANKS * sum(p.numel() * p.element_size() for p in model.parameters())
    assert figures.exchanges == 20
    assert figures.sent_bytes < 20 * dense / 8


def resumed(folder: Path, total_steps: int) -> None:
    world = train.init()
    torch.manual_seed(2)
    model = nn.Sequential(nn.Linear(30, 50), nn.Tanh(), nn.Linear(50, 40))
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    train.data_parallel(model, optimizer, compression=train.PowerSGD(rank=1))
    options: dict[str, Any] = {"checkpoints": folder / "checkpoints", "total_steps": total_steps}
    with train.Session(model=model, optimizer=optimizer, **options) as session:
        for step in session.steps():
            x = torch.randn(8, 30, generator=torch.Generator().manual_seed(100 * step + world.rank))
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
    if world.is_chief:
        torch.save(model.state_dict(), folder / f"after-{total_steps}.pt")


@pytest.mark.parametrize(
    "scenario",
    [
        a_matrix_of_low_rank_travels_whole,
        complex_matrices_too,
        nothing_is_lost,
        an_overflow_is_over_after_its_step,
        many_matrices_keep_their_order,
    ],
)
def test_three_ranks(tmp_path: Path, scenario: Callable[[], None]) -> None:
    codes = crew.run(scenario, folder=tmp_path, world_size=RANKS)
    assert codes == [0] * RANKS, crew.output(tmp_path, RANKS)


@pytest.mark.long
def test_a_resumed_run_ends_with_the_same_bits(tmp_path: Path) -> None:
    for name, runs in (("whole", [12]), ("parts", [6, 12])):
        folder = tmp_path / name
        folder.mkdir()
        for steps in runs:
            codes = crew.run(resumed, folder, steps, folder=folder)
            assert codes == [0, 0], crew.output(folder)
    whole, parts = (torch.load(tmp_path / name / "after-12.pt", weights_only=True) for name in ("whole", "parts"))
    for name, values in whole.items():
        assert torch.equal(values, parts[name]), name


def test_a_rank_below_one_is_refused() -> None:
    with pytest.raises(errors.StateError, match="below 1"):
        powersgd.PowerSGD(rank=0)
