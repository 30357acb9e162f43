"""The exchanges that torch makes by itself for a model on several processes: their waiting and their bytes.

Tensor parallelism exchanges by functional collectives, and pipelining by messages between two ranks. torch offers no
hook for either, so the functions of its modules by which they start and wait are replaced here by ones that measure
them. They do nothing else, and nothing at all while no meter is open or a model is compiled. FSDP2 takes objects that
exchange for it (`measure`).

A collective is counted as the bytes that a rank sends in a ring.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed

from oarlock.train import worlds

if TYPE_CHECKING:
    from oarlock.train.strategies.strategy import Figures

_open: Figures | None = None
"""The figures to which present exchanges are added."""
_within = False
"""An exchange that is counted already calls another one."""
_replaced = False


def open_meter(figures: Figures | None) -> None:
    """Add the exchanges from now on to these figures, or to none."""
    global _open, _replaced
    _open = figures
    if figures is None or _replaced:
        return
    _replaced = True
    from torch.distributed import _functional_collectives as functional
    from torch.distributed.pipelining import schedules

    for module, name, count in (
        (functional, "all_reduce", _reduced),
        (functional, "all_gather_single", _gathered),
        (functional, "all_gather_tensor", _gathered),  # before torch 2.13
        (functional, "reduce_scatter_single", _scattered),
        (functional, "reduce_scatter_tensor", _scattered),
        (functional, "wait_tensor", _nothing),
        (schedules, "_batch_p2p", _sent),
        (schedules, "_wait_batch_p2p", _nothing),
    ):
        if hasattr(module, name):
            setattr(module, name, _measured(getattr(module, name), count))


def measure(module: Any, figures: Figures) -> bool:
    """Add the exchanges of an FSDP2 module to these figures. Return whether this torch can do so."""
    try:
        module.set_custom_all_gather(_Gather(figures))
        module.set_custom_reduce_scatter(_Scatter(figures))
    except (AttributeError, ValueError):  # an earlier torch; a module with parameters on several meshes
        return False
    return True


def _measured(exchange: Callable[..., Any], count: Callable[..., float]) -> Callable[..., Any]:
    @functools.wraps(exchange)
    def measured(*args: Any, **kwargs: Any) -> Any:
        global _within
        figures = _open
        if figures is None or _within or torch.compiler.is_compiling():
            return exchange(*args, **kwargs)
        _within = True
        try:
            with figures.waiting:
                result = exchange(*args, **kwargs)
            figures.sent_bytes += round(count(result, *args, **kwargs))
        finally:
            _within = False
        return result

    return measured


def _reduced(result: torch.Tensor, tensor: torch.Tensor, *args: Any, **kwargs: Any) -> float:
    group: Any = kwargs["group"] if "group" in kwargs else args[1]
    if isinstance(group, tuple):  # a mesh and one of its dimensions
        ranks = group[0].size(group[1])
    else:
        ranks = group.size() if hasattr(group, "size") else worlds.init().world_size
    return 2 * (ranks - 1) / ranks * tensor.nbytes


def _gathered(result: torch.Tensor, tensor: torch.Tensor, *args: Any, **kwargs: Any) -> float:
    return result.nbytes - tensor.nbytes


def _scattered(result: torch.Tensor, tensor: torch.Tensor, *args: Any, **kwargs: Any) -> float:
    return tensor.nbytes - result.nbytes


def _sent(result: Any, messages: Sequence[Any], *args: Any, **kwargs: Any) -> float:
    return sum(each.tensor.nbytes for each in messages if each.op is distributed.isend)


def _nothing(result: Any, *args: Any, **kwargs: Any) -> float:
    return 0


# Torch has given both exchanges new names, and warns of the older ones.
_gather = getattr(distributed, "all_gather_single", None) or distributed.all_gather_into_tensor
_reduce_scatter = getattr(distributed, "reduce_scatter_single", None) or distributed.reduce_scatter_tensor


class _Exchange:
    """An exchange of FSDP2, in memory of its own."""

    def __init__(self, figures: Figures) -> None:
        self._figures = figures

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        return torch.empty(*size, dtype=dtype, device=device)


class _Gather(_Exchange):
    """FSDP2's gathering of parameters, measured."""

    def __call__(
        self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: Any, async_op: bool = False
    ) -> Any:
        self._figures.sent_bytes += output_tensor.nbytes - input_tensor.nbytes
        with self._figures.waiting:
            return _gather(output_tensor, input_tensor, group=group, async_op=async_op)


class _Scatter(_Exchange):
    """FSDP2's sum of gradients, measured."""

    def __call__(
        self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: Any, op: Any, async_op: bool = False
    ) -> Any:
        self._figures.sent_bytes += input_tensor.nbytes - output_tensor.nbytes
        with self._figures.waiting:
            return _reduce_scatter(output_tensor, input_tensor, group=group, op=op, async_op=async_op)
