"""The calls of Horovod's torch API, for a script that has `import horovod.torch as hvd`.

    from oarlock.train import horovod as hvd

    hvd.init()
    model.to(hvd.device())
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)

The gradients are averaged in buckets while the backward pass goes on, in one order on every rank, by the strategy
`allreduce` (`strategies/`). The meaning is that of Horovod 0.28. Other operations than Average and Sum are refused. The
parts of Horovod that restart processes (`hvd.elastic`) are missing: Oarlock restarts a gang itself.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import distributed, nn, optim

from oarlock.train import environment, errors, worlds
from oarlock.train.strategies import allreduce as allreduces
from oarlock.train.strategies import backward, replicas

Average, Sum = "average", "sum"


class Compression:
    """The types in which gradients travel."""

    none: torch.dtype | None = None
    fp16: torch.dtype | None = torch.float16
    bf16: torch.dtype | None = torch.bfloat16


def init(*args: Any, **kwargs: Any) -> None:
    """Join the other processes."""
    worlds.init()


def shutdown() -> None:
    worlds.shutdown()


def is_initialized() -> bool:
    return worlds.joined()


def rank() -> int:
    return worlds.init().rank


def size() -> int:
    return worlds.init().world_size


def local_rank() -> int:
    return worlds.init().local_rank


def local_size() -> int:
    """Return the number of processes on this host."""
    return environment.Processes.read().neighbours


def device() -> torch.device:
    """Return the device of this process."""
    return worlds.init().device


def allreduce(
    tensor: torch.Tensor, average: bool | None = None, name: str | None = None, op: str | None = None
) -> torch.Tensor:
    """Return the mean over all ranks, or the sum with `op=Sum`."""
    return allreduce_(tensor.detach().clone(), average, name, op)


def allreduce_(
    tensor: torch.Tensor, average: bool | None = None, name: str | None = None, op: str | None = None
) -> torch.Tensor:
    """Replace `tensor` by the mean over all ranks, or by the sum with `op=Sum`."""
    means = _means(average, op)
    if means and not tensor.is_floating_point():
        raise errors.StateError(f"the mean of {tensor.dtype} is not exact: use op=Sum, or a tensor of floats")
    if size() > 1:
        distributed.all_reduce(tensor)
        if means:
            tensor.div_(size())
    return tensor


def grouped_allreduce(tensors: Iterable[torch.Tensor], **options: Any) -> list[torch.Tensor]:
    return [allreduce(tensor, **options) for tensor in tensors]


def allgather(tensor: torch.Tensor, name: str | None = None) -> torch.Tensor:
    """Return the tensors of all ranks, one behind the other. Their first dimension may differ."""
    world = worlds.init()
    if world.world_size == 1:
        return tensor.detach().clone()
    lengths = [int(length) for length in world.gather(tensor.shape[0])]
    padded = tensor.new_zeros((max(lengths), *tensor.shape[1:]))  # gloo gathers only pieces of one size
    padded[: len(tensor)] = tensor.detach()
    pieces = [torch.empty_like(padded) for _ in lengths]
    distributed.all_gather(pieces, padded)
    return torch.cat([piece[:length] for piece, length in zip(pieces, lengths)])


def allgather_object(value: object, name: str | None = None) -> list[Any]:
    return worlds.init().gather(value)


def broadcast(tensor: torch.Tensor, root_rank: int, name: str | None = None) -> torch.Tensor:
    """Return the tensor of `root_rank`."""
    return broadcast_(tensor.detach().clone(), root_rank, name)


def broadcast_(tensor: torch.Tensor, root_rank: int, name: str | None = None) -> torch.Tensor:
    """Replace `tensor` by that of `root_rank`."""
    if size() > 1:
        distributed.broadcast(tensor, src=root_rank)
    return tensor


def broadcast_object(value: object, root_rank: int = 0, name: str | None = None) -> Any:
    return worlds.init().gather(value if rank() == root_rank else None)[root_rank]


def barrier() -> None:
    worlds.init().gather(None)


def join() -> int:
    """Wait for all ranks. All ranks must have made equally many steps, unlike in Horovod."""
    barrier()
    return size() - 1


def broadcast_parameters(parameters: Mapping[str, Any] | Iterable[tuple[str, Any]], root_rank: int = 0) -> None:
    """Give every rank the values of `root_rank`: of a state_dict or of named parameters."""
    named = dict(parameters.items() if isinstance(parameters, Mapping) else parameters)
    tensors = [value.detach() for _, value in sorted(named.items()) if isinstance(value, torch.Tensor)]
    if size() > 1:
        replicas.broadcast_tensors(tensors, source=root_rank)


def broadcast_optimizer_state(optimizer: optim.Optimizer, root_rank: int = 0) -> None:
    """Give every rank the optimizer's state and settings of `root_rank`."""
    if size() == 1:
        return
    state = optimizer.state_dict()
    described = _described(state) if rank() == root_rank else None
    described = broadcast_object(described, root_rank)
    ours: list[torch.Tensor] = []
    rebuilt = _rebuilt(described, ours)
    if rank() == root_rank:
        ours = []
        _tensors(state, ours)
    for tensor in ours:
        there = tensor.to(device())
        distributed.broadcast(there, src=root_rank)
        tensor.copy_(there)
    if rank() != root_rank:
        optimizer.load_state_dict(rebuilt)


def _tensors(tree: Any, found: list[torch.Tensor]) -> None:
    """Append the tensors of `tree`, in its order."""
    if isinstance(tree, torch.Tensor):
        found.append(tree.detach().contiguous())
    elif isinstance(tree, dict):
        for value in tree.values():
            _tensors(value, found)
    elif isinstance(tree, (list, tuple)):
        for value in tree:
            _tensors(value, found)


def _described(tree: Any) -> Any:
    """Return `tree` with its tensors replaced by their shape and type."""
    if isinstance(tree, torch.Tensor):
        return ("tensor", tuple(tree.shape), str(tree.dtype).removeprefix("torch."), tree.device.type)
    if isinstance(tree, dict):
        return ("dict", [(key, _described(value)) for key, value in tree.items()])
    if isinstance(tree, (list, tuple)):
        return (type(tree).__name__, [_described(value) for value in tree])
    return ("value", tree)


def _rebuilt(described: Any, found: list[torch.Tensor]) -> Any:
    """Return the tree of a description, with empty tensors, which are appended to `found` in their order."""
    kind, content, *more = described
    if kind == "tensor":
        place = device() if more[1] != "cpu" else torch.device("cpu")
        found.append(torch.empty(content, dtype=getattr(torch, more[0]), device=place))
        return found[-1]
    if kind == "dict":
        return {key: _rebuilt(value, found) for key, value in content}
    if kind == "value":
        return content
    items = [_rebuilt(value, found) for value in content]
    return tuple(items) if kind == "tuple" else items


def _means(average: bool | None, op: str | None) -> bool:
    if op not in (None, Average, Sum):
        raise errors.StateError(f"op={op!r} is not hvd.Average or hvd.Sum, the operations that Oarlock knows")
    return op == Average if op is not None else average is not False


def DistributedOptimizer(  # noqa: N802  (Horovod's name)
    optimizer: optim.Optimizer,
    named_parameters: Iterable[tuple[str, nn.Parameter]] | None = None,
    compression: torch.dtype | None = None,
    backward_passes_per_step: int = 1,
    op: str = Average,
) -> optim.Optimizer:
    """Return `optimizer` itself, which now steps with the mean (or sum) of all ranks' gradients.

    It keeps its class, so learning rate schedulers work. The exchange is over when `backward()` returns, so
    `synchronize()` and `skip_synchronize()` do nothing. The gradients of `backward_passes_per_step` passes are added up
    first. With `op=Sum` another pass before `step()` or `zero_grad()` is refused: it would sum the sums again.
    """
    parameters = [one for group in optimizer.param_groups for one in group["params"] if one.requires_grad]
    names = {id(parameter): name for name, parameter in named_parameters or ()}
    named = [(names.get(id(one), f"parameter {number}"), one) for number, one in enumerate(parameters)]
    exchange = _Exchange(sums=not _means(None, op), wire=compression)
    if size() > 1:
        if backward_passes_per_step > 1:
            _LastPass(parameters, exchange, backward_passes_per_step)  # its hooks run before those of the exchange
        exchange.join(named)
        if exchange.sums:
            _begin_anew_after_each_step(optimizer, exchange)
    # Horovod's methods
    optimizer.synchronize = lambda: None
    optimizer.skip_synchronize = contextlib.nullcontext
    return optimizer


def _begin_anew_after_each_step(optimizer: optim.Optimizer, exchange: _Exchange) -> None:
    zero = optimizer.zero_grad

    def zero_grad(set_to_none: bool = True) -> None:
        zero(set_to_none)
        exchange.begin_anew()

    optimizer.zero_grad = zero_grad  # a step may be left out, after an overflow
    optimizer.register_step_post_hook(lambda *_: exchange.begin_anew())


class _Exchange(allreduces.AllReduce):
    """The mean of all ranks' gradients, or their sum."""

    def __init__(self, *, sums: bool, wire: torch.dtype | None) -> None:
        super().__init__(unused_parameters=True, wire=wire)
        self.sums = sums
        self._summed: list[nn.Parameter] = []
        self._done = False  # the gradients are sums already

    def join(self, named: list[tuple[str, nn.Parameter]]) -> None:
        super().join(named)
        self._summed = [parameter for _, parameter in named] if self.sums else []

    def begin_anew(self) -> None:
        self._done = False

    def pass_began(self) -> None:
        if self._done and self.sums:
            raise errors.StateError(
                "a second backward pass before optimizer.step(), and the gradients are sums over all ranks already. "
                "Use backward_passes_per_step to add up the gradients of several passes"
            )
        super().pass_began()

    def pass_ended(self) -> None:
        super().pass_ended()
        for parameter in self._summed:
            if parameter.grad is not None:
                parameter.grad.mul_(size())
        self._done = True


class _LastPass:
    """Hooks that hold the exchange back in all but the last of `passes` backward passes."""

    def __init__(self, parameters: list[nn.Parameter], exchange: _Exchange, passes: int) -> None:
        self._exchange, self._passes = exchange, passes
        self._done = 0
        self._under_way = backward.UnderWay()
        self._held = contextlib.ExitStack()
        for parameter in parameters:
            parameter.register_post_accumulate_grad_hook(self._made)

    def _made(self, parameter: torch.Tensor) -> None:
        if not self._under_way.begin(self._ended):
            return
        self._held.close()  # of a pass that an error has ended
        if self._done < self._passes - 1:
            self._held.enter_context(self._exchange.no_sync())

    def _ended(self) -> None:
        self._done = (self._done + 1) % self._passes
        self._held.close()
