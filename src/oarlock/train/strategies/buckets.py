"""Buckets: gradients that travel together, sorted once and for ever.

Parameters are sorted from the last layer to the first, which is about the order in which gradients become ready. A
bucket travels in the type of its parameters, or in a shorter one (fp16, bf16): then it is rounded once before the sum
and within the sum, and every rank gets the same rounded mean.

The mean is taken before the sum, so that a sum of fp16 values does not overflow.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import distributed, nn

from oarlock.train import errors, worlds
from oarlock.train.measuring import noise as noises
from oarlock.train.measuring.waiting import Waiting
from oarlock.train.sharing import crews

BUCKET_BYTES = 4 << 20
"""On a processor. Over 100 Mbit/s and 1 Gbit/s steps take equally long with 1 to 8 MB, and longer with more."""
GPU_BUCKET_BYTES = 25 << 20
"""On a GPU, as in DistributedDataParallel: there a sum costs more to begin, and links are faster."""
FIRST_BUCKET_BYTES = 1 << 20  # ready early: the exchange starts while most of the backward pass is still to come


class Bucket:
    """The gradients of some parameters. With `unused`, one more number for each says on how many ranks it was made."""

    def __init__(
        self, named: Sequence[tuple[str, nn.Parameter]], ranks: int, unused: bool, wire: torch.dtype | None = None
    ) -> None:
        self.names = [name for name, _ in named]
        self.parameters = [parameter for _, parameter in named]
        self._ranks = ranks
        self._made = [False] * len(named)
        self._unmade = len(named)
        sizes = [parameter.numel() for parameter in self.parameters]
        self._flat = self.parameters[0].new_zeros(sum(sizes) + (len(named) if unused else 0), requires_grad=False)
        self._sizes = [*sizes, len(named) if unused else 0]
        self._lay_out()
        shorter = wire is not None and self._flat.is_floating_point() and self._flat.dtype.itemsize > wire.itemsize
        self._sent = torch.empty_like(self._flat, dtype=wire) if shorter else self._flat
        self._sum: crews.Sum | None = None
        self._work: Any = None
        self.norms: tuple[torch.Tensor, torch.Tensor] | None = None  # squared: this rank's, and the mean's

    def _lay_out(self) -> None:
        *views, self._makers = torch.split(self._flat, self._sizes)
        self._views = [view.view(parameter.shape) for view, parameter in zip(views, self.parameters)]
        self._gradients = self._flat[: sum(self._sizes[:-1])]

    @property
    def sent(self) -> torch.Tensor:
        """The numbers that travel."""
        return self._sent

    def share(self, total: crews.Sum | None) -> None:
        """Travel by the memory of this sum from now on, or by gloo again."""
        sent = total.ours if total is not None else self._sent.clone()
        if self._sent is self._flat:
            self._flat = sent
            self._lay_out()
        self._sent, self._sum = sent, total

    @property
    def full(self) -> bool:
        return not self._unmade

    @property
    def sent_bytes(self) -> float:
        """The bytes that this rank sends for this bucket, by a ring."""
        if self._sum is not None:
            return self._sum.sent_bytes
        return 2 * (self._ranks - 1) / self._ranks * self._sent.numel() * self._sent.element_size()

    def mark(self, place: int) -> None:
        if self._made[place] or self._work is not None:
            raise errors.StateError(
                f"{self.names[place]} got a second gradient in one backward pass, after the first was sent. "
                "Sum the losses before backward()."
            )
        gradient = self.parameters[place].grad
        if gradient is not None and gradient.is_sparse:
            raise errors.StateError(
                f"{self.names[place]} has a sparse gradient, which allreduce does not exchange: use "
                'sparse=False, or parameter servers (strategy="ps")'
            )
        self._made[place] = True
        self._unmade -= 1

    def missing(self) -> list[str]:
        return [name for name, made in zip(self.names, self._made) if not made]

    def await_sum(self, waiting: Waiting) -> None:
        """Wait for the sum of a pass that an error has ended: it still writes into this memory."""
        if self._work is not None:
            with waiting, worlds.exchanging():
                worlds.finish(self._work)

    def clear(self) -> None:
        self._made = [False] * len(self._made)
        self._unmade = len(self._made)
        self._work = None
        self.norms = None

    def regroup(self, ranks: int) -> None:
        """Take the mean over another number of ranks from now on."""
        self._ranks = ranks
        self.clear()

    def start(self, measures: bool) -> None:
        with torch.no_grad():
            gradients = [parameter.grad for parameter in self.parameters]
            self._take(gradients)
            if measures:
                here = noises.squared_norm(self._gradients)
                self.norms = here, here
            self._flat.div_(self._ranks)
            if len(self._makers):
                made_here = [gradient is not None for gradient in gradients]
                self._makers.copy_(torch.tensor(made_here, dtype=self._makers.dtype))
            self._send()

    def start_zeros(self) -> None:
        """Take part in the sum without gradients, after an error: the other ranks wait for this bucket."""
        with torch.no_grad():
            self._flat.zero_()
            self._send()

    def _send(self) -> None:
        if self._sent is not self._flat:
            self._sent.copy_(self._flat)
        with worlds.exchanging():
            if self._sum is not None:
                self._work = self._sum.start()
            else:
                self._work = distributed.all_reduce(self._sent, async_op=True)

    def _take(self, gradients: Sequence[torch.Tensor | None]) -> None:
        """Copy the gradients side by side: those of this pass, and those that were accumulated before."""
        pairs = []
        for place, (view, gradient) in enumerate(zip(self._views, gradients)):
            if gradient is not None:
                pairs.append((view, gradient))
            elif self._made[place]:
                raise errors.StateError(
                    f"the gradient of {self.names[place]} was removed during the backward pass: do that after it"
                )
            else:
                view.zero_()
        _copy(pairs)

    def finish(self, waiting: Waiting) -> None:
        """Write the means into the gradients. A gradient that no rank has made stays as it is, mostly None: an
        optimizer passes over it.
        """
        with waiting, worlds.exchanging():
            worlds.finish(self._work)
        self._work = None
        with torch.no_grad():
            if self._sent is not self._flat:
                self._flat.copy_(self._sent)
            if self.norms is not None:
                self.norms = self.norms[0], noises.squared_norm(self._gradients)
            made = self._makers.tolist() or [1.0] * len(self.parameters)
            pairs = []
            for anywhere, view, parameter in zip(made, self._views, self.parameters):
                if not anywhere:
                    continue
                if parameter.grad is None:
                    parameter.grad = view.clone()
                else:
                    pairs.append((parameter.grad, view))
            _copy(pairs)


def _copy(pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> None:
    """Copy into the first tensor of each pair, by one call: it takes a third of the time of many for small tensors."""
    if pairs:
        into, values = zip(*pairs)
        torch._foreach_copy_(into, values)


def sort(
    named: Sequence[tuple[str, nn.Parameter]],
    bucket_bytes: int | None,
    ranks: int,
    unused: bool,
    wire: torch.dtype | None = None,
) -> list[Bucket]:
    """Return the buckets of these parameters, from the last parameter to the first. A bucket has one type and device.

    A bucket takes parameters up to `bucket_bytes` (None: as its device needs), or a single larger one; the first up to
    FIRST_BUCKET_BYTES.
    """
    groups: list[list[tuple[str, nn.Parameter]]] = []
    room = 0
    for name, parameter in reversed(named):
        size = parameter.numel() * parameter.element_size()
        last = groups[-1][-1][1] if groups else None
        if last is None or size > room or (last.dtype, last.device) != (parameter.dtype, parameter.device):
            groups.append([])
            most = bucket_bytes or default_bytes(parameter)
            room = most if len(groups) > 1 else min(most, FIRST_BUCKET_BYTES)
        groups[-1].append((name, parameter))
        room -= size
    return [Bucket(group, ranks, unused, wire) for group in groups]


def default_bytes(parameter: nn.Parameter) -> int:
    """Return the size of a bucket on this parameter's device."""
    return BUCKET_BYTES if parameter.device.type == "cpu" else GPU_BUCKET_BYTES
