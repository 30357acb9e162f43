"""Reductions over all ranks, as Horovod's calls name them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import distributed

from oarlock.train import errors, worlds
from oarlock.train.strategies import replicas

Average, Sum, Min, Max, Product, Adasum = "average", "sum", "min", "max", "product", "adasum"
OPS = {
    Average: distributed.ReduceOp.SUM,
    Sum: distributed.ReduceOp.SUM,
    Min: distributed.ReduceOp.MIN,
    Max: distributed.ReduceOp.MAX,
    Product: distributed.ReduceOp.PRODUCT,
}


def kind_of(average: bool | None, op: str | None, tensor: torch.Tensor) -> str:
    """Return the operation that a call asks for. StateError for one that is not known, or not exact for `tensor`."""
    kind = (Sum if average is False else Average) if op is None else op
    if kind not in OPS:
        raise errors.StateError(f"op={op!r} is not one of the operations that Oarlock knows: {', '.join(OPS)}")
    if kind == Average and not (tensor.is_floating_point() or tensor.is_complex()):
        raise errors.StateError(f"the mean of {tensor.dtype} is not exact: use op=Sum, or a tensor of floats")
    return kind


def reduce(tensor: torch.Tensor, kind: str, before: float = 1.0, after: float = 1.0) -> torch.Tensor:
    """Reduce over all ranks in place. The factors are applied before and after."""
    if before != 1.0:
        tensor.mul_(before)
    if worlds.init().world_size > 1:
        with travelling(tensor) as there:
            distributed.all_reduce(there, op=OPS[kind])
    return finished(tensor, kind, after)


def finished(tensor: torch.Tensor, kind: str, after: float = 1.0) -> torch.Tensor:
    """Make the mean of a sum over all ranks, in place, and apply the last factor."""
    if kind == Average and worlds.init().world_size > 1:
        tensor.div_(worlds.init().world_size)
    return tensor.mul_(after) if after != 1.0 else tensor


@contextlib.contextmanager
def travelling(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield the tensor for an exchange in place: on the GPU, where NCCL would not take one of the CPU."""
    there = tensor.to(replicas.exchange_device(tensor.device))
    yield there
    if there is not tensor:
        tensor.copy_(there)


def shortened(tensor: torch.Tensor, to: torch.dtype | None) -> torch.Tensor:
    """Return the tensor in the type in which it travels: a shorter one, for floats alone."""
    shorter = to is not None and tensor.is_floating_point() and tensor.dtype.itemsize > to.itemsize
    return tensor.to(to) if shorter else tensor


def copy(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().clone(memory_format=torch.contiguous_format)


def refuse_sets(process_set: object) -> None:
    if process_set is not None:
        raise errors.StateError("there are no process sets here: use the process groups of torch.distributed")
