"""A compressed run goes on with another number of ranks: what the former ranks kept back is not lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.train import crew
from torch import nn

from oarlock import train
from oarlock.train.strategies import dataparallel

BEFORE = 3
COMPRESSIONS = {
    "dgc": train.DGC(sparsity=0.9, warm_up_steps=0),
    "powersgd": train.PowerSGD(rank=1),
}


def prepared(compression: str) -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Linear(40, 30, dtype=torch.float64)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=0.01)
    train.data_parallel(model, optimizer, compression=COMPRESSIONS.get(compression))
    return model, optimizer


def backward(model: nn.Module, step: int) -> torch.Tensor:
    """Give the weight a random gradient, and return it."""
    generator = torch.Generator().manual_seed(10 * step + train.rank())
    told = torch.randn(30, 40, generator=generator, dtype=torch.float64)
    model.zero_grad()
    ((model.weight * told).sum() + model.bias.sum()).backward()
    return told


def kept_back(model: nn.Module, names: tuple[str, ...]) -> dict[str, torch.Tensor]:
    """Return the sums over all ranks of these parts of the strategy's state."""
    strategy = dataparallel.strategy_of(model)
    return {
        name: sum(train.init().gather(strategy.state_dict()[name]["weight"])).view(30, 40)  # type: ignore[union-attr]
        for name in names
    }


def begin(folder: Path, compression: str) -> None:
    model, optimizer = prepared(compression)
    names = ("velocity", "residual") if compression == "dgc" else ("error",)
    with train.Session(model=model, optimizer=optimizer, checkpoints=folder / "checkpoints", total_steps=5) as session:
        for step in session.steps():
            backward(model, step)
            optimizer.step()
        sums = kept_back(model, names)
    assert all(each.norm() > 1 for each in sums.values()), "otherwise this says nothing"
    if train.is_chief():
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "sums": sums}
        torch.save(state, folder / "before.pt")


def go_on(folder: Path, compression: str) -> None:
    ranks = train.world_size()
    before: dict[str, Any] = torch.load(folder / "before.pt")
    model, optimizer = prepared(compression)
    with train.Session(model=model, optimizer=optimizer, checkpoints=folder / "checkpoints", total_steps=6) as session:
        weight, sums = before["model"]["weight"], before["sums"]
        buffer = before["optimizer"]["state"][0]["momentum_buffer"]
        if compression == "dgc":
            torch.testing.assert_close(model.weight.detach(), weight - 0.1 * sums["residual"])
            torch.testing.assert_close(optimizer.state[model.weight]["momentum_buffer"], buffer + sums["velocity"])
            if ranks > 1:
                assert not any(each.any() for each in kept_back(model, ("velocity", "residual")).values())
        else:
            assert torch.equal(model.weight.detach(), weight)
            error = sums["error"] / BEFORE
            if ranks > 1:
                torch.testing.assert_close(kept_back(model, ("error",))["error"] / ranks, error)
            else:
                told = backward(model, 5)
                torch.testing.assert_close(model.weight.grad, told + error)
                told = backward(model, 6)
                assert torch.equal(model.weight.grad, told), "once"
        first, *others = session.world.gather(model.weight.detach())
        assert all(torch.equal(first, other) for other in others)
        session.request_stop()
        for step in session.steps():
            backward(model, step)
            optimizer.step()


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_with_fewer_ranks_and_with_more(tmp_path: Path, compression: str) -> None:
    codes = crew.run(begin, tmp_path, compression, folder=tmp_path, world_size=BEFORE, timeout_s=240)
    assert codes == [0] * BEFORE, crew.output(tmp_path, BEFORE)
    checkpoints = tmp_path / "checkpoints"
    for ranks in (1, 2, 4):
        folder = tmp_path / str(ranks)
        folder.mkdir()
        (folder / "before.pt").symlink_to(tmp_path / "before.pt")
        (folder / "checkpoints").mkdir()
        for path in checkpoints.iterdir():
            (folder / "checkpoints" / path.name).symlink_to(path)
        codes = crew.run(go_on, folder, compression, folder=folder, world_size=ranks, timeout_s=240)
        assert codes == [0] * ranks, crew.output(folder, ranks)
        said = crew.output(folder, ranks)
        assert "the random generators' states are dropped, strategy of model goes on" in said


def go_on_otherwise(folder: Path) -> None:
    """Training goes on with another compression than that of the checkpoint."""
    model, optimizer = prepared("powersgd")
    with train.Session(model=model, optimizer=optimizer, checkpoints=folder / "checkpoints", total_steps=7) as session:
        assert session.step == 5
        assert not any(each.any() for each in kept_back(model, ("error",)).values())
        for step in session.steps():
            backward(model, step)
            optimizer.step()


def go_on_densely(folder: Path) -> None:
    model, optimizer = prepared("none")
    with train.Session(model=model, optimizer=optimizer, checkpoints=folder / "checkpoints") as session:
        assert session.step == 5


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_gradients_that_nothing_takes_are_not_dropped_silently(tmp_path: Path, compression: str) -> None:
    codes = crew.run(begin, tmp_path, compression, folder=tmp_path, world_size=2, timeout_s=240)
    assert codes == [0, 0], crew.output(tmp_path)
    for ranks in (2, 3):
        folder = tmp_path / str(ranks)
        (folder / "checkpoints").mkdir(parents=True)
        for path in (tmp_path / "checkpoints").iterdir():
            (folder / "checkpoints" / path.name).symlink_to(path)
        codes = crew.run(go_on_densely, folder, folder=folder, world_size=ranks, timeout_s=240)
        assert codes == [0] * ranks, crew.output(folder, ranks)
        said = crew.output(folder, ranks)
        assert "holds strategy of model of each rank, which this session does not use: dropped, with the" in said


def test_with_another_compression(tmp_path: Path) -> None:
    codes = crew.run(begin, tmp_path, "dgc", folder=tmp_path, world_size=2, timeout_s=240)
    assert codes == [0, 0], crew.output(tmp_path)
    for ranks, words in (
        (3, "the random generators' states and strategy of model are dropped"),
        (2, "made with another compression"),
    ):
        folder = tmp_path / str(ranks)
        (folder / "checkpoints").mkdir(parents=True)
        for path in (tmp_path / "checkpoints").iterdir():
            (folder / "checkpoints" / path.name).symlink_to(path)
        codes = crew.run(go_on_otherwise, folder, folder=folder, world_size=ranks, timeout_s=240)
        assert codes == [0] * ranks, crew.output(folder, ranks)
        assert words in crew.output(folder, ranks)
