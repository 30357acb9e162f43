"""Deep Gradient Compression (Lin et al., ICLR 2018, arXiv 1712.01887): a rank sends only the largest thousandth of its
accumulated gradient, and keeps the rest for later steps.

Each rank, for every tensor with more than one dimension, in each exchange, with its gradient g scaled to its part of
the mean:

    g <- g, clipped to clip_norm / sqrt(ranks)      local clipping, before the accumulation
    u <- momentum u + g                             momentum correction: the velocity is accumulated, not the gradient
    v <- v + u                                      (Nesterov: v + g + momentum u)
    send the largest elements of v; there           momentum factor masking: a delayed element starts
    v <- 0 and u <- 0                               without its stale momentum

The sum over the ranks becomes the gradient. The first steps send more (the warm-up). Where sparse gradients would not
be smaller than dense ones, the step is dense: all of v is sent and nothing was delayed, so u stays. Without sparsity
the result is that of dense training with momentum.

The ranks send parts of a sum. So any ranks may go on with u and v of others, as long as the sums over the ranks stay.

Momentum and weight decay are still those of the user's SGD, and are applied once. The hooks around its step take them
over: weight decay needs no exchange, so it has a velocity of its own (the optimizer's `momentum_buffer`, the same on
every rank), as do tensors of one dimension, which are exchanged densely. The update is linear in the velocity, so a
checkpoint of dense training continues under compression with its momentum.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import distributed, nn, optim

from oarlock.train import errors, worlds
from oarlock.train.compression import momentum as momenta
from oarlock.train.compression import runlengths, selection
from oarlock.train.strategies.wholegradient import WholeGradient, gradient

WARM_UP_STAGES = 4
RELEASE = 100
"""The dense exchanges over which they send what sparse ones had kept back."""
_HEAD_BYTES = 16  # two 64-bit numbers: run lengths and values that follow
_HASH = 2654435761


@dataclass(frozen=True)
class DGC:
    """The settings of Deep Gradient Compression.

    `sparsity` is the part of each tensor that is not sent, after the warm-up. `clip_norm` bounds the norm of the
    gradient of all ranks together. During `warm_up_steps` the sparsity rises in four equal stages. `half_values` sends
    values as fp16; the rounding error stays in the residual. Then tensors of one dimension travel as fp16 too.
    """

    sparsity: float = 0.999
    clip_norm: float | None = None
    warm_up_steps: int = 1000
    half_values: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.sparsity < 1:
            raise errors.StateError(f"sparsity={self.sparsity} is not a number from 0 to below 1, such as 0.999")
        if self.clip_norm is not None and not self.clip_norm > 0:
            raise errors.StateError(f"clip_norm={self.clip_norm} is not above 0: leave it out to clip nothing")
        if self.warm_up_steps < 0:
            raise errors.StateError(f"warm_up_steps={self.warm_up_steps} is below 0: 0 means no warm-up")

    def density(self, exchanges: int) -> float:
        """Return the part of each tensor that is sent after so many exchanges."""
        final = 1 - self.sparsity
        if exchanges >= self.warm_up_steps:
            return final
        stage = exchanges * WARM_UP_STAGES // self.warm_up_steps
        return float(final ** ((stage + 1) / (WARM_UP_STAGES + 1)))


class DeepGradientCompression(WholeGradient):
    """Allreduce of gradients that are mostly kept back, for SGD with or without momentum."""

    keeps = True  # also of a process that is alone, and goes on with a checkpoint of several

    def __init__(self, settings: DGC | None = None, *, unused_parameters: bool = False) -> None:
        super().__init__(unused_parameters=unused_parameters)
        self.settings = settings or DGC()
        self._sparse: list[_Tensor] = []
        self._dense: list[nn.Parameter] = []
        self._momentum: momenta.Momentum | None = None
        self._optimizer: optim.Optimizer | None = None
        self._exchanges = 0  # in the life of the training, restarts included
        self._owed = 0  # the dense exchanges that send all that is kept back now

    def alone(self, optimizer: optim.Optimizer | None) -> None:
        self._optimizer = optimizer
        if self.settings.clip_norm is not None:
            self.follow()

    def prepare(self, optimizer: optim.Optimizer | None) -> None:
        self._optimizer = optimizer
        self._momentum = momenta.Momentum(optimizer, self.named)
        offset = 0
        for name, parameter in self.named:
            if parameter.dim() > 1 and parameter.numel() and not parameter.is_complex():
                self._sparse.append(_Tensor(name, parameter, offset))
                offset += parameter.numel()
            else:
                self._dense.append(parameter)
        self._momentum.compressed = {id(tensor.parameter) for tensor in self._sparse}

    def state_dict(self) -> dict[str, Any]:
        if not self._sparse:
            return {}
        return {
            "exchanges": self._exchanges,
            "owed": self._owed,
            "velocity": {tensor.name: tensor.velocity for tensor in self._sparse},
            "residual": {tensor.name: tensor.residual for tensor in self._sparse},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state and self.knows(state, "residual"):
            self._keep_nothing()
            self._add(state)

    def inherit(self, chiefs: dict[str, Any], states: Iterable[dict[str, Any]], ranks: int) -> bool:
        """Keep back what the former ranks did. The gradient is the sum of what the ranks send, so nothing is lost."""
        if not chiefs:
            return True
        if not self.knows(chiefs, "residual") or not self._take_part():
            return False
        self._exchanges, self._owed = chiefs["exchanges"], RELEASE
        for state in states:
            self._add(state)
        return True

    def _add(self, state: dict[str, Any]) -> None:
        """Keep back what this state does, too."""
        if not self._take_part():
            return
        self._exchanges = state["exchanges"]
        self._owed = max(self._owed, state.get("owed", RELEASE))
        for tensor in self._sparse:
            for kind, ours in (("velocity", tensor.velocity), ("residual", tensor.residual)):
                if tensor.name in state[kind]:
                    ours += state[kind][tensor.name].to(ours.device)

    def _take_part(self) -> bool:
        """Exchange also in a world of one process, where something was kept back. Return whether that is possible."""
        if self._momentum is None:
            try:
                self.prepare(self._optimizer)
            except errors.StateError as cause:
                sys.stderr.write(f"oarlock.train: the gradients that were kept back are dropped: {cause}\n")
                return False
            if self.passes is None:
                self.follow()
        return True

    def flush(self, leaves: Sequence[bool]) -> None:
        """Hand on what the leaving ranks keep back: each of the others keeps an equal part of it from now on.

        It is sent as all that is kept back: a script may scale, clip or drop gradients after the exchange.
        """
        heirs = leaves.count(False)
        if not (any(leaves) and heirs):
            return
        parts: dict[str, Any] = {"exchanges": self._exchanges, "velocity": {}, "residual": {}}
        for tensor in self._sparse:
            for kind, ours in (("velocity", tensor.velocity), ("residual", tensor.residual)):
                total = torch.zeros_like(ours)
                for rank in (rank for rank, one in enumerate(leaves) if one):
                    handed = ours.clone() if rank == self.world.rank else torch.empty_like(ours)
                    self.wait_for(self.start_broadcast(handed, rank))
                    total += handed
                parts[kind][tensor.name] = total.div_(heirs)
        if leaves[self.world.rank]:
            self._keep_nothing()
        else:
            self._add(parts)

    def shared(self) -> dict[str, Any]:
        return {"exchanges": self._exchanges}

    def catch_up(self, shared: dict[str, Any], *, made: bool) -> None:
        super().catch_up(shared, made=made)
        self._exchanges = shared["exchanges"]

    def _keep_nothing(self) -> None:
        for tensor in self._sparse:
            tensor.velocity.zero_()
            tensor.residual.zero_()

    def rehearse(self) -> None:
        self._exchanges = max(self._exchanges, self.settings.warm_up_steps)
        super().rehearse()

    def drop(self) -> None:
        if self._momentum is not None:
            self._momentum.remove()

    def exchange(self) -> None:
        scale = self._clipping() / self.world.world_size
        if self._momentum is None:  # alone
            for _, parameter in self.named if scale < 1 else ():
                gradient(parameter).mul_(scale)
            return
        try:
            small = self._start_small(scale)
        except errors.PeersLost:
            self._accumulate(scale, self._settings())
            self._owed = RELEASE
            raise
        owed, self._owed = self._owed, RELEASE
        density = self.settings.density(self._exchanges)
        layout = _Layout(self._sparse, density, self.settings.half_values)
        if layout.smaller_than_dense(self.world.world_size):
            self._exchange_sparse(layout, scale, self._settings())
        else:
            self._exchange_dense(scale, self._settings(), owed)
        self._finish_small(small)
        self._exchanges += 1

    def _clipping(self) -> float:
        """Return the factor that bounds this rank's gradient: the norm of a sum of independent gradients grows with the
        square root of their number.
        """
        if self.settings.clip_norm is None:
            return 1.0
        gradients = [gradient(parameter) for _, parameter in self.named]
        norm = math.sqrt(sum(float(torch.linalg.vector_norm(each, dtype=_wide(each)).square()) for each in gradients))
        bound = self.settings.clip_norm / math.sqrt(self.world.world_size)
        ours = norm / self.world.world_size
        return bound / ours if ours > bound else 1.0

    def _start_small(self, scale: float) -> list[tuple[list[nn.Parameter], torch.Tensor, Any]]:
        """Begin the dense sum of the tensors of one dimension."""
        kinds: dict[tuple[torch.dtype, torch.device], list[nn.Parameter]] = {}
        for parameter in self._dense:
            kinds.setdefault((parameter.dtype, parameter.device), []).append(parameter)
        started = []
        for alike in kinds.values():
            flat = torch.cat([gradient(parameter).view(-1) for parameter in alike]).mul_(scale)
            if self.settings.half_values and not flat.is_complex():
                flat = flat.to(torch.float16)
            started.append((alike, flat, self.start_sum(flat)))
        return started

    def _finish_small(self, started: Sequence[tuple[list[nn.Parameter], torch.Tensor, Any]]) -> None:
        for alike, flat, work in started:
            self.wait_for(work)
            for parameter, values in zip(alike, torch.split(flat, [parameter.numel() for parameter in alike])):
                gradient(parameter).copy_(values.view_as(parameter))

    def _accumulate(self, scale: float, momentum: Mapping[int, tuple[float, bool]]) -> None:
        for tensor in self._sparse:
            tensor.accumulate(scale, *momentum[id(tensor.parameter)])

    def _exchange_dense(self, scale: float, momentum: Mapping[int, tuple[float, bool]], owed: int) -> None:
        """Send all gradients of this step, and a part of what was kept back before: all of it after `owed` exchanges.

        Sent at once, the gradients of hundreds of steps are a step that training may not survive.
        """
        later = [tensor.residual * (1 - 1 / owed) if owed > 1 else None for tensor in self._sparse]
        self._accumulate(scale, momentum)
        self.then(functools.partial(setattr, self, "_owed", max(0, owed - 1)))
        works = []
        for tensor, rest in zip(self._sparse, later):
            self.then(tensor.residual.zero_ if rest is None else functools.partial(tensor.residual.copy_, rest))
        for tensor, rest in zip(self._sparse, later):
            flat = gradient(tensor.parameter).view(-1)
            whole = tensor.residual if rest is None else tensor.residual - rest
            sent = flat.copy_(whole) if flat.dtype == whole.dtype else whole.clone()
            works.append((flat, sent, self.start_sum(sent)))
        for flat, sent, work in works:
            self.wait_for(work)
            if sent is not flat:
                flat.copy_(sent)

    def _exchange_sparse(self, layout: _Layout, scale: float, momentum: Mapping[int, tuple[float, bool]]) -> None:
        positions, values = [], []
        for number, (tensor, count) in enumerate(zip(self._sparse, layout.counts)):
            tensor.accumulate(scale, *momentum[id(tensor.parameter)])
            chosen = tensor.choose(count, (self._exchanges * 31 + number) * _HASH >> 8)
            positions.append(chosen + tensor.offset)
            sent, rest = tensor.parted(chosen, layout.dtype)
            values.append(sent)
            self.then(functools.partial(tensor.keep, chosen, rest))
        ours = layout.pack(torch.cat(positions), torch.cat(values))
        everyones = ours.new_empty(self.world.world_size * len(ours))
        with worlds.exchanging():
            work = _gather(everyones, ours, async_op=True)
        self.wait_for(work)
        self.figures.sent_bytes += (self.world.world_size - 1) * len(ours)
        ends = torch.tensor([tensor.offset + tensor.parameter.numel() for tensor in self._sparse], device=ours.device)
        for theirs in everyones.view(self.world.world_size, -1):  # in the order of the ranks: the same bits everywhere
            found, sent = layout.unpack(theirs)
            parts = torch.searchsorted(found, ends).tolist()
            for tensor, begin, end in zip(self._sparse, [0, *parts], parts):
                flat = gradient(tensor.parameter).view(-1)
                flat.scatter_add_(0, found[begin:end] - tensor.offset, sent[begin:end].to(flat.dtype))

    def _settings(self) -> dict[int, tuple[float, bool]]:
        return self._momentum.settings() if self._momentum is not None else {}


class _Tensor:
    """A compressed tensor: `velocity` and `residual` (u and v above) are flat, in fp32 at least. `offset` is the
    position of its first element among all compressed ones.
    """

    def __init__(self, name: str, parameter: nn.Parameter, offset: int) -> None:
        self.name, self.parameter, self.offset = name, parameter, offset
        size = parameter.numel()
        self.velocity = torch.zeros(size, dtype=_wide(parameter), device=parameter.device)
        self.residual = torch.zeros_like(self.velocity)
        self._peaks = selection.Peaks(self.residual)
        pieces = self._peaks.pieces
        self._pieces = list(zip(self.velocity.split(pieces), self.residual.split(pieces)))

    def accumulate(self, scale: float, momentum: float, nesterov: bool) -> None:
        """Add the gradient, times `scale`, to the velocity and that to the residual. The gradient becomes 0."""
        gradients = gradient(self.parameter).view(-1).split(self._peaks.pieces)
        fused = _fused_sgd is not None and not nesterov and gradients[0].dtype == self.residual.dtype

        def update(number: int) -> None:
            g, (u, v) = gradients[number], self._pieces[number]
            if not momentum:
                v.add_(g, alpha=scale)
            elif fused:
                _add_velocity(v, g, u, momentum, scale)
            else:
                u.mul_(momentum).add_(g, alpha=scale)
                if nesterov:
                    v.add_(g, alpha=scale).add_(u, alpha=momentum)
                else:
                    v.add_(u)
            g.zero_()

        self._peaks.note(update)

    def choose(self, count: int, start: int) -> torch.Tensor:
        return selection.largest(self.residual, self._peaks, count, start)

    def parted(self, positions: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the residual there as it is sent, and the rest, a rounding error."""
        values = self.residual.index_select(0, positions)
        sent = values.to(dtype)
        return sent, values - sent

    def keep(self, positions: torch.Tensor, rest: torch.Tensor) -> None:
        """Start these elements anew, with the rest of what was sent."""
        self.residual.scatter_(0, positions, rest)  # a quarter of the time of tensor[positions] = rest
        self.velocity.scatter_(0, positions, 0)


class _Layout:
    """The bytes of one rank's sparse gradient: two counts, run lengths, values. The size is the same on every rank,
    since gloo gathers only pieces of one size.
    """

    def __init__(self, tensors: Sequence[_Tensor], density: float, half_values: bool) -> None:
        sizes = [tensor.parameter.numel() for tensor in tensors]
        self.counts = [max(1, math.ceil(size * density)) for size in sizes]
        self.dtype = torch.float16 if half_values else torch.float32
        for tensor in tensors:
            if not half_values:
                self.dtype = torch.promote_types(self.dtype, tensor.residual.dtype)
        lengths = runlengths.most(sum(self.counts), sum(sizes))
        self._values_at = _aligned(_HEAD_BYTES + 2 * lengths)
        self._bytes = _aligned(self._values_at + sum(self.counts) * self.dtype.itemsize)
        self._dense_bytes = sum(tensor.residual.numel() * tensor.residual.element_size() for tensor in tensors)

    def smaller_than_dense(self, ranks: int) -> bool:
        """Return whether gathering these bytes from all ranks moves fewer than a ring of the dense gradient."""
        return bool(self.counts) and (ranks - 1) * self._bytes < 2 * (ranks - 1) / ranks * self._dense_bytes

    def pack(self, positions: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        lengths = runlengths.encode(positions)
        packed = torch.zeros(self._bytes, dtype=torch.uint8, device=values.device)
        packed[:_HEAD_BYTES].view(torch.int64).copy_(torch.tensor([len(lengths), len(values)]))
        packed[_HEAD_BYTES : _HEAD_BYTES + 2 * len(lengths)] = lengths.view(torch.uint8)
        packed[self._values_at : self._values_at + len(values) * values.element_size()] = values.view(torch.uint8)
        return packed

    def unpack(self, packed: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        lengths, values = packed[:_HEAD_BYTES].view(torch.int64).tolist()
        positions = runlengths.decode(packed[_HEAD_BYTES : _HEAD_BYTES + 2 * lengths].view(torch.int16))
        end = self._values_at + values * self.dtype.itemsize
        return positions, packed[self._values_at : end].view(self.dtype)


_fused_sgd = getattr(torch, "_fused_sgd_", None)


def _add_velocity(v: torch.Tensor, g: torch.Tensor, u: torch.Tensor, momentum: float, scale: float) -> None:
    """Set u <- momentum u + scale g, and v <- v + u, in one pass: a step of SGD with the learning rate -1."""
    settings = {"weight_decay": 0.0, "momentum": momentum, "lr": -1.0, "dampening": 1 - scale}
    _fused_sgd([v], [g], [u], **settings, nesterov=False, maximize=False, is_first_step=False)  # type: ignore[misc]  # None is never called


_gather = getattr(distributed, "all_gather_single", None) or distributed.all_gather_into_tensor  # its older name


def _wide(tensor: torch.Tensor) -> torch.dtype:
    return torch.promote_types(tensor.dtype, torch.float32)


def _aligned(size: int) -> int:
    return -(-size // 8) * 8
