"""Gradients of a GPU on their way to parameter servers, in pinned memory.

A GPU copies to pinned memory several times faster than to any other, and without holding up this process. The memory is
made in the first step and used again in each later one.
"""

from __future__ import annotations

import torch

from oarlock.train import errors


class Staging:
    """The memory of the CPU for one worker's gradients, by the number of the parameter."""

    def __init__(self) -> None:
        self._kept: dict[int, torch.Tensor] = {}
        self._streams: set[torch.cuda.Stream] = set()

    def begin(self, number: int, tensor: torch.Tensor | None) -> torch.Tensor | None:
        """Return the tensor as contiguous memory of the CPU. Its numbers are there after `finish`."""
        if tensor is None or tensor.device.type != "cuda":
            return at_hand(tensor)
        _refuse_sparse(tensor)
        kept = self._kept.get(number)
        if kept is None or kept.shape != tensor.shape or kept.dtype != tensor.dtype:
            kept = self._kept[number] = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=True)
        kept.copy_(tensor.detach(), non_blocking=True)
        self._streams.add(torch.cuda.current_stream(tensor.device))
        return kept

    def finish(self) -> None:
        """Wait for the copies."""
        for stream in self._streams:
            stream.synchronize()
        self._streams.clear()


def at_hand(tensor: torch.Tensor | None) -> torch.Tensor | None:
    """Return the tensor as contiguous memory of the CPU."""
    if tensor is None:
        return None
    _refuse_sparse(tensor)
    return tensor.detach().to("cpu").contiguous()


def _refuse_sparse(tensor: torch.Tensor) -> None:
    if tensor.is_sparse:
        raise errors.StateError(
            "a gradient is sparse, and its parameter does not belong to an Embedding(sparse=True): use sparse=False"
        )
