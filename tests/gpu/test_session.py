"""A session on a GPU: checkpoints, random numbers, batches, mixed precision, compiled models, metrics."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.gpu import pairs
from torch import nn

from oarlock import train
from oarlock.train import worlds
from oarlock.train.checkpointing import copies


@pytest.fixture(autouse=True)
def _alone() -> Any:
    yield
    worlds.shutdown()


def learned(folder: Path, *, stop: int | None = None, amp: bool = False, compiled: bool = False) -> dict[str, Any]:
    """Train with dropout and a shuffled data set, up to step 40 or `stop`. Return the weights."""
    world = train.init()
    assert world.device.type == "cuda"
    torch.manual_seed(4)
    model = nn.Sequential(nn.Linear(6, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.3), nn.Linear(64, 3)).to(
        world.device
    )
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    train.data_parallel(model, optimizer)
    forward = torch.compile(model) if compiled else model
    generator = torch.Generator().manual_seed(5)
    data = torch.randn(200, 6, generator=generator), torch.randint(0, 3, (200,), generator=generator)
    batches = train.Batches(data, 8, seed=3)
    scaler = torch.amp.GradScaler("cuda", enabled=amp)
    state = {"scaler": scaler} if amp else {}
    with train.Session(
        model=model, optimizer=optimizer, batches=batches, checkpoints=folder, every_steps=5, total_steps=40, **state
    ) as session:
        for x, y in session.steps(batches):
            assert x.device.type == "cuda"
            with torch.autocast("cuda", dtype=torch.float16, enabled=amp):
                loss = nn.functional.cross_entropy(forward(x), y)
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            session.log(loss=loss)
            if session.step == stop:
                session.request_stop()
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


@pytest.mark.parametrize("amp", [False, True])
def test_a_resumed_run_ends_with_the_same_bits(tmp_path: Path, amp: bool) -> None:
    torch.use_deterministic_algorithms(mode=False)
    whole = learned(tmp_path / "whole", amp=amp)
    worlds.shutdown()
    learned(tmp_path / "parts", stop=17, amp=amp)
    worlds.shutdown()
    torch.randn(100, device="cuda")  # other random numbers before the resumption
    resumed = learned(tmp_path / "parts", amp=amp)
    assert all(torch.equal(value, resumed[name]) for name, value in whole.items())


def test_a_compiled_model_learns(tmp_path: Path) -> None:
    start = learned(tmp_path / "one", stop=1, compiled=True)
    worlds.shutdown()
    end = learned(tmp_path / "two", compiled=True)
    assert not torch.equal(start["0.weight"], end["0.weight"])


def test_a_copy_is_that_of_its_moment() -> None:
    """The state changes as soon as the copy has returned, and the GPU still works on what was queued before."""
    weights = torch.zeros(64 << 20, device="cuda")
    kept = copies.Copies()
    for number in range(1, 6):
        for _ in range(50):
            weights += 1
        copied = kept.of({"weights": weights, "part": weights[5:9], "count": number})
        weights.add_(1000)
        assert copied["weights"].is_pinned()
        assert copied["weights"].unique().tolist() == [50.0 * number + 1000 * (number - 1)]
        assert copied["part"].tolist() == [50.0 * number + 1000 * (number - 1)] * 4
        assert copied["part"].untyped_storage().data_ptr() == copied["weights"].untyped_storage().data_ptr()


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_arrive_whole_in_pinned_memory(workers: int) -> None:
    """Every example arrives once, though its copy is not waited for."""
    numbers = torch.arange(4000, dtype=torch.float32)
    dataset: Any = list(numbers.unsqueeze(1).expand(-1, 500)) if workers else (numbers.unsqueeze(1).expand(-1, 500),)
    batches = train.Batches(dataset, 40, seed=1, workers=workers)
    seen = []
    for _ in range(len(batches)):
        batch = next(batches)
        x = batch if isinstance(batch, torch.Tensor) else batch[0]
        assert x.device.type == "cuda"
        torch.cuda._sleep(1_000_000)
        seen.append(x.clone())
    rows = torch.cat(seen)
    assert (rows == rows[:, :1]).all()
    assert rows[:, 0].sort().values.tolist() == numbers.tolist()


def test_a_device_with_a_number_is_the_present_one() -> None:
    last = torch.cuda.device_count() - 1
    assert train.init(device=f"cuda:{last}").device == torch.device("cuda", last)
    assert torch.cuda.current_device() == last
    assert torch.zeros(1, device="cuda").device == torch.device("cuda", last)


def test_a_default_device_of_the_script(tmp_path: Path) -> None:
    """torch.set_default_device makes the tensors of the script, not those of the library."""
    torch.set_default_device("cuda")
    try:
        learned_by_default(tmp_path)
    finally:
        torch.set_default_device(None)


def learned_by_default(folder: Path) -> None:
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    train.data_parallel(model, optimizer)
    batches = train.Batches((torch.randn(64, 6),), 8)
    with train.Session(model=model, optimizer=optimizer, batches=batches, checkpoints=folder, every_steps=4) as session:
        for (x,) in session.steps(batches, epochs=2):
            loss = model(x).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            session.log(loss=loss)
    with train.Session(model=model, optimizer=optimizer, batches=batches, checkpoints=folder) as session:
        assert session.step == 16 // train.world_size()


def by_default(folder: Path) -> None:
    torch.set_default_device("cuda")
    learned_by_default(folder)
    train.shutdown()


def test_a_default_device_of_two_ranks(tmp_path: Path) -> None:
    pairs.run(pairs.NCCL, by_default, tmp_path / "checkpoints", folder=tmp_path)


def test_a_graph_is_captured_while_values_are_logged() -> None:
    """The thread that reports must not touch the GPU while the script captures a graph."""
    x = torch.ones(1, device="cuda")
    with train.Session(total_steps=2) as session:
        for _ in session.steps():
            for _ in range(200):
                session.log(loss=x.sum())
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                y = x * 2
                time.sleep(1.0)
            graph.replay()
            torch.cuda.synchronize()
            assert y.item() == 2.0
