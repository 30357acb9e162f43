"""Strategies on a GPU compute what they compute on a processor: the oracles of tests/train, with tensors of a GPU."""

from __future__ import annotations

import copy
import hashlib
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.gpu import pairs
from torch import nn

from oarlock import train
from oarlock.train import horovod as hvd
from oarlock.train.strategies import dataparallel

STEPS = 12


def net(dtype: torch.dtype) -> nn.Sequential:
    made = nn.Sequential(nn.Linear(6, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 3))
    return made.to(train.device(), dtype)


def examples(dtype: torch.dtype, count: int = 16 * STEPS) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    x, y = torch.randn(count, 6, generator=generator), torch.randint(0, 3, (count,), generator=generator)
    return x.to(train.device(), dtype), y.to(train.device())


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), 0.05, momentum=0.9, weight_decay=1e-3)


def learn(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor) -> None:
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()


def digest(model: nn.Module) -> str:
    whole = torch.cat([parameter.detach().double().view(-1).cpu() for parameter in model.parameters()])
    return hashlib.sha256(whole.numpy().tobytes()).hexdigest()


def as_one_large_batch(backend: str, dtype: torch.dtype, within: float, options: dict[str, Any]) -> None:
    """Train on this rank's half of each batch; compare with a model that trains alone on whole batches."""
    world = train.init()
    assert world.device.type == "cuda"
    assert backend in torch.distributed.get_backend()
    torch.manual_seed(1 + world.rank)
    model = net(dtype)
    optimizer = sgd(model)
    train.data_parallel(model, optimizer, **options)
    alone = copy.deepcopy(model)
    theirs = sgd(alone)
    x, y = examples(dtype)
    for number, (some_x, some_y) in enumerate(zip(x.chunk(STEPS), y.chunk(STEPS), strict=True)):
        learn(model, optimizer, some_x.chunk(2)[world.rank], some_y.chunk(2)[world.rank])
        learn(alone, theirs, some_x, some_y)
        if number == 0:
            start = digest(model)
    assert digest(model) != start, "it learns"
    first, second = world.gather(digest(model))
    assert first == second, "the same bits on both ranks"
    for ours, other in zip(model.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(ours.detach(), other.detach(), rtol=within, atol=within)
    train.shutdown()


EXACT = {
    "allreduce": {"strategy": "allreduce"},
    "one gradient in each group": {"strategy": "allreduce", "bucket_bytes": 1},
    "auto": {},
    "dgc that sends all": {"strategy": "allreduce", "compression": train.DGC(sparsity=0.0, warm_up_steps=0)},
    "parameter servers": {"strategy": "ps"},
}


@pytest.mark.parametrize("kind", pairs.KINDS)
@pytest.mark.parametrize("name", EXACT)
def test_exact_strategies_equal_one_large_batch(tmp_path: Path, kind: str, name: str) -> None:
    backend = "nccl" if kind == pairs.NCCL else "gloo"
    pairs.run(kind, as_one_large_batch, backend, torch.float64, 1e-9, EXACT[name], folder=tmp_path)


@pytest.mark.parametrize("kind", pairs.KINDS)
@pytest.mark.parametrize("wire", ["bf16", "fp16"])
def test_gradients_in_sixteen_bits_are_near(tmp_path: Path, kind: str, wire: str) -> None:
    backend = "nccl" if kind == pairs.NCCL else "gloo"
    options = {"strategy": "allreduce", "compression": wire}
    pairs.run(kind, as_one_large_batch, backend, torch.float32, 3e-2, options, folder=tmp_path)


def compressed(options: dict[str, Any], steps: int) -> None:
    """Fit random labels with compressed gradients: the ranks end with the same bits, and the loss falls."""
    world = train.init()
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(6, 256), nn.Tanh(), nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 3)).to(
        world.device
    )
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    train.data_parallel(model, optimizer, **options)
    x, y = examples(torch.float32, 64)
    mine_x, mine_y = x.chunk(2)[world.rank], y.chunk(2)[world.rank]
    losses = []
    for _ in range(steps):
        learn(model, optimizer, mine_x, mine_y)
        losses.append(float(nn.functional.cross_entropy(model(x), y)))
    first, second = world.gather(digest(model))
    assert first == second, "the same bits on both ranks"
    assert losses[-1] < 0.5 * losses[0], losses[:: steps // 10]
    strategy = dataparallel.strategy_of(model)
    print("chosen", strategy.choice() if strategy is not None else None)
    train.shutdown()


COMPRESSED = {
    "dgc": {"strategy": "allreduce", "compression": train.DGC(sparsity=0.99, warm_up_steps=20)},
    "dgc, fp16": {
        "strategy": "allreduce",
        "compression": train.DGC(sparsity=0.99, warm_up_steps=20, half_values=True, clip_norm=5.0),
    },
    "powersgd": {"strategy": "allreduce", "compression": train.PowerSGD(rank=2)},
    "auto": {"compression": "auto"},
}


@pytest.mark.parametrize("kind", pairs.KINDS)
@pytest.mark.parametrize("name", COMPRESSED)
def test_compressed_gradients_learn_the_same_on_both_ranks(tmp_path: Path, kind: str, name: str) -> None:
    pairs.run(kind, compressed, COMPRESSED[name], 200, folder=tmp_path)


def small_things() -> None:
    """Accumulation, parameters that one rank does not use, statistics of batch normalisation, Horovod's calls."""
    world = train.init()
    model = train.data_parallel(nn.Linear(2, 1).to(world.device), strategy="allreduce")
    x = torch.ones(1, 2, device=world.device) * (1 + world.rank)
    with train.no_sync(model):
        model(x).sum().backward()
    assert torch.equal(model.weight.grad, x), "nothing is exchanged yet"
    model(x).sum().backward()
    assert model.weight.grad.tolist() == [[3.0, 3.0]], "the mean of 1 + 1 and 2 + 2"

    both = nn.ModuleList([nn.Linear(2, 1), nn.Linear(2, 1)]).to(world.device)
    train.data_parallel(both, strategy="allreduce", unused_parameters=True)
    both[world.rank](torch.ones(1, 2, device=world.device)).sum().backward()
    assert [each.weight.grad.tolist() for each in both] == [[[0.5, 0.5]]] * 2

    normed = nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 1)).to(world.device)
    train.data_parallel(normed, strategy="allreduce")
    for _ in range(3):
        normed(torch.randn(8, 2, device=world.device) + world.rank).sum().backward()
    normed(torch.randn(8, 2, device=world.device))
    means = world.gather(normed[0].weight.grad.tolist())
    assert means[0] == means[1]

    assert train.world_size() == hvd.size() == 2
    for device in ("cuda", "cpu"):
        total = hvd.allreduce(torch.ones(3, device=device) * (1 + world.rank), op=hvd.Sum)
        assert total.tolist() == [3.0] * 3, device
        assert hvd.broadcast(torch.full((2,), float(world.rank), device=device), root_rank=1).tolist() == [1.0, 1.0]
    train.shutdown()


@pytest.mark.parametrize("kind", pairs.KINDS)
def test_small_things(tmp_path: Path, kind: str) -> None:
    pairs.run(kind, small_things, folder=tmp_path)


def overflowing(compression: str) -> None:
    """A step whose fp16 gradients overflow is passed over by both ranks together."""
    world = train.init()
    torch.manual_seed(1)
    model = nn.Linear(8, 8).to(world.device)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    train.data_parallel(model, optimizer, strategy="allreduce", compression=compression)
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0**16)
    scales = []
    for step in range(6):
        x = torch.randn(4, 8, device=world.device)
        with torch.autocast("cuda", dtype=torch.float16):
            loss = model(x).square().mean() * (1e4 if step == 2 and world.rank == 1 else 1)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    told = world.gather([scales, digest(model)])
    assert told[0] == told[1]
    assert min(scales) < 2.0**16, "it did overflow"
    assert all(torch.isfinite(each).all() for each in model.parameters())
    train.shutdown()


@pytest.mark.parametrize("compression", ["none", "fp16"])
def test_an_overflow_is_passed_over_by_all(tmp_path: Path, compression: str) -> None:
    pairs.run(pairs.NCCL, overflowing, compression, folder=tmp_path)


def table_of_rows(optimizer_name: str) -> None:
    """Rows of an embedding table travel by row to a server that holds them on the GPU."""
    world = train.init()
    torch.manual_seed(1)
    table = nn.Embedding(50, 4, sparse=True).to(world.device)
    alone = copy.deepcopy(table)
    kind = getattr(torch.optim, optimizer_name)
    optimizer, theirs = kind(table.parameters(), lr=0.1), kind(alone.parameters(), lr=0.1)
    train.data_parallel(table, optimizer, strategy="ps")
    for step in range(5):
        rows = torch.tensor([step, step + 1, 7], device=world.device)
        optimizer.zero_grad()
        (table(rows + 10 * world.rank).square().sum()).backward()
        optimizer.step()
        theirs.zero_grad()
        (torch.cat([alone(rows), alone(rows + 10)]).square().sum() / 2).backward()
        theirs.step()
    torch.testing.assert_close(table.weight.detach(), alone.weight.detach())
    train.shutdown()


@pytest.mark.parametrize("optimizer", ["SGD", "Adagrad", "SparseAdam"])
def test_rows_of_a_table_on_a_server_with_a_gpu(tmp_path: Path, optimizer: str) -> None:
    pairs.run(pairs.SHARES, table_of_rows, optimizer, folder=tmp_path)
