"""Rows of a matrix, such as those of an embedding: their gradients, and the changes that an update has made to them."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from oarlock.train.servers.wire import frames, memory

_ROWWISE = frozenset({"Adagrad", "SparseAdam"})
"""Optimizers that change only the rows that have a gradient. SGD is one of them without momentum."""


@dataclass
class Rows:
    """The values of some rows (rows x columns). `numbers` are theirs in the piece (int64), ascending."""

    numbers: torch.Tensor
    values: torch.Tensor

    def views(self) -> list[memoryview]:
        """Return the memory of both, in the order of a body."""
        return [memory.view(self.numbers), memory.view(self.values)]


def expected(told: Any, shapes: Mapping[int, tuple[torch.dtype, Sequence[int]]]) -> dict[int, Rows]:
    """Return memory for the rows that a frame announces, by the number of the piece. `shapes` are the types and shapes
    of the pieces that travel by row. Raises Refused where the numbers of rows do not fit.
    """
    if not isinstance(told, Mapping):
        raise frames.Refused("the numbers of rows are not an object")
    found = {}
    for text, count in told.items():
        dtype, (most, columns) = shapes.get(int(text), (torch.float32, (-1, 0)))
        if type(count) is not int or not 0 <= count <= most:
            raise frames.Refused(f"{count!r} rows of piece {text}, which has {max(0, most)} that travel alone")
        found[int(text)] = Rows(
            torch.empty(count, dtype=torch.int64, device="cpu"), torch.empty(count, columns, dtype=dtype, device="cpu")
        )
    return found


def check(rows: Rows, most: int) -> None:
    """Raise Refused unless the numbers ascend from 0 to below `most`."""
    numbers = rows.numbers
    ascends = bool((numbers[1:] > numbers[:-1]).all())
    if len(numbers) and not (ascends and int(numbers[0]) >= 0 and int(numbers[-1]) < most):
        raise frames.Refused("the numbers of rows do not ascend, or are not there")


def mean(pushed: Sequence[Rows], count: int, shape: Sequence[int], device: torch.device) -> torch.Tensor:
    """Return the mean of `count` gradients, of which these have rows, as a sparse tensor. The order is that given."""
    numbers = torch.cat([each.numbers for each in pushed]).unique()
    total = pushed[0].values.new_zeros(len(numbers), shape[1])
    for each in pushed:
        total.index_add_(0, torch.searchsorted(numbers, each.numbers), each.values / count)
    return torch.sparse_coo_tensor(
        numbers.unsqueeze(0), total, tuple(shape), device=device, is_coalesced=True, check_invariants=False
    )


def unchecked() -> contextlib.AbstractContextManager[None]:
    """Return a context without checks of sparse tensors: all of them were made here. Without it torch warns."""
    found: contextlib.AbstractContextManager[None] = torch.sparse.check_sparse_tensor_invariants(enable=False)
    return found


def is_rowwise(kind: str, settings: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether this optimizer changes only the rows that have a gradient."""
    return kind in _ROWWISE or (
        kind == "SGD" and not any(each.get("momentum") or each.get("weight_decay") for each in settings)
    )


def of(gradient: torch.Tensor, start: int, stop: int) -> Rows:
    """Return the rows `start` to `stop` of a gradient on the CPU, which is sparse and coalesced, or dense."""
    if not gradient.is_sparse:
        return Rows(torch.arange(stop - start, device="cpu"), gradient[start:stop].contiguous())
    numbers = gradient.indices()[0]
    begin, end = torch.searchsorted(numbers, torch.tensor([start, stop], device="cpu")).tolist()
    return Rows((numbers[begin:end] - start).contiguous(), gradient.values()[begin:end].contiguous())


def sparse_parameters(model: nn.Module) -> set[int]:
    """Return the ids of the trained parameters whose gradients are sparse."""
    tables = [one for one in model.modules() if isinstance(one, (nn.Embedding, nn.EmbeddingBag)) and one.sparse]
    return {id(one.weight) for one in tables if one.weight.requires_grad}
