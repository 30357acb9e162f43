"""Compiled models and mixed precision in a session, on the CPU. tests/gpu has the same on a GPU.

torch's default compiler writes C++ and needs a compiler of the system, which a machine of a test may lack, and takes
half a minute. The backend aot_eager does all of torch.compile that touches a session (the wrapper of the module, the
traced graph with its backward pass) and leaves the writing out.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.train import crew, scripts
from tests.train.parallel import models
from tests.train.test_resume import assert_same
from torch import nn

from oarlock import train


def learn(folder: Path, way: str, stop: int | None = None) -> None:
    """Train on this rank's examples, compiled or in bfloat16, and save the end as folder/end.pt."""
    world = train.init()
    torch.manual_seed(4 + world.rank)
    model = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 3))
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    train.data_parallel(model, optimizer)
    forward: Any = torch.compile(model, backend="aot_eager") if way == "compiled" else model
    batches = train.Batches(scripts.examples(), 8, seed=3)
    options: dict[str, Any] = {"checkpoints": folder / "checkpoints", "every_steps": 5, "total_steps": 32}
    losses = []
    with train.Session(model=forward, optimizer=optimizer, batches=batches, **options) as session:
        for x, y in session.steps(batches):
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=way == "bfloat16"):
                scores = forward(x)
                loss = nn.functional.cross_entropy(scores, y)
            assert scores.dtype == (torch.bfloat16 if way == "bfloat16" else torch.float32)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            session.log(loss=loss)
            if session.step == stop:
                session.request_stop()
    if world.is_chief:
        kept = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "losses": losses}
        torch.save(kept, folder / "end.pt")
    assert all(parameter.dtype == torch.float32 for parameter in model.parameters())


@pytest.mark.parametrize("way", ["compiled", "bfloat16"])
def test_a_resumed_run_ends_with_the_same_bits(tmp_path: Path, way: str) -> None:
    for folder, stops in ((tmp_path / "whole", [None]), (tmp_path / "parts", [9, None])):
        folder.mkdir()
        for stop in stops:
            assert crew.run(learn, folder, way, stop, folder=folder) == [0, 0], crew.output(folder)
    whole, parts = (torch.load(tmp_path / name / "end.pt") for name in ("whole", "parts"))
    assert_same(parts["model"], whole["model"])
    assert_same(parts["optimizer"], whole["optimizer"])
    assert 0 < len(parts["losses"]) < len(whole["losses"])
    assert parts["losses"] == whole["losses"][-len(parts["losses"]) :]


def test_a_compiled_model_of_several_ranks_learns_and_is_saved(tmp_path: Path) -> None:
    for _ in range(2):
        assert crew.run(_divided, tmp_path, folder=tmp_path) == [0, 0], crew.output(tmp_path)
    assert "resumed from attempt-1-round-1-step-" in crew.output(tmp_path)


def _divided(folder: Path) -> None:
    train.init()
    torch.manual_seed(7)
    model = models.by_tensor(models.Net())
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    compiled: Any = torch.compile(model, backend="aot_eager")
    options: dict[str, Any] = {"checkpoints": folder / "checkpoints", "strategy": train.ModelParallel(model)}
    x = torch.ones(3, 5, dtype=torch.float64)
    losses = []
    with train.Session(model=compiled, optimizer=optimizer, total_steps=32, **options) as session:
        before = session.step
        for _ in session.steps():
            loss = compiled(x).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            if session.step == 4 and before == 0:
                session.request_stop()
    assert losses[-1] < losses[0]
    assert not (folder / "losses.pt").exists() or losses[0] < torch.load(folder / "losses.pt")[-1]
    train.init().gather(None)
    if train.is_chief():
        torch.save(losses, folder / "losses.pt")
