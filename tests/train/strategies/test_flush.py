"""A compressed run goes on with another number of ranks: what the former ranks kept back is not lost."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.train import crew
from torch import nn

from oarlock import train
from oarlock.train.compression import dgc
from oarlock.train.strategies import dataparallel

BEFORE = 3
MOMENTUM = 0.9
SHAPE = 30, 40
COMPRESSIONS = {
    "dgc": train.DGC(sparsity=0.9, warm_up_steps=0),
    "powersgd": train.PowerSGD(rank=1),
}
APART = {"OARLOCK_SHARED_MEMORY": "0"}  # each rank keeps something back, as if on a host of its own
PARTS = {"dgc": ("velocity", "residual"), "powersgd": ("error",)}


def prepared(compression: str) -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Linear(40, 30, dtype=torch.float64)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=MOMENTUM, weight_decay=0.01)
    train.data_parallel(model, optimizer, compression=COMPRESSIONS.get(compression))
    return model, optimizer


def backward(model: nn.Module, step: int, scale: float = 1.0, size: float = 1.0) -> torch.Tensor:
    """Give the weight a random gradient, and return it. A scaled loss has gradients that are scaled back."""
    generator = torch.Generator().manual_seed(10 * step + train.rank())
    told = size * torch.randn(SHAPE, generator=generator, dtype=torch.float64)
    model.zero_grad()
    (scale * ((model.weight * told).sum() + model.bias.sum())).backward()
    for parameter in model.parameters():
        parameter.grad.div_(scale)
    return told


def kept_back(model: nn.Module, compression: str) -> dict[str, torch.Tensor]:
    """Return the sums over all ranks of these parts of the strategy's state."""
    state = dataparallel.strategy_of(model).state_dict()  # type: ignore[union-attr]
    return {name: sum(train.init().gather(state[name]["weight"])).view(SHAPE) for name in PARTS[compression]}


def begin(folder: Path, compression: str, scale: float) -> None:
    model, optimizer = prepared(compression)
    with train.Session(model=model, optimizer=optimizer, checkpoints=folder / "checkpoints", total_steps=5) as session:
        for step in session.steps():
            backward(model, step, scale)
            optimizer.step()
        sums = kept_back(model, compression)
    assert all(each.norm() > 1 for each in sums.values()), "otherwise this says nothing"
    if train.is_chief():
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "sums": sums}
        torch.save(state, folder / "before.pt")


def go_on(folder: Path, compression: str, scale: float, total_steps: int = 9) -> None:
    before: dict[str, Any] = torch.load(folder / "before.pt")
    model, optimizer = prepared(compression)
    told = {"model": model, "optimizer": optimizer, "checkpoints": folder / "checkpoints"}
    with train.Session(**told, total_steps=total_steps) as session:
        if session.step == 5:
            same(model, optimizer, before)
            handed_on(model, compression, before["sums"])
        for step in session.steps():
            backward(model, step, scale)
            optimizer.step()
        first, *others = session.world.gather(model.weight.detach())
        assert all(torch.equal(first, other) for other in others)
    if train.is_chief():
        torch.save(model.state_dict(), folder / "after.pt")


def same(model: nn.Module, optimizer: torch.optim.Optimizer, before: dict[str, Any]) -> None:
    """What was kept back passes through the script: until then it changes neither weights nor momentum."""
    assert torch.equal(model.weight.detach(), before["model"]["weight"])
    assert torch.equal(
        optimizer.state[model.weight]["momentum_buffer"], before["optimizer"]["state"][0]["momentum_buffer"]
    )


def handed_on(model: nn.Module, compression: str, sums: dict[str, torch.Tensor]) -> None:
    ranks = train.world_size()
    if compression == "dgc":  # which sends sums
        for name, each in kept_back(model, compression).items():
            torch.testing.assert_close(each, sums[name], rtol=1e-14, atol=1e-14)
    elif ranks > 1:  # which sends means
        torch.testing.assert_close(kept_back(model, compression)["error"] / ranks, sums["error"] / BEFORE)
    else:
        told = backward(model, 105)
        torch.testing.assert_close(model.weight.grad, told + sums["error"] / BEFORE)
        told = backward(model, 106)
        assert torch.equal(model.weight.grad, told), "once"


def release(folder: Path) -> None:
    """Alone there is no exchange: each step sends a part of what was kept back, and after RELEASE steps all is sent."""
    before: dict[str, Any] = torch.load(folder / "before.pt")
    residual, velocity = (before["sums"][name] for name in ("residual", "velocity"))
    model, optimizer = prepared("dgc")
    sent = torch.zeros(SHAPE, dtype=torch.float64)
    told = {"model": model, "optimizer": optimizer, "checkpoints": folder / "checkpoints"}
    with train.Session(**told, total_steps=5 + dgc.RELEASE) as session:
        for step in session.steps():
            backward(model, step, size=0.0)
            sent += model.weight.grad
            if step == 5:
                torch.testing.assert_close(sent, residual / dgc.RELEASE + MOMENTUM * velocity)
            optimizer.step()
        assert session.step == 5 + dgc.RELEASE
        assert not kept_back(model, "dgc")["residual"].any()
    steps = sum(MOMENTUM**step for step in range(1, dgc.RELEASE + 1))
    torch.testing.assert_close(sent, residual + steps * velocity)


def copied(folder: Path, name: str) -> Path:
    """Return a folder with the same checkpoint."""
    made = folder / name
    (made / "checkpoints").mkdir(parents=True)
    (made / "before.pt").symlink_to(folder / "before.pt")
    for path in (folder / "checkpoints").iterdir():
        (made / "checkpoints" / path.name).symlink_to(path)
    return made


def ran(target: Callable[..., None], folder: Path, *args: Any, ranks: int) -> str:
    codes = crew.run(target, folder, *args, folder=folder, world_size=ranks, env=APART)
    assert codes == [0] * ranks, crew.output(folder, ranks)
    return crew.output(folder, ranks)


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_with_fewer_ranks_and_with_more(tmp_path: Path, compression: str) -> None:
    ran(begin, tmp_path, compression, 1.0, ranks=BEFORE)
    for ranks in (1, 2, 4):
        said = ran(go_on, copied(tmp_path, str(ranks)), compression, 1.0, ranks=ranks)
        assert "the random generators' states are dropped, strategy of model goes on" in said


def test_all_that_was_kept_back_is_sent_by_one_that_is_alone(tmp_path: Path) -> None:
    ran(begin, tmp_path, "dgc", 1.0, ranks=BEFORE)
    ran(release, copied(tmp_path, "alone"), ranks=1)


@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.long)])
def test_a_scaled_loss_ends_with_the_same_weights(tmp_path: Path, ranks: int) -> None:
    weights = []
    for scale in (1.0, 4.0):
        folder = tmp_path / str(scale)
        folder.mkdir()
        ran(begin, folder, "dgc", scale, ranks=BEFORE)
        ran(go_on, copied(folder, "later"), "dgc", scale, ranks=ranks)
        weights.append(torch.load(folder / "later" / "after.pt")["weight"])
    assert torch.equal(*weights)


def test_one_that_is_alone_resumes_with_the_same_bits(tmp_path: Path) -> None:
    ran(begin, tmp_path, "dgc", 1.0, ranks=BEFORE)
    weights = []
    for name, runs in (("whole", [9]), ("parts", [7, 9])):
        folder = copied(tmp_path, name)
        for steps in runs:
            ran(go_on, folder, "dgc", 1.0, steps, ranks=1)
        weights.append(torch.load(folder / "after.pt")["weight"])
    assert torch.equal(*weights)


def handing_on(folder: Path) -> None:
    """A rank that leaves gives each of the others an equal part of what it keeps back."""
    model, optimizer = prepared("dgc")
    for step in range(5):
        backward(model, step)
        optimizer.step()
    strategy = dataparallel.strategy_of(model)
    assert isinstance(strategy, dgc.DeepGradientCompression)
    weight, before = model.weight.detach().clone(), copy.deepcopy(strategy.state_dict())
    strategy.flush([False, False, False])
    strategy.flush([True, True, True])
    assert all(torch.equal(strategy.state_dict()[name]["weight"], before[name]["weight"]) for name in PARTS["dgc"])
    strategy.flush([False, True, False])
    assert torch.equal(model.weight, weight)
    for name in PARTS["dgc"]:
        theirs = train.init().gather(before[name]["weight"])[1]
        assert theirs.norm() > 1
        ours = 0 * theirs if train.rank() == 1 else before[name]["weight"] + theirs / 2
        torch.testing.assert_close(strategy.state_dict()[name]["weight"], ours, rtol=1e-14, atol=1e-14)


def test_a_rank_that_leaves_hands_on_what_it_keeps_back(tmp_path: Path) -> None:
    ran(handing_on, tmp_path, ranks=BEFORE)


def go_on_otherwise(folder: Path) -> None:
    """Training goes on with another compression than that of the checkpoint."""
    model, optimizer = prepared("powersgd")
    with train.Session(model=model, optimizer=optimizer, checkpoints=folder / "checkpoints", total_steps=7) as session:
        assert session.step == 5
        assert not any(each.any() for each in kept_back(model, "powersgd").values())
        for step in session.steps():
            backward(model, step)
            optimizer.step()


def go_on_densely(folder: Path) -> None:
    model, optimizer = prepared("none")
    with train.Session(model=model, optimizer=optimizer, checkpoints=folder / "checkpoints") as session:
        assert session.step == 5


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_gradients_that_nothing_takes_are_not_dropped_silently(tmp_path: Path, compression: str) -> None:
    codes = crew.run(begin, tmp_path, compression, 1.0, folder=tmp_path, world_size=2, env=APART)
    assert codes == [0, 0], crew.output(tmp_path)
    for ranks in (2, 3):
        folder = tmp_path / str(ranks)
        (folder / "checkpoints").mkdir(parents=True)
        for path in (tmp_path / "checkpoints").iterdir():
            (folder / "checkpoints" / path.name).symlink_to(path)
        codes = crew.run(go_on_densely, folder, folder=folder, world_size=ranks, env=APART)
        assert codes == [0] * ranks, crew.output(folder, ranks)
        said = crew.output(folder, ranks)
        assert "holds strategy of model of each rank, which this session does not use: dropped, with the" in said


def test_with_another_compression(tmp_path: Path) -> None:
    codes = crew.run(begin, tmp_path, "dgc", 1.0, folder=tmp_path, world_size=2, env=APART)
    assert codes == [0, 0], crew.output(tmp_path)
    for ranks, words in (
        (3, "the random generators' states and strategy of model are dropped"),
        (2, "made with another compression"),
    ):
        folder = tmp_path / str(ranks)
        (folder / "checkpoints").mkdir(parents=True)
        for path in (tmp_path / "checkpoints").iterdir():
            (folder / "checkpoints" / path.name).symlink_to(path)
        codes = crew.run(go_on_otherwise, folder, folder=folder, world_size=ranks, env=APART)
        assert codes == [0] * ranks, crew.output(folder, ranks)
        assert words in crew.output(folder, ranks)
