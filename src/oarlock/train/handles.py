"""Horovod's calls by handle: an exchange begins now, and `synchronize` waits for its result.

All ranks must begin their exchanges in the same order, and those without a handle too: the backends match them by it.
Handles may be synchronized in any order. Where ranks give pieces of different sizes (`allgather_async`,
`alltoall_async`), the call waits until all ranks have told theirs. No gradient passes through these calls.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import distributed

from oarlock.train import errors, reductions, worlds
from oarlock.train.strategies import replicas


class _UnderWay(NamedTuple):
    """An exchange, None in a world of one process, and what makes its result once it is over."""

    work: Any
    result: Callable[[], Any]


_under_way: dict[int, _UnderWay] = {}
_numbers = itertools.count()


def poll(handle: int) -> bool:
    """Return whether the exchange is over, so that `synchronize` does not wait."""
    work = _known(handle).work
    return work is None or bool(work.is_completed())


def synchronize(handle: int) -> Any:
    """Wait for the exchange, and return its result. A handle is good for one call."""
    exchange = _known(handle)
    del _under_way[handle]
    if exchange.work is not None:
        exchange.work.wait()
    return exchange.result()


def allreduce_async(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: None = None,
) -> int:
    """Begin `allreduce`; return its handle."""
    return allreduce_async_(reductions.copy(tensor), average, name, op, prescale_factor, postscale_factor, process_set)


def allreduce_async_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: None = None,
) -> int:
    """Begin `allreduce_`; return its handle. The tensor has its new values after `synchronize`."""
    reductions.refuse_sets(process_set)
    kind, held = reductions.kind_of(average, op, tensor), tensor.detach()
    if prescale_factor != 1.0:
        held.mul_(prescale_factor)
    there = _travelling(held)
    work = distributed.all_reduce(there, op=reductions.OPS[kind], async_op=True) if _together() else None

    def result() -> torch.Tensor:
        _arrive(held, there)
        reductions.finished(held, kind, postscale_factor)
        return tensor

    return _begun(work, result)


def allgather_async(tensor: torch.Tensor, name: str | None = None, process_set: None = None) -> int:
    """Begin `allgather`; return its handle."""
    reductions.refuse_sets(process_set)
    if not _together():
        return _begun(None, lambda: reductions.copy(tensor))
    lengths = [int(length) for length in worlds.init().gather(tensor.shape[0])]
    padded = tensor.new_zeros((max(lengths), *tensor.shape[1:]))  # gloo gathers only pieces of one size
    padded[: len(tensor)] = tensor.detach()
    there = _travelling(padded)
    pieces = [torch.empty_like(there) for _ in lengths]
    work = distributed.all_gather(pieces, there, async_op=True)

    def result() -> torch.Tensor:
        return torch.cat([piece[:length] for piece, length in zip(pieces, lengths)]).to(tensor.device)

    return _begun(work, result)


def broadcast_async(tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: None = None) -> int:
    """Begin `broadcast`; return its handle."""
    return broadcast_async_(reductions.copy(tensor), root_rank, name, process_set)


def broadcast_async_(tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: None = None) -> int:
    """Begin `broadcast_`; return its handle. The tensor has its new values after `synchronize`."""
    reductions.refuse_sets(process_set)
    held = tensor.detach()
    there = _travelling(held)
    work = distributed.broadcast(there, src=root_rank, async_op=True) if _together() else None

    def result() -> torch.Tensor:
        _arrive(held, there)
        return tensor

    return _begun(work, result)


def reducescatter_async(
    tensor: torch.Tensor,
    name: str | None = None,
    op: str | None = None,
    process_set: None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Begin `reducescatter`; return its handle."""
    reductions.refuse_sets(process_set)
    _refuse_gradient(tensor, "reducescatter")
    kind, world = reductions.kind_of(None, op, tensor), worlds.init()
    mine = tensor.detach() * prescale_factor if prescale_factor != 1.0 else tensor.detach()
    parts = mine.tensor_split(world.world_size)  # the first ones have a row more, as in Horovod
    if not _together():
        return _begun(None, lambda: reductions.finished(reductions.copy(mine), kind, postscale_factor))
    padded = mine.new_zeros((world.world_size, len(parts[0]), *mine.shape[1:]))  # gloo takes only parts of one size
    for place, part in zip(padded, parts):
        place[: len(part)] = part
    there = _travelling(padded)
    reduced = torch.empty_like(there[0])
    work = distributed.reduce_scatter(reduced, list(there.unbind()), op=reductions.OPS[kind], async_op=True)
    own = len(parts[world.rank])
    return _begun(work, lambda: reductions.finished(reduced[:own].to(tensor.device), kind, postscale_factor))


def reducescatter(
    tensor: torch.Tensor,
    name: str | None = None,
    compression: torch.dtype | None = None,
    op: str | None = None,
    process_set: None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> torch.Tensor:
    """Return this rank's part of the mean over all ranks, or of another `op`: rows of the first dimension, which is
    divided evenly; the first ranks get a row more where that is not possible.
    """
    sent = reductions.shortened(tensor, compression)
    handle = reducescatter_async(sent, name, op, process_set, prescale_factor, postscale_factor)
    reduced: torch.Tensor = synchronize(handle).to(tensor.dtype)
    return reduced


def alltoall_async(
    tensor: torch.Tensor,
    splits: torch.Tensor | Sequence[int] | None = None,
    name: str | None = None,
    process_set: None = None,
) -> int:
    """Begin `alltoall`; return its handle."""
    reductions.refuse_sets(process_set)
    _refuse_gradient(tensor, "alltoall")
    world = worlds.init()
    sent = _splits(splits, tensor, world.world_size)
    received = [row[world.rank] for row in world.gather(sent)]
    there = _travelling(reductions.copy(tensor))
    arrived = there.new_empty((sum(received), *there.shape[1:]))
    work = distributed.all_to_all_single(arrived, there, received, sent, async_op=True) if _together() else None

    def result() -> Any:
        got = (arrived if work is not None else there).to(tensor.device)
        return got if splits is None else (got, torch.tensor(received, device="cpu"))

    return _begun(work, result)


def alltoall(
    tensor: torch.Tensor,
    splits: torch.Tensor | Sequence[int] | None = None,
    name: str | None = None,
    process_set: None = None,
) -> Any:
    """Give rank r the r-th piece of `tensor`, and return the pieces for this rank, one behind the other.

    `splits` are the lengths of the pieces, in rows of the first dimension; without them all are equal. With them the
    lengths of the pieces that arrived are returned too.
    """
    return synchronize(alltoall_async(tensor, splits, name, process_set))


def _splits(splits: torch.Tensor | Sequence[int] | None, tensor: torch.Tensor, ranks: int) -> list[int]:
    if splits is None and len(tensor) % ranks:
        raise errors.StateError(
            f"{len(tensor)} rows cannot be divided evenly among {ranks} ranks: give alltoall() their numbers as splits"
        )
    lengths = [len(tensor) // ranks] * ranks if splits is None else [int(each) for each in splits]
    if len(lengths) != ranks or sum(lengths) != len(tensor) or min(lengths) < 0:
        raise errors.StateError(
            f"splits={lengths} do not divide {len(tensor)} rows among {ranks} ranks: give one number of rows for each "
            "rank"
        )
    return lengths


def _refuse_gradient(tensor: torch.Tensor, call: str) -> None:
    if tensor.requires_grad and torch.is_grad_enabled():
        raise errors.StateError(f"no gradient passes through {call}() here: give it tensor.detach()")


def _together() -> bool:
    return worlds.init().world_size > 1


def _travelling(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(replicas.exchange_device(tensor.device))


def _arrive(tensor: torch.Tensor, there: torch.Tensor) -> None:
    if there is not tensor:
        tensor.copy_(there)


def _begun(work: Any, result: Callable[[], Any]) -> int:
    number = next(_numbers)
    _under_way[number] = _UnderWay(work, result)
    return number


def _known(handle: int) -> _UnderWay:
    if handle not in _under_way:
        raise errors.StateError(
            f"{handle!r} is not the handle of an exchange that is under way: synchronize() takes each handle once"
        )
    return _under_way[handle]
