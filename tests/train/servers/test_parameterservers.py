"""Parameter servers: the same weights as allreduce and as one process, whatever the optimizer and the sharding."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.train import crew
from tests.train.servers import farm
from torch import nn

from oarlock import train
from oarlock.train import errors
from oarlock.train.servers import addresses
from oarlock.train.servers.model import sharding

WIDTH = 300  # a matrix of 300 x 100 doubles is large enough to be cut

OPTIMIZERS: dict[str, dict[str, Any]] = {
    "SGD": {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.01, "nesterov": True},
    "Adam": {"lr": 0.01, "weight_decay": 0.1, "amsgrad": True},
    "AdamW": {"lr": 0.01},
    "Adagrad": {"lr": 0.05, "initial_accumulator_value": 0.1},
    "RMSprop": {"lr": 0.01, "centered": True, "momentum": 0.5},
    "Adadelta": {"lr": 1.0},
    "Adamax": {"lr": 0.01},
    "ASGD": {"lr": 0.01},
    "NAdam": {"lr": 0.01},
    "RAdam": {"lr": 0.01},
    "Rprop": {"lr": 0.01},
    "Adafactor": {"lr": 0.05},
    "Muon": {"lr": 0.02},
}
MATRICES_ALONE = ("Muon",)
"""Optimizers that step matrices alone: the other parameters are frozen."""
ROUGH = {"Muon": {"rtol": 0.0, "atol": 2e-3}}
"""The distance from one process with the joined batch, where an optimizer computes in 16 bits."""


def net(kind: str = "") -> nn.Sequential:
    torch.manual_seed(4)
    model = nn.Sequential(nn.Linear(100, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 10), nn.Tanh(), nn.Linear(10, 2))
    for parameter in model.parameters() if kind in MATRICES_ALONE else ():
        parameter.requires_grad_(parameter.dim() == 2)
    return model.double()


def examples(step: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(100 * step + rank)
    return (
        torch.randn(8, 100, generator=generator, dtype=torch.float64),
        torch.randint(0, 2, (8,), generator=generator),
    )


def groups(model: nn.Sequential, kind: str, **settings: Any) -> torch.optim.Optimizer:
    """Two groups of different settings, in another order than the model's."""
    last, rest = ([each for each in part.parameters() if each.requires_grad] for part in (model[2:], model[0]))
    return getattr(torch.optim, kind)([{"params": last, "lr": settings["lr"] / 2}, {"params": rest}], **settings)


def taught(strategy: Any, kind: str = "Adam", steps: int = 5) -> dict[str, Any]:
    """Train this rank, its learning rates changed by a scheduler. Returns weights and the optimizer's state."""
    rank = train.rank()
    model = net(kind)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += rank  # ranks begin apart
    optimizer = groups(model, kind, **OPTIMIZERS[kind])
    train.data_parallel(model, optimizer, strategy=strategy)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5)
    for step in range(steps):
        optimizer.zero_grad()
        x, y = examples(step, rank)
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        scheduler.step()
        assert all(parameter.grad is not None for parameter in model.parameters() if parameter.requires_grad)
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}


def allreduced(folder: Path, kinds: list[str]) -> None:
    for kind in kinds:
        found = taught("allreduce", kind)
        if train.is_chief():
            torch.save(found, folder / f"{kind}-allreduce.pt")


def served(folder: Path, farms: dict[str, str]) -> None:
    """The same with the servers of each optimizer."""
    for number, (kind, servers) in enumerate(farms.items()):
        os.environ[addresses.VARIABLE] = servers
        way = "partition" if kind == "Adam" else sharding.WAYS[number % 3]
        found = taught(train.ParameterServers(sharding=way), kind)
        torch.save(found, folder / f"{kind}-ps-{train.rank()}.pt")


def alone(kind: str) -> dict[str, torch.Tensor]:
    """One process, on the joined batch of two ranks."""
    model = net(kind)
    optimizer = groups(model, kind, **OPTIMIZERS[kind])
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5)
    for step in range(5):
        optimizer.zero_grad()
        x, y = (torch.cat(pair) for pair in zip(*(examples(step, rank) for rank in range(2)), strict=True))
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        scheduler.step()
    return model.state_dict()


def equal(here: Any, there: Any, where: str = "") -> None:
    if isinstance(here, torch.Tensor):
        assert torch.equal(here, there), f"{where}: {(here - there).abs().max()}"
    elif isinstance(here, dict):
        assert here.keys() == there.keys(), where
        for key in here:
            equal(here[key], there[key], f"{where}.{key}")
    else:
        assert here == there, where


@pytest.mark.long
def test_each_optimizer_gives_the_bits_of_allreduce(tmp_path: Path) -> None:
    """Two servers run every optimizer of torch.optim that steps by itself; weights and state are those of allreduce."""
    for name in ("dense", "served"):
        (tmp_path / name).mkdir()
    assert crew.run(allreduced, tmp_path, list(OPTIMIZERS), folder=tmp_path / "dense") == [0, 0], crew.output(
        tmp_path / "dense"
    )
    with ExitStack() as stack:
        farms = {kind: stack.enter_context(farm.running(2)) for kind in OPTIMIZERS}
        told = {kind: ",".join(servers.servers) for kind, servers in farms.items()}
        env = farm.variables(farms["SGD"])
        assert crew.run(served, tmp_path, told, folder=tmp_path / "served", env=env) == [0, 0], crew.output(
            tmp_path / "served"
        )
    for kind in OPTIMIZERS:
        dense = torch.load(tmp_path / f"{kind}-allreduce.pt", weights_only=True)
        for rank in range(2):
            equal(torch.load(tmp_path / f"{kind}-ps-{rank}.pt", weights_only=True), dense, kind)
        for name, value in alone(kind).items():
            torch.testing.assert_close(dense["model"][name], value, **ROUGH.get(kind, {"rtol": 1e-6, "atol": 1e-9}))


def two_models() -> None:
    def given() -> tuple[nn.Linear, torch.optim.Optimizer]:
        model = nn.Linear(3, 3)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        train.data_parallel(model, optimizer, strategy="ps")
        return model, optimizer

    model, optimizer = given()
    with pytest.raises(errors.StateError, match="servers hold one model"):
        given()
    with train.Session(model=model, optimizer=optimizer, total_steps=1) as session:
        for _ in session.steps():
            model(torch.ones(3)).sum().backward()
            optimizer.step()
    given()
    again = train.Session(model=model, optimizer=optimizer, total_steps=1)
    with pytest.raises(errors.StateError, match="servers hold one model"), again:
        pass


def test_the_servers_hold_one_model_at_a_time(tmp_path: Path) -> None:
    """Two models with equal names and shapes would share their weights."""
    with farm.running() as servers:
        codes = crew.run(two_models, folder=tmp_path, world_size=1, env=farm.variables(servers))
    assert codes == [0], crew.output(tmp_path)
