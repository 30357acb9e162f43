"""Deep Gradient Compression (Lin et al., ICLR 2018, arXiv 1712.01887): a node sends only the largest thousandth of its
accumulated gradient, and keeps the rest for later steps.

Each node, for every tensor with more than one dimension, in each exchange, with its gradient g scaled to its part of
the mean:

    g <- g, clipped to clip_norm / sqrt(nodes)      local clipping, before the accumulation
    u <- momentum u + g                             momentum correction: the velocity is accumulated, not the gradient
    v <- v + u                                      (Nesterov: v + g + momentum u)
    send the largest elements of v; there           momentum factor masking: a delayed element starts
    v <- 0 and u <- 0                               without its stale momentum

The sum over the nodes becomes the gradient. The first steps send more (the warm-up). Where sparse gradients would not
be smaller than dense ones, the step is dense: all of v is sent and nothing was delayed, so u stays. Without sparsity
the result is that of dense training with momentum.

A node is a host: its ranks add up their gradients densely, and one of them, the sender, has u and v (nodes.py). A rank
that is alone on its host is a node by itself.

The nodes send parts of a sum. So any ranks may go on with u and v of others, as long as the sums over the ranks stay:
before its first exchange a node gives its sender what its other ranks were given, by a checkpoint of other ranks or of
another placement.

Momentum and weight decay are still those of the user's SGD, and are applied once. The hooks around its step take them
over: weight decay needs no exchange, so it has a velocity of its own (the optimizer's `momentum_buffer`, the same on
every rank), as do tensors of one dimension, which are exchanged densely. The update is linear in the velocity, so a
checkpoint of dense training continues under compression with its momentum.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn, optim

from oarlock.train import errors, worlds
from oarlock.train.compression import halves, nodes, runlengths, selection
from oarlock.train.compression import momentum as momenta
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
    values as fp16, those of tensors of one dimension too; what fp16 cannot say is sent later.
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

    def stages(self, steps: int) -> list[tuple[int, int]]:
        """Return the stages of a training of so many steps: the exchanges before each, and its number of steps."""
        begins = sorted({-(-self.warm_up_steps * stage // WARM_UP_STAGES) for stage in range(WARM_UP_STAGES + 1)})
        ends = [*begins[1:], max(steps, begins[-1])]
        return [(begin, min(steps, end) - begin) for begin, end in zip(begins, ends) if begin < steps]


class DeepGradientCompression(WholeGradient):
    """Allreduce of gradients that are mostly kept back, for SGD with or without momentum."""

    why_no_scaler = "it changes the scale of gradients that are kept back"
    keeps = True  # also of a process that is alone, and goes on with a checkpoint of several

    def __init__(self, settings: DGC | None = None, *, unused_parameters: bool = False) -> None:
        super().__init__(unused_parameters=unused_parameters)
        self.settings = settings or DGC()
        self._sparse: list[_Tensor] = []
        self._dense: list[nn.Parameter] = []
        self._rests: dict[str, torch.Tensor] = {}  # flat, of tensors that travel whole as fp16: this rank's own
        self._rest_of: dict[int, torch.Tensor] = {}  # the same, by the parameter's id
        self._momentum: momenta.Momentum | None = None
        self._optimizer: optim.Optimizer | None = None
        self._exchanges = 0  # in the life of the training, restarts included
        self._owed = 0  # the dense exchanges that send all that is kept back now
        self._sums: nodes.Sums | None = None  # of the gradients of this rank's node, where a node has several ranks
        self._memory: bool | None = None  # whether the checkpoint's were added up in shared memory
        self._handed_in = False  # the sender has all that its node keeps back

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
                if self.settings.half_values and not parameter.is_complex():
                    rest = torch.zeros(parameter.numel(), dtype=parameter.dtype, device=parameter.device)
                    self._rests[name] = self._rest_of[id(parameter)] = rest
        self._momentum.compressed = {id(tensor.parameter) for tensor in self._sparse}

    def state_dict(self) -> dict[str, Any]:
        if not (self._sparse or self._rests):
            return {}
        keeping = [] if self._handed_in and not self._nodes().sends else self._sparse
        return {
            "exchanges": self._exchanges,
            "owed": self._owed,
            "velocity": {tensor.name: tensor.velocity for tensor in keeping},
            "residual": {tensor.name: tensor.residual for tensor in keeping} | self._rests,
        }

    def choice(self) -> dict[str, Any]:
        """Return the way of the sums within hosts, where the bits depend on it: before the first one the way of the
        checkpoint.
        """
        if self._sums is None:
            return {} if self._memory is None else {"sums_in_memory": self._memory}
        if max(map(len, self._nodes().ranks)) < 3:
            return {}
        return {"sums_in_memory": self._sums.in_memory}

    def keep_choice(self, choice: Mapping[str, Any]) -> None:
        if "sums_in_memory" in choice:
            self._sums, self._memory = None, bool(choice["sums_in_memory"])

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._handed_in = False
        if state and self.knows(state, "residual"):
            self._keep_nothing()
            self._add(state)

    def inherit(self, chiefs: dict[str, Any], states: Iterable[dict[str, Any]], ranks: int) -> bool:
        """Keep back what the former ranks did. The gradient is the sum of what the ranks send, so nothing is lost."""
        self._handed_in = False
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
        for kind, name, ours in self._kept():
            if name in state[kind]:
                ours += state[kind][name].to(ours.device)

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
        for kind, name, ours in self._kept():
            total = torch.zeros_like(ours)
            for rank in (rank for rank, one in enumerate(leaves) if one):
                handed = ours.clone() if rank == self.world.rank else torch.empty_like(ours)
                self.wait_for(self.start_broadcast(handed, rank))
                total += handed
            parts[kind][name] = total.div_(heirs)
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
        for _, _, ours in self._kept():
            ours.zero_()

    def _kept(self) -> Iterator[tuple[str, str, torch.Tensor]]:
        """Yield all that this rank keeps back: each with its kind, and with the name of the parameter."""
        for tensor in self._sparse:
            yield "velocity", tensor.name, tensor.velocity
            yield "residual", tensor.name, tensor.residual
        for name, rest in self._rests.items():
            yield "residual", name, rest

    def stages(self, steps: int) -> list[tuple[int, int]]:
        return self.settings.stages(steps)

    def enter(self, exchanges: int) -> None:
        self._exchanges = exchanges

    def drop(self) -> None:
        if self._momentum is not None:
            self._momentum.remove()

    def exchange(self) -> None:
        if self._momentum is None:  # alone
            scale = self._clipping([gradient(parameter) for _, parameter in self.named], 1)
            for _, parameter in self.named if scale < 1 else ():
                gradient(parameter).mul_(scale)
            return
        node = self._nodes()
        self._hand_in(node)
        summed = self._summed(node)
        scale = self._clipping(summed or [gradient(one) for _, one in self.named], node.count) / self.world.world_size
        accumulate = functools.partial(self._accumulate, summed, scale, self._settings())
        try:
            small = self._start_small(scale)
        except errors.PeersLost:
            self._each(accumulate)
            self._owed = RELEASE
            raise
        owed, self._owed = self._owed, RELEASE
        layout = _Layout(self._sparse, self.settings.density(self._exchanges), self.settings.half_values)
        if layout.smaller_than_dense(node.count):
            self._exchange_sparse(node, layout, accumulate)
        else:
            self._exchange_dense(node, owed, accumulate)
        self._finish_small(small)
        self._exchanges += 1

    def _nodes(self) -> nodes.Nodes:
        found: nodes.Nodes = worlds.nodes or nodes.gathered(self.world)
        worlds.nodes = found
        return found

    def _hand_in(self, node: nodes.Nodes) -> None:
        """Give the sender of this node what the others keep back: they were given it by a checkpoint."""
        if self._handed_in:
            return
        self._handed_in = True
        for tensor in self._sparse if node.joint else ():
            for kept in (tensor.velocity, tensor.residual):
                self.wait_for(node.start_sum_inside(kept))
                if not node.sends:
                    kept.zero_()

    def _summed(self, node: nodes.Nodes) -> list[torch.Tensor] | None:
        """Add up the gradients of this node, and set them to 0. Return the flat sums: of the compressed tensors, and
        where the norm is needed of the others behind them. None where each rank is a node.
        """
        compressed = [tensor.parameter for tensor in self._sparse]
        summed = compressed + (self._dense if self.settings.clip_norm is not None else [])
        if node.count == self.world.world_size or not summed:
            return None
        if self._sums is None:
            self._sums = nodes.Sums(self.world, node, summed, self._memory)
            if self._memory and not self._sums.in_memory and self.world.is_chief:
                sys.stderr.write(
                    "oarlock.train: the checkpoint's gradients were added up in shared memory within each host, which "
                    "is not possible now: the last bits of the weights may differ from those of an uninterrupted run\n"
                )
        for work in self._sums.start([gradient(parameter) for parameter in summed]):
            self.wait_for(work)
        self.figures.sent_bytes += self._sums.sent_bytes
        for parameter in compressed:
            gradient(parameter).zero_()
        return self._sums.sums

    def _clipping(self, gradients: Sequence[torch.Tensor], count: int) -> float:
        """Return the factor that bounds this node's gradient: the norm of a sum of independent gradients grows with the
        square root of their number. `gradients` are still to be divided by the number of ranks.
        """
        if self.settings.clip_norm is None:
            return 1.0
        norm = math.sqrt(
            sum(float(torch.linalg.vector_norm(each, dtype=nodes.wide(each)).square()) for each in gradients)
        )
        bound = self.settings.clip_norm / math.sqrt(count)
        ours = norm / self.world.world_size
        return bound / ours if ours > bound else 1.0

    def _start_small(self, scale: float) -> list[tuple[list[nn.Parameter], torch.Tensor, Any]]:
        """Begin the dense sum of the tensors of one dimension."""
        kinds: dict[tuple[torch.dtype, torch.device], list[nn.Parameter]] = {}
        for parameter in (one for one in self._dense if id(one) not in self.unreached):
            kinds.setdefault((parameter.dtype, parameter.device), []).append(parameter)
        started = []
        for alike in kinds.values():
            flat = torch.cat([gradient(parameter).view(-1) for parameter in alike]).mul_(scale)
            if self.settings.half_values and not flat.is_complex():
                flat = self._halved([self._rest_of[id(parameter)] for parameter in alike], flat)
            started.append((alike, flat, self.start_sum(flat)))
        return started

    def _halved(self, rests: Sequence[torch.Tensor], flat: torch.Tensor) -> torch.Tensor:
        """Return these values and the rests of earlier ones as fp16, and keep what that cannot say."""
        sent, left = halves.parted(flat.add_(torch.cat(list(rests))), torch.float16, self.world.world_size)
        for rest, part in zip(rests, torch.split(left, [rest.numel() for rest in rests])):
            self.then(functools.partial(rest.copy_, part))
        return sent

    def _finish_small(self, started: Sequence[tuple[list[nn.Parameter], torch.Tensor, Any]]) -> None:
        for alike, flat, work in started:
            self.wait_for(work)
            for parameter, values in zip(alike, torch.split(flat, [parameter.numel() for parameter in alike])):
                gradient(parameter).copy_(values.view_as(parameter))

    def _accumulate(
        self,
        summed: Sequence[torch.Tensor] | None,
        scale: float,
        momentum: Mapping[int, tuple[float, bool]],
        number: int,
    ) -> _Tensor:
        """Add the gradient of this node, its sum or else this rank's own, to what it keeps back of tensor `number`."""
        tensor = self._sparse[number]
        flat = gradient(tensor.parameter).view(-1) if summed is None else summed[number]
        if self._is_reached(tensor):
            tensor.accumulate(flat, scale, *momentum[id(tensor.parameter)])
        return tensor

    def _is_reached(self, tensor: _Tensor) -> bool:
        return id(tensor.parameter) not in self.unreached

    def _each(self, accumulate: Callable[[int], _Tensor]) -> None:
        for number in range(len(self._sparse)):
            accumulate(number)

    def _exchange_dense(self, node: nodes.Nodes, owed: int, accumulate: Callable[[int], _Tensor]) -> None:
        """Send all gradients of this step, and a part of what was kept back before: all of it after `owed` exchanges.

        Sent at once, the gradients of hundreds of steps are a step that training may not survive.
        """
        parts = [(tensor, (1 - 1 / max(1, owed)) if self._is_reached(tensor) else 1.0) for tensor in self._sparse]
        later = [tensor.residual * part if part else None for tensor, part in parts]
        if node.sends:
            self._each(accumulate)
        self.then(functools.partial(setattr, self, "_owed", max(0, owed - 1)))
        sums = []
        for tensor, rest in zip(self._sparse, later):
            flat = gradient(tensor.parameter).view(-1)
            sent = flat if flat.dtype == tensor.residual.dtype else torch.empty_like(tensor.residual)
            if node.sends:
                sent.copy_(tensor.residual if rest is None else tensor.residual - rest)
            self.then(tensor.residual.zero_ if rest is None else functools.partial(tensor.residual.copy_, rest))
            sums.append((flat, sent, self._start_sum_of_nodes(node, sent)))
        for *_, work in sums:
            self.wait_for(work)
        self._share(node, [sent for _, sent, _ in sums])
        for flat, sent, _ in sums:
            if sent is not flat:
                flat.copy_(sent)

    def _exchange_sparse(self, node: nodes.Nodes, layout: _Layout, accumulate: Callable[[int], _Tensor]) -> None:
        everyones = torch.empty(node.count * layout.size, dtype=torch.uint8, device=self._sparse[0].residual.device)
        if node.sends:
            ours = self._chosen(layout, accumulate)
            with worlds.exchanging():
                work = node.start_gather(everyones, ours)
            self.wait_for(work)
            self.figures.sent_bytes += (node.count - 1) * len(ours)
        self._share(node, [everyones])
        ends = torch.tensor([each.offset + each.parameter.numel() for each in self._sparse], device=everyones.device)
        for theirs in everyones.view(node.count, -1):  # in the order of the nodes: the same bits everywhere
            found, sent = layout.unpack(theirs)
            parts = torch.searchsorted(found, ends).tolist()
            for tensor, begin, end in zip(self._sparse, [0, *parts], parts):
                flat = gradient(tensor.parameter).view(-1)
                flat.scatter_add_(0, found[begin:end] - tensor.offset, sent[begin:end].to(flat.dtype))

    def _chosen(self, layout: _Layout, accumulate: Callable[[int], _Tensor]) -> torch.Tensor:
        """Take up the gradients, and return the bytes of the largest elements of all that this node keeps back."""
        positions, values = [], []
        for number, count in enumerate(layout.counts):
            tensor = accumulate(number)
            start = (self._exchanges * 31 + number) * _HASH >> 8
            none = torch.empty(0, dtype=torch.int64, device=tensor.residual.device)
            chosen = tensor.choose(count, start) if self._is_reached(tensor) else none
            positions.append(chosen + tensor.offset)
            sent, rest = tensor.parted(chosen, layout.dtype)
            values.append(sent)
            self.then(functools.partial(tensor.keep, chosen, rest))
        return layout.pack(torch.cat(positions), torch.cat(values))

    def _start_sum_of_nodes(self, node: nodes.Nodes, flat: torch.Tensor) -> Any:
        if node.count == 1 or not node.sends:
            return None
        self.figures.sent_bytes += round(2 * (node.count - 1) / node.count * flat.nbytes)
        with worlds.exchanging():
            return node.start_sum(flat)

    def _share(self, node: nodes.Nodes, tensors: Sequence[torch.Tensor]) -> None:
        """Give the sender's tensors to the ranks of its node."""
        if node.joint:
            for work in [node.start_share(each) for each in tensors]:
                self.wait_for(work)
        if node.sends:
            self.figures.sent_bytes += (len(node.ours) - 1) * sum(each.nbytes for each in tensors)

    def _settings(self) -> dict[int, tuple[float, bool]]:
        return self._momentum.settings() if self._momentum is not None else {}


class _Tensor:
    """A compressed tensor: `velocity` and `residual` (u and v above) are flat, in fp32 at least. `offset` is the
    position of its first element among all compressed ones.
    """

    def __init__(self, name: str, parameter: nn.Parameter, offset: int) -> None:
        self.name, self.parameter, self.offset = name, parameter, offset
        size = parameter.numel()
        self.velocity = torch.zeros(size, dtype=nodes.wide(parameter), device=parameter.device)
        self.residual = torch.zeros_like(self.velocity)
        self._peaks = selection.Peaks(self.residual)
        pieces = self._peaks.pieces
        self._pieces = list(zip(self.velocity.split(pieces), self.residual.split(pieces)))

    def accumulate(self, flat: torch.Tensor, scale: float, momentum: float, nesterov: bool) -> None:
        """Add the flat gradient, times `scale`, to the velocity and that to the residual. The gradient becomes 0."""
        gradients = flat.split(self._peaks.pieces)
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
        """Return the residual there as it is sent, and the rest of it."""
        return halves.parted(self.residual.index_select(0, positions), dtype)

    def keep(self, positions: torch.Tensor, rest: torch.Tensor) -> None:
        """Start these elements anew, with the rest of what was sent."""
        self.residual.scatter_(0, positions, rest)  # a quarter of the time of tensor[positions] = rest
        self.velocity.scatter_(0, positions, 0)


class _Layout:
    """The bytes of one node's sparse gradient: two counts, run lengths, values. `size`, their number, is the same for
    every node, since gloo gathers only pieces of one size.
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
        self.size = _aligned(self._values_at + sum(self.counts) * self.dtype.itemsize)
        self._dense_bytes = sum(tensor.residual.numel() * tensor.residual.element_size() for tensor in tensors)

    def smaller_than_dense(self, nodes: int) -> bool:
        """Return whether gathering these bytes from all nodes moves fewer than a ring of the dense gradient."""
        return bool(self.counts) and (nodes - 1) * self.size < 2 * (nodes - 1) / nodes * self._dense_bytes

    def pack(self, positions: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        lengths = runlengths.encode(positions)
        packed = torch.zeros(self.size, dtype=torch.uint8, device=values.device)
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


def _aligned(size: int) -> int:
    return -(-size // 8) * 8
