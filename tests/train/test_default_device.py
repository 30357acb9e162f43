"""The library's own tensors stay where they belong when a script has chosen another default device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.train import crew
from torch import nn

from oarlock import train
from oarlock.train.checkpointing import copies

ELSEWHERE = "meta"
"""A device without memory: a tensor that is made there by mistake has no numbers."""


def learned(options: dict[str, Any]) -> None:
    """Train on the CPU while every tensor without a device is made elsewhere; compare the numbers of both ranks."""
    world = train.init()
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 64), nn.Linear(64, 1))
    data = torch.randn(64, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    torch.set_default_device(ELSEWHERE)
    train.data_parallel(model, optimizer, **options)
    batches = train.Batches((data,), 8)
    with train.Session(model=model, optimizer=optimizer, batches=batches, resume=False) as session:
        for (x,) in session.steps(batches, epochs=2):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
            session.log(step=session.step)
    first, second = world.gather([parameter.tolist() for parameter in model.parameters()])
    assert first == second
    train.shutdown()


@pytest.mark.parametrize("options", [{}, {"compression": "powersgd"}, {"strategy": "ps"}], ids=str)
def test_two_ranks_train(tmp_path: Path, options: dict[str, Any]) -> None:
    assert crew.run(learned, options, folder=tmp_path) == [0, 0], crew.output(tmp_path)


def test_batches_and_copies_are_whole() -> None:
    data = torch.arange(20.0)
    expected = [next(train.Batches((data,), 5, seed=seed))[0].tolist() for seed in range(3)]
    torch.set_default_device(ELSEWHERE)
    try:
        for seed in range(3):
            assert next(train.Batches((data,), 5, seed=seed))[0].tolist() == expected[seed]
        assert next(train.Batches((data,), 5, shuffle=False))[0].tolist() == [0, 1, 2, 3, 4]
        assert copies.Copies().of({"data": data})["data"].tolist() == data.tolist()
    finally:
        torch.set_default_device(None)
