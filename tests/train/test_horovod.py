"""A script for Horovod, with its import line changed: the meaning of each call, on two real ranks."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.train import crew
from torch import nn

from oarlock.train import errors
from oarlock.train import horovod as hvd
from oarlock.train.strategies import choices


def tensors_travel() -> None:
    hvd.init()
    assert hvd.is_initialized()
    rank, size = hvd.rank(), hvd.size()
    assert (rank, size, hvd.local_rank()) in ((0, 2, 0), (1, 2, 1))
    mine = torch.tensor([1.0, 10.0]) * (rank + 1)
    assert hvd.allreduce(mine).tolist() == [1.5, 15.0]
    assert hvd.allreduce(mine, op=hvd.Sum, name="sum").tolist() == [3.0, 30.0]
    assert hvd.allreduce(mine, average=False).tolist() == [3.0, 30.0]
    assert mine.tolist() == [1.0 * (rank + 1), 10.0 * (rank + 1)], "the argument stays as it is"
    assert hvd.allreduce(torch.tensor(rank), op=hvd.Sum).item() == 1
    with pytest.raises(errors.StateError, match="not exact"):
        hvd.allreduce(torch.tensor(rank))
    assert hvd.allreduce(mine, op=hvd.Max).tolist() == [2.0, 20.0]
    assert hvd.allreduce(mine, op=hvd.Min).tolist() == [1.0, 10.0]
    assert hvd.allreduce(mine, op=hvd.Product).tolist() == [2.0, 200.0]
    assert hvd.allreduce(mine, None, None, hvd.Compression.fp16, hvd.Sum, 0.5, 4.0).tolist() == [6.0, 60.0]
    assert hvd.allreduce(torch.ones(3, 2).t() * rank).tolist() == [[0.5] * 3] * 2, "not contiguous"
    with pytest.raises(errors.StateError, match="the operations that Oarlock knows"):
        hvd.allreduce(mine, op=hvd.Adasum)
    with pytest.raises(errors.StateError, match="no process sets"):
        hvd.allreduce(mine, process_set=hvd)
    with pytest.raises(AttributeError, match=r"has no elastic: docs/training\.md"):
        hvd.elastic  # noqa: B018
    there = hvd.allreduce_(mine)
    assert there is mine
    assert mine.tolist() == [1.5, 15.0]
    gathered = hvd.allgather(torch.full((rank + 1, 2), float(rank)))
    assert gathered.tolist() == [[0.0, 0.0], [1.0, 1.0], [1.0, 1.0]], "the first dimensions differ"
    assert hvd.broadcast(torch.tensor([rank]), root_rank=1).tolist() == [1]
    assert hvd.broadcast_object({"epoch": rank}, root_rank=1) == {"epoch": 1}
    assert hvd.allgather_object(rank) == [0, 1]
    hvd.barrier()


def results_by_handle() -> None:
    """Each call gives what its twin without a handle gives, in whatever order the handles are synchronized."""
    hvd.init()
    rank = hvd.rank()
    mine = torch.arange(3.0) + 10 * rank
    ops = [{"op": op} for op in (hvd.Average, hvd.Sum, hvd.Min, hvd.Max, hvd.Product)]
    options = [*ops, {"average": False}, {"op": hvd.Sum, "prescale_factor": 0.5, "postscale_factor": 4.0}]
    begun = [hvd.allreduce_async(mine, **each) for each in options]  # type: ignore[arg-type]
    gathered = hvd.allgather_async(mine[: rank + 1])
    given = hvd.broadcast_async(mine, root_rank=1)
    assert mine.tolist() == [10.0 * rank, 10.0 * rank + 1, 10.0 * rank + 2], "the argument stays as it is"
    assert hvd.synchronize(given).tolist() == [10.0, 11.0, 12.0]
    assert torch.equal(hvd.synchronize(gathered), hvd.allgather(mine[: rank + 1]))
    for handle, each in zip(reversed(begun), reversed(options), strict=True):
        assert torch.equal(hvd.synchronize(handle), hvd.allreduce(mine, **each)), each  # type: ignore[arg-type]
    in_place, replaced = mine.clone(), mine.clone()
    handles = hvd.allreduce_async_(in_place), hvd.broadcast_async_(replaced, root_rank=0)
    assert hvd.synchronize(handles[0]) is in_place
    assert hvd.synchronize(handles[1]) is replaced
    assert (in_place.tolist(), replaced.tolist()) == ([5.0, 6.0, 7.0], [0.0, 1.0, 2.0])
    with pytest.raises(errors.StateError, match="takes each handle once"):
        hvd.synchronize(handles[0])
    with pytest.raises(errors.StateError, match="not exact"):
        hvd.allreduce_async(torch.tensor(rank))
    with pytest.raises(errors.StateError, match="no process sets"):
        hvd.broadcast_async(mine, 0, process_set=hvd)


def a_poll_does_not_wait() -> None:
    hvd.init()
    if hvd.rank() == 1:
        hvd.allgather_object(None)
    handle = hvd.allreduce_async(torch.ones(2))
    if hvd.rank() == 0:
        assert not hvd.poll(handle), "the other rank has not begun"
        hvd.allgather_object(None)
    while not hvd.poll(handle):
        time.sleep(0.001)
    assert hvd.synchronize(handle).tolist() == [1.0, 1.0]


def pieces_travel() -> None:
    hvd.init()
    rank = hvd.rank()
    mine = torch.arange(10.0).view(5, 2) * (rank + 1)
    for op in (hvd.Average, hvd.Sum, hvd.Min, hvd.Max, hvd.Product):
        whole = hvd.allreduce(mine, op=op)
        assert torch.equal(hvd.reducescatter(mine, op=op), whole[:3] if rank == 0 else whole[3:]), op
    part = hvd.reducescatter(mine, op=hvd.Sum, prescale_factor=2.0, postscale_factor=0.5)
    assert torch.equal(part, hvd.allreduce(mine, op=hvd.Sum)[slice(0, 3) if rank == 0 else slice(3, 5)])
    assert hvd.reducescatter(mine, compression=hvd.Compression.fp16).dtype == mine.dtype
    assert hvd.alltoall(torch.arange(4) + 10 * rank).tolist() == ([0, 1, 10, 11] if rank == 0 else [2, 3, 12, 13])
    rows = torch.arange(3).view(3, 1) + 10 * rank
    got, lengths = hvd.alltoall(rows, splits=[3, 0] if rank == 0 else torch.tensor([1, 2]))
    assert (got.tolist(), lengths.tolist()) == (
        ([[0], [1], [2], [10]], [3, 1]) if rank == 0 else ([[11], [12]], [0, 2])
    )
    later = hvd.alltoall_async(torch.tensor([rank, rank]))
    assert hvd.synchronize(later).tolist() == [0, 1]
    with pytest.raises(errors.StateError, match="cannot be divided evenly"):
        hvd.alltoall(rows)
    with pytest.raises(errors.StateError, match="do not divide 3 rows"):
        hvd.alltoall(rows, splits=[1, 1])
    for call in (hvd.alltoall, hvd.reducescatter):
        with pytest.raises(errors.StateError, match=r"give it tensor\.detach"):
            call(torch.ones(2, requires_grad=True))


def gradients_pass_through() -> None:
    """A loss over the examples of all ranks: each call has the gradient that it has in Horovod 0.28."""
    hvd.init()
    rank = hvd.rank()
    x = torch.full((rank + 1, 2), 1.0 + rank, requires_grad=True)
    weights = torch.arange(3.0).view(3, 1) * (rank + 1)
    (hvd.allgather(x) * weights).sum().backward()
    mean = torch.arange(3.0).view(3, 1) * 1.5
    assert torch.equal(x.grad, (mean[:1] if rank == 0 else mean[1:]).expand(-1, 2))
    for op, expected in ((hvd.Average, 1.5), (hvd.Sum, 3.0)):
        y = torch.ones(2, requires_grad=True)
        (hvd.allreduce(y, op=op) * (rank + 1)).sum().backward()
        assert y.grad.tolist() == [expected] * 2
    z = torch.ones(2, requires_grad=True)
    (hvd.broadcast(z, root_rank=1) * (rank + 1)).sum().backward()
    assert z.grad.tolist() == ([1.5] * 2 if rank == 1 else [0.0] * 2)


def state_travels() -> None:
    hvd.init()
    torch.manual_seed(hvd.rank())
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1 * (hvd.rank() + 1), betas=(0.8, 0.9))
    if hvd.rank() == 1:
        for _ in range(3):
            model(torch.randn(4, 3)).sum().backward()
            optimizer.step()
    hvd.broadcast_parameters(model.state_dict(), root_rank=1)
    hvd.broadcast_parameters(model.named_parameters(), root_rank=1)
    hvd.broadcast_parameters(list(model.parameters()), root_rank=1)
    hvd.broadcast_optimizer_state(optimizer, root_rank=1)
    assert optimizer.param_groups[0]["lr"] == 0.2
    assert optimizer.param_groups[0]["betas"] == (0.8, 0.9)
    assert [int(optimizer.state[one]["step"]) for one in model.parameters()] == [3] * 4
    for one in (*model.state_dict().values(), *(optimizer.state[each]["exp_avg"] for each in model.parameters())):
        assert torch.equal(hvd.broadcast(one, root_rank=1), one)
    assert any(optimizer.state[each]["exp_avg"].any() for each in model.parameters())


def stepped(*, passes: int = 1, **options: object) -> torch.Tensor:
    """Return the weight after one step from 0 at the learning rate 1: rank r's pass p has the gradient 10 r + p + 1."""
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    told = model.named_parameters()
    optimizer = hvd.DistributedOptimizer(optimizer, told, backward_passes_per_step=passes, **options)  # type: ignore[arg-type]
    optimizer.zero_grad()
    for number in range(passes):
        model(torch.tensor([[10.0 * hvd.rank() + number + 1]])).sum().backward()
    optimizer.synchronize()
    with optimizer.skip_synchronize():
        optimizer.step()
    scheduler.step()
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.1)
    return -model.weight.detach().view(())


def gradients_are_averaged() -> None:
    hvd.init()
    assert stepped().item() == 6.0, "of 1 and 11"
    assert stepped(op=hvd.Sum).item() == 12.0
    assert stepped(passes=3).item() == 21.0, "of 1 + 2 + 3 and 11 + 12 + 13"
    assert stepped(compression=hvd.Compression.fp16).item() == 6.0
    assert stepped(gradient_predivide_factor=2.0, num_groups=2).item() == 6.0
    with pytest.raises(errors.StateError, match="the operations that Oarlock knows"):
        stepped(op=hvd.Adasum)
    table = nn.Embedding(3, 2, sparse=True)
    hvd.DistributedOptimizer(torch.optim.SGD(table.parameters(), 1.0), sparse_as_dense=True)
    table(torch.tensor([hvd.rank()])).sum().backward()
    assert table.weight.grad.tolist() == [[0.5, 0.5], [0.5, 0.5], [0.0, 0.0]]
    twice = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(twice.weight)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(twice.parameters(), 1.0), backward_passes_per_step=2)
    for _ in range(2):
        optimizer.zero_grad()
        twice(torch.ones(1, 1) * hvd.rank()).sum().backward()
        assert twice.weight.grad.item() == hvd.rank(), "the first pass is this rank's own"
        twice(torch.ones(1, 1) * hvd.rank()).sum().backward()
        assert twice.weight.grad.item() == 1.0, "0 + 0 and 1 + 1"
        optimizer.step()


class Failing(torch.autograd.Function):
    """The input, with a backward pass that fails."""

    @staticmethod
    def forward(context: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("out of memory")


def a_pass_that_failed_holds_nothing_back() -> None:
    hvd.init()
    model = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False))
    hvd.broadcast_parameters(model.state_dict())
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 1.0), backward_passes_per_step=2)
    x = torch.ones(1, 1) * hvd.rank()
    with pytest.raises(RuntimeError, match="out of memory"):
        model[1](Failing.apply(model[0](x))).sum().backward()
    for _ in range(2):
        optimizer.zero_grad()
        for _ in range(2):
            model(x).sum().backward()
        assert len(set(hvd.allgather_object(model[0].weight.grad.item()))) == 1, "the mean of both ranks"


def sums_are_not_summed_again() -> None:
    hvd.init()
    model = nn.Linear(1, 1, bias=False)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 1.0), op=hvd.Sum)

    def backward() -> float:
        model(torch.ones(1, 1) * (hvd.rank() + 1)).sum().backward()
        return float(model.weight.grad)

    for finish in (optimizer.zero_grad, lambda: optimizer.zero_grad(set_to_none=False), optimizer.step):
        assert backward() == 3.0
        finish()
    model.zero_grad()
    assert backward() == 3.0
    with pytest.raises(errors.StateError, match="Use backward_passes_per_step"):
        backward()


def the_job_file_wins() -> None:
    """Its compression travels; what Horovod's calls do not have is refused, and not passed over."""
    hvd.init()
    fine = 1 + 2**-20  # 16 bits do not have it

    def sent_as(told: str, compression: torch.dtype | None) -> float:
        os.environ[choices.VARIABLE] = told
        model = nn.Linear(1, 1, bias=False)
        optimizer = torch.optim.SGD(model.parameters(), 1.0)
        hvd.DistributedOptimizer(optimizer, compression=compression)
        (model.weight * fine).sum().backward()
        return float(model.weight.grad)

    whole = float(torch.tensor(fine))
    assert sent_as("", None) == whole
    assert sent_as('{"compression": "bf16"}', None) == 1.0
    assert sent_as('{"kind": "allreduce", "compression": "fp16"}', None) == 1.0
    assert sent_as('{"compression": "none"}', hvd.Compression.fp16) == whole
    assert sent_as('{"kind": "auto", "bucket_bytes": 4096}', hvd.Compression.bf16) == 1.0
    for refused in ("ps", "none"):
        with pytest.raises(errors.StateError, match=f"asks for strategy {refused}"):
            sent_as(json.dumps({"kind": refused}), None)
    for refused in ("dgc", "powersgd", "auto"):
        with pytest.raises(errors.StateError, match=f"asks for compression {refused}"):
            sent_as(json.dumps({"compression": refused}), None)


def alone() -> None:
    hvd.init()
    assert (hvd.size(), hvd.rank(), hvd.local_size(), hvd.cross_size(), hvd.cross_rank()) == (1, 0, 1, 1, 0)
    assert (bool(hvd.nccl_built()), hvd.mpi_threads_supported()) == (torch.distributed.is_nccl_available(), False)
    assert stepped(passes=2).item() == 3.0
    assert hvd.allgather(torch.ones(2, 2)).shape == (2, 2)
    mine = torch.arange(2.0)
    begun = hvd.allreduce_async(mine), hvd.allgather_async(mine), hvd.broadcast_async(mine, 0), hvd.alltoall_async(mine)
    for handle in (*begun, hvd.reducescatter_async(mine)):
        assert hvd.poll(handle)
        assert torch.equal(hvd.synchronize(handle), mine)
    hvd.broadcast_parameters({"weight": torch.ones(1)})
    hvd.broadcast_optimizer_state(torch.optim.SGD([nn.Parameter(torch.ones(1))], 0.1))


@pytest.mark.parametrize(
    "scenario",
    [
        tensors_travel,
        results_by_handle,
        a_poll_does_not_wait,
        pieces_travel,
        gradients_pass_through,
        state_travels,
        gradients_are_averaged,
        a_pass_that_failed_holds_nothing_back,
        sums_are_not_summed_again,
        the_job_file_wins,
        alone,
    ],
)
def test_the_calls_of_horovod(tmp_path: Path, scenario: Callable[[], None]) -> None:
    ranks = 1 if scenario is alone else 2
    codes = crew.run(scenario, folder=tmp_path, world_size=ranks, timeout_s=240)
    assert codes == [0] * ranks, crew.output(tmp_path, ranks)
