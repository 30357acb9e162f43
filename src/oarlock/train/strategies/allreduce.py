"""Data parallelism: every rank computes the gradient of its own batch, and all step with the mean of them.

Parameters are sorted once into buckets, from the last layer to the first, which is about the order in which gradients
become ready. When the backward pass has made a bucket's gradients they are copied side by side and summed over the
ranks while it goes on; at its end the means are copied back.

Why not DistributedDataParallel: it sorts its buckets anew after the first step. A sum's last bits depend on where in a
bucket a number lies, so with three ranks or more a resumed run, which begins with the first sorting again, ends with
other weights than the run that was never interrupted. Here the sorting never changes. The model also stays the user's
own object: no wrapper, no `module.` in the names of its state.

A world of one needs none of this: nothing is attached.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, cast

import torch
from torch import distributed, nn

from oarlock.train import errors
from oarlock.train import noise as noises
from oarlock.train import world as worlds
from oarlock.train.waiting import Waiting

BUCKET_BYTES = 25 << 20
FIRST_BUCKET_BYTES = (
    1 << 20
)  # ready early, so that the exchange starts while most of the backward pass is still to come

_strategies: weakref.WeakKeyDictionary[nn.Module, AllReduce] = weakref.WeakKeyDictionary()


def data_parallel(model: nn.Module, *, unused_parameters: bool = False, bucket_bytes: int = BUCKET_BYTES) -> nn.Module:
    """Train `model` on all ranks' batches together. Returns the same model, with the chief's weights.

    Give `unused_parameters=True` where some backward passes do not reach every parameter; without it that is an error
    which names them.
    """
    strategy = AllReduce(unused_parameters=unused_parameters, bucket_bytes=bucket_bytes)
    strategy.attach(model)
    _strategies[model] = strategy
    return model


def no_sync(model: nn.Module) -> AbstractContextManager[None]:
    """Accumulate gradients of `model` over several backward passes: exchange them only in the first one after this."""
    if model not in _strategies:
        raise errors.StateError("this model was not given to data_parallel(): there is no exchange to hold back")
    return _strategies[model].no_sync()


def strategy_of(model: nn.Module) -> AllReduce | None:
    """What keeps this model together, where it was given to data_parallel()."""
    return _strategies.get(model)


def broadcast(model: nn.Module) -> None:
    """Make every rank's parameters and buffers the chief's."""
    if worlds.init().world_size > 1:
        _broadcast([tensor.detach() for tensor in (*model.parameters(), *model.buffers())])


class AllReduce:
    """The mean of all ranks' gradients, in every step.

    What it knows of itself: `exchanges` so far, the time spent `waiting` for them, and the gradients' `noise`; `share`
    is how many of this rank's examples are in a gradient, 0 where nobody said.
    """

    kind = "allreduce"

    def __init__(self, *, unused_parameters: bool = False, bucket_bytes: int = BUCKET_BYTES) -> None:
        self._world = worlds.init()
        self._unused = unused_parameters
        self._bucket_bytes = bucket_bytes
        self._exchanging = True
        self._in_backward = False
        self._buckets: list[_Bucket] = []
        self._started = 0
        self.exchanges = 0
        self.share = 0
        self.waiting = Waiting(self._world.device)
        self.noise = noises.Noise(self._world.world_size)
        self._measures = False

    def attach(self, model: nn.Module) -> nn.Module:
        if self._world.world_size == 1:
            return model
        named = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
        self._check_same(named)
        broadcast(model)
        self._buckets = _sorted_into_buckets(named, self._bucket_bytes, self._world.world_size, self._unused)
        for bucket in self._buckets:
            for place, parameter in enumerate(bucket.parameters):
                parameter.register_post_accumulate_grad_hook(self._hook(bucket, place))
        if any(True for _ in model.buffers()):
            model.register_forward_pre_hook(self._share_buffers)
        return model

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        before, self._exchanging = self._exchanging, False
        try:
            yield
        finally:
            self._exchanging = before

    def after_step(self, step: int) -> None:
        """Nothing: the gradients were exchanged within the step."""

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing is kept between steps."""

    def _hook(self, bucket: _Bucket, place: int) -> Any:
        def ready(parameter: torch.Tensor) -> None:
            if not self._exchanging:
                return
            if not self._in_backward:
                self._begin()
            bucket.mark(place)
            self._start_full()

        return ready

    def _begin(self) -> None:
        """The first gradient of a backward pass: be called when the pass is over."""
        self._in_backward, self._started = True, 0
        self._measures = self.noise.due() and self.share > 0
        for bucket in self._buckets:
            bucket.clear()
        torch.autograd.Variable._execution_engine.queue_callback(self._end)

    def _start_full(self) -> None:
        """Always in the same order: ranks whose buckets fill up in different orders would otherwise sum different
        things.
        """
        while self._started < len(self._buckets) and self._buckets[self._started].full:
            self._buckets[self._started].start(self._measures)
            self._started += 1

    def _end(self) -> None:
        self._in_backward = False
        missing = [name for bucket in self._buckets for name in bucket.missing()]
        if missing and not self._unused:
            some = ", ".join(missing[:3]) + (f" and {len(missing) - 3} more" if len(missing) > 3 else "")
            raise errors.StateError(
                f"the backward pass gave no gradient to {some}. "
                "If that is meant, use data_parallel(..., unused_parameters=True)"
            )
        for bucket in self._buckets[self._started :]:
            bucket.start(self._measures)
        for bucket in self._buckets:
            bucket.finish(self.waiting)
        self.waiting.settle()
        self.exchanges += 1
        if self._measures:
            self._take_norms()

    def _take_norms(self) -> None:
        norms = [bucket.norms for bucket in self._buckets if bucket.norms is not None]
        device = norms[0][0].device  # a model on several devices: the sums meet on the first
        local, mean = (torch.stack([pair[which].to(device) for pair in norms]).sum() for which in (0, 1))
        self.noise.take(local, mean, self.share)

    def _share_buffers(self, model: nn.Module, inputs: Any) -> None:
        """Running statistics are the chief's everywhere, as with DistributedDataParallel."""
        if model.training and torch.is_grad_enabled() and self._exchanging:
            _broadcast([buffer.detach() for buffer in model.buffers()])

    def _check_same(self, named: Sequence[tuple[str, nn.Parameter]]) -> None:
        described = [(name, tuple(parameter.shape), str(parameter.dtype)) for name, parameter in named]
        for rank, theirs in enumerate(self._world.gather(described)):
            if theirs != described:
                ours, other = next(pair for pair in zip((*described, None), (*theirs, None)) if pair[0] != pair[1])
                raise errors.StateError(
                    f"rank {rank} has another model: {other} where this rank has {ours}. "
                    "Build the same model on every rank."
                )


class _Bucket:
    """Gradients that travel together. With `unused`, one more number for each says on how many ranks it was made."""

    def __init__(self, named: Sequence[tuple[str, nn.Parameter]], ranks: int, unused: bool) -> None:
        self.names = [name for name, _ in named]
        self.parameters = [parameter for _, parameter in named]
        self._ranks = ranks
        self._made = [False] * len(named)
        sizes = [parameter.numel() for parameter in self.parameters]
        self._flat = self.parameters[0].new_zeros(sum(sizes) + (len(named) if unused else 0), requires_grad=False)
        *self._views, self._makers = torch.split(self._flat, [*sizes, len(named) if unused else 0])
        self._gradients = self._flat[: sum(sizes)]
        self._work: Any = None
        self.norms: tuple[torch.Tensor, torch.Tensor] | None = None  # squared: this rank's, and the mean's

    @property
    def full(self) -> bool:
        return all(self._made)

    def mark(self, place: int) -> None:
        if self._made[place] or self._work is not None:
            raise errors.StateError(
                f"{self.names[place]} got a second gradient in one backward pass, after the first was sent. "
                "Sum the losses before backward()."
            )
        gradient = self.parameters[place].grad
        if gradient is not None and gradient.is_sparse:
            raise errors.StateError(
                f"{self.names[place]} has a sparse gradient, which allreduce does not exchange: use sparse=False"
            )
        self._made[place] = True

    def missing(self) -> list[str]:
        return [name for name, made in zip(self.names, self._made) if not made]

    def clear(self) -> None:
        self._made = [False] * len(self._made)
        self._work = None
        self.norms = None

    def start(self, measures: bool) -> None:
        with torch.no_grad():
            for made, view, parameter in zip(self._made, self._views, self.parameters):
                if made:
                    view.copy_(cast(torch.Tensor, parameter.grad).reshape(-1))
                elif parameter.grad is not None:  # accumulated before, though not in this pass
                    view.copy_(parameter.grad.reshape(-1))
                else:
                    view.zero_()
            if measures:
                here = noises.squared_norm(self._gradients)
                self.norms = here, here
            self._flat.div_(self._ranks)
            if len(self._makers):
                made_here = [made or parameter.grad is not None for made, parameter in zip(self._made, self.parameters)]
                self._makers.copy_(torch.tensor(made_here, dtype=self._makers.dtype))
            self._work = distributed.all_reduce(self._flat, async_op=True)

    def finish(self, waiting: Waiting) -> None:
        """What no rank has made stays as it is, None mostly: an optimizer passes over it."""
        with waiting:
            self._work.wait()
        self._work = None
        with torch.no_grad():
            if self.norms is not None:
                self.norms = self.norms[0], noises.squared_norm(self._gradients)
            made = self._makers.tolist() or [1.0] * len(self.parameters)
            for anywhere, view, parameter in zip(made, self._views, self.parameters):
                if not anywhere:
                    continue
                if parameter.grad is None:
                    parameter.grad = view.clone().view_as(parameter)
                else:
                    parameter.grad.copy_(view.view_as(parameter))


def _sorted_into_buckets(
    named: Sequence[tuple[str, nn.Parameter]], bucket_bytes: int, ranks: int, unused: bool
) -> list[_Bucket]:
    groups: list[list[tuple[str, nn.Parameter]]] = []
    room = 0
    for name, parameter in reversed(named):
        size = parameter.numel() * parameter.element_size()
        last = groups[-1][-1][1] if groups else None
        if last is None or size > room or (last.dtype, last.device) != (parameter.dtype, parameter.device):
            groups.append([])
            room = bucket_bytes if len(groups) > 1 else min(bucket_bytes, FIRST_BUCKET_BYTES)
        groups[-1].append((name, parameter))
        room -= size
    return [_Bucket(group, ranks, unused) for group in groups]


def _broadcast(tensors: Sequence[torch.Tensor]) -> None:
    """The chief's values, one exchange for each kind of tensor."""
    kinds: dict[tuple[torch.dtype, torch.device], list[torch.Tensor]] = {}
    for tensor in tensors:
        kinds.setdefault((tensor.dtype, tensor.device), []).append(tensor)
    for alike in kinds.values():
        flat = torch.cat([tensor.reshape(-1) for tensor in alike])
        distributed.broadcast(flat, src=0)
        with torch.no_grad():
            for tensor, values in zip(alike, torch.split(flat, [tensor.numel() for tensor in alike])):
                tensor.copy_(values.view_as(tensor))
