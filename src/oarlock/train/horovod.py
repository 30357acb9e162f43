"""The calls of Horovod's torch API, for a script that has `import horovod.torch as hvd`.

    from oarlock.train import horovod as hvd

    hvd.init()
    model.to(hvd.device())
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)

The gradients are averaged in buckets while the backward pass goes on, in one order on every rank, by the strategy
`allreduce` (`strategies/`). The calls by handle are in `handles.py`. The meaning is that of Horovod 0.28. Adasum and
process sets are refused. The parts of Horovod that restart processes (`hvd.elastic`) are missing: Oarlock restarts a
gang itself.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import distributed, nn, optim

from oarlock.train import environment, errors, handles, reductions, worlds
from oarlock.train.strategies import allreduce as allreduces
from oarlock.train.strategies import backward, choices, replicas

Average, Sum = reductions.Average, reductions.Sum
Min, Max, Product, Adasum = reductions.Min, reductions.Max, reductions.Product, reductions.Adasum
poll, synchronize = handles.poll, handles.synchronize
allreduce_async, allreduce_async_ = handles.allreduce_async, handles.allreduce_async_
allgather_async = handles.allgather_async
broadcast_async, broadcast_async_ = handles.broadcast_async, handles.broadcast_async_
reducescatter, reducescatter_async = handles.reducescatter, handles.reducescatter_async
alltoall, alltoall_async = handles.alltoall, handles.alltoall_async


class Compression:
    """The types in which gradients travel."""

    none: torch.dtype | None = None
    fp16: torch.dtype | None = torch.float16
    bf16: torch.dtype | None = torch.bfloat16


def __getattr__(name: str) -> Any:
    raise AttributeError(
        f"oarlock.train.horovod has no {name}: docs/training.md lists the calls of Horovod that it has. There is no "
        "hvd.elastic, because Oarlock itself restarts workers; a train.Session saves and restores their state"
    )


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


def cross_rank() -> int:
    """Return the number of this host, where all hosts have equally many processes."""
    return rank() // local_size()


def cross_size() -> int:
    """Return the number of hosts, where all have equally many processes."""
    return size() // local_size()


def nccl_built() -> bool:
    return distributed.is_nccl_available()


def gloo_built() -> bool:
    return distributed.is_gloo_available()


def mpi_built() -> bool:
    return False


gloo_enabled, mpi_enabled, mpi_threads_supported = gloo_built, mpi_built, mpi_built


def device() -> torch.device:
    """Return the device of this process."""
    return worlds.init().device


def allreduce(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: torch.dtype | None = None,
    op: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: None = None,
) -> torch.Tensor:
    """Return the mean over all ranks, or another `op`. The gradient of a mean or sum is that of all ranks, too."""
    reductions.refuse_sets(process_set)
    kind = reductions.kind_of(average, op, tensor)
    sent = reductions.shortened(tensor, compression)
    reduced: torch.Tensor
    if kind in (Average, Sum):
        reduced = _Reduced.apply(sent, kind, prescale_factor, postscale_factor)
    else:
        reduced = reductions.reduce(reductions.copy(sent), kind, prescale_factor, postscale_factor)
    return reduced.to(tensor.dtype)


def allreduce_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: None = None,
) -> torch.Tensor:
    """Replace `tensor` by the mean over all ranks, or by another `op`."""
    reductions.refuse_sets(process_set)
    kind = reductions.kind_of(average, op, tensor)
    reductions.reduce(tensor.detach(), kind, prescale_factor, postscale_factor)
    return tensor


def grouped_allreduce(tensors: Iterable[torch.Tensor], *args: Any, **options: Any) -> list[torch.Tensor]:
    return [allreduce(tensor, *args, **options) for tensor in tensors]


def allgather(tensor: torch.Tensor, name: str | None = None, process_set: None = None) -> torch.Tensor:
    """Return the tensors of all ranks, one behind the other. Their first dimension may differ.

    The gradient is the part of this rank in the mean of all ranks' gradients, as in Horovod.
    """
    reductions.refuse_sets(process_set)
    gathered: torch.Tensor = _Gathered.apply(tensor)
    return gathered


def broadcast(tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: None = None) -> torch.Tensor:
    """Return the tensor of `root_rank`. The gradient is there the mean of all ranks' gradients, elsewhere 0."""
    reductions.refuse_sets(process_set)
    given: torch.Tensor = _Broadcast.apply(tensor, root_rank)
    return given


def broadcast_(tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: None = None) -> torch.Tensor:
    """Replace `tensor` by that of `root_rank`."""
    reductions.refuse_sets(process_set)
    if size() > 1:
        with reductions.travelling(tensor.detach()) as there:
            distributed.broadcast(there, src=root_rank)
    return tensor


class _Reduced(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, tensor: torch.Tensor, kind: str, before: float, after: float) -> torch.Tensor:
        context.how = kind, before, after
        return reductions.reduce(reductions.copy(tensor), *context.how)

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> Any:
        return reductions.reduce(reductions.copy(gradients[0]), *context.how), None, None, None


class _Gathered(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, tensor: torch.Tensor) -> torch.Tensor:
        world = worlds.init()
        context.lengths = [int(length) for length in world.gather(tensor.shape[0])]
        if world.world_size == 1:
            return reductions.copy(tensor)
        padded = tensor.new_zeros((max(context.lengths), *tensor.shape[1:]))  # gloo gathers only pieces of one size
        padded[: len(tensor)] = tensor.detach()
        with reductions.travelling(padded) as there:
            pieces = [torch.empty_like(there) for _ in context.lengths]
            distributed.all_gather(pieces, there)
        return torch.cat([piece[:length] for piece, length in zip(pieces, context.lengths)]).to(tensor.device)

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> Any:
        mean = reductions.reduce(reductions.copy(gradients[0]), Average)
        begin = sum(context.lengths[: rank()])
        return mean[begin : begin + context.lengths[rank()]]


class _Broadcast(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, tensor: torch.Tensor, root_rank: int) -> torch.Tensor:
        context.root = root_rank
        return broadcast_(reductions.copy(tensor), root_rank)

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> Any:
        mean = reductions.reduce(reductions.copy(gradients[0]), Average)
        return (mean if rank() == context.root else mean.zero_()), None


def allgather_object(value: object, name: str | None = None) -> list[Any]:
    return worlds.init().gather(value)


def broadcast_object(value: object, root_rank: int = 0, name: str | None = None) -> Any:
    return worlds.init().gather(value if rank() == root_rank else None)[root_rank]


def barrier() -> None:
    worlds.init().gather(None)


def join() -> int:
    """Wait for all ranks. All ranks must have made equally many steps, unlike in Horovod."""
    barrier()
    return size() - 1


def broadcast_parameters(
    parameters: Mapping[str, Any] | Iterable[tuple[str, Any]] | Iterable[torch.Tensor], root_rank: int = 0
) -> None:
    """Give every rank the values of `root_rank`: of a state_dict, of named parameters or of parameters."""
    items: Iterable[Any] = sorted(parameters.items()) if isinstance(parameters, Mapping) else parameters
    values = [item[1] if isinstance(item, tuple) else item for item in items]
    tensors = [value.detach() for value in values if isinstance(value, torch.Tensor)]
    if size() > 1:
        replicas.broadcast_tensors(tensors, source=root_rank)


def broadcast_optimizer_state(optimizer: optim.Optimizer, root_rank: int = 0, model: nn.Module | None = None) -> None:
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


def DistributedOptimizer(  # noqa: N802  (Horovod's name)
    optimizer: optim.Optimizer,
    named_parameters: Iterable[tuple[str, nn.Parameter]] | None = None,
    compression: torch.dtype | None = None,
    backward_passes_per_step: int = 1,
    op: str = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: object = None,
    sparse_as_dense: bool = False,
    process_set: None = None,
) -> optim.Optimizer:
    """Return `optimizer` itself, which now steps with the mean (or sum) of all ranks' gradients.

    It keeps its class, so learning rate schedulers work. The exchange is over when `backward()` returns, so
    `synchronize()` and `skip_synchronize()` do nothing. The gradients of `backward_passes_per_step` passes are added up
    first. With `op=Sum` another pass before `step()` or `zero_grad()` is refused: it would sum the sums again. The mean
    is the same for any `gradient_predivide_factor`, and for any groups. The job file's `compression` (none, fp16, bf16)
    and `bucket_bytes` win over the script; StateError for its other strategies and compressions.
    """
    reductions.refuse_sets(process_set)
    if op not in (Average, Sum):
        raise errors.StateError(f"op={op!r} is not hvd.Average or hvd.Sum, the operations that Oarlock knows here")
    if gradient_predivide_factor != 1.0 and op != Average:
        raise errors.StateError("gradient_predivide_factor goes with op=hvd.Average alone")
    parameters = [one for group in optimizer.param_groups for one in group["params"] if one.requires_grad]
    names = {id(parameter): name for name, parameter in named_parameters or ()}
    named = [(names.get(id(one), f"parameter {number}"), one) for number, one in enumerate(parameters)]
    exchange = _Exchange(sums=op == Sum, **_under_job_file(compression))
    for parameter in parameters if sparse_as_dense else ():
        parameter.register_post_accumulate_grad_hook(_make_dense)  # runs before the hooks of the exchange
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


def _under_job_file(compression: torch.dtype | None) -> dict[str, Any]:
    """Return the type in which gradients travel and the size of buckets: the script's, and over it the job file's.

    Raises StateError where the job file asks for what Horovod's calls do not have.
    """
    told = choices.told_by(os.environ)
    kind, name = told.get("kind", "auto"), told.get("compression")
    if kind not in ("auto", "allreduce"):
        raise errors.StateError(
            f"the job file asks for strategy {kind}, and hvd.DistributedOptimizer supports only allreduce: "
            "leave it out, or use train.data_parallel(model, optimizer) in the script"
        )
    if name not in (None, "none", *choices.WIRES):
        raise errors.StateError(
            f"the job file asks for compression {name}, and hvd.DistributedOptimizer supports only none, fp16 "
            "and bf16: name one of these, or use train.data_parallel(model, optimizer) in the script"
        )
    wire = compression if name is None else choices.WIRES.get(name)
    return {"wire": wire, "bucket_bytes": told.get("bucket_bytes")}


def _make_dense(parameter: torch.Tensor) -> None:
    if parameter.grad is not None and parameter.grad.is_sparse:
        parameter.grad = parameter.grad.to_dense()


def _begin_anew_after_each_step(optimizer: optim.Optimizer, exchange: _Exchange) -> None:
    zero = optimizer.zero_grad

    def zero_grad(set_to_none: bool = True) -> None:
        zero(set_to_none)
        exchange.begin_anew()

    optimizer.zero_grad = zero_grad  # a step may be left out, after an overflow
    optimizer.register_step_post_hook(lambda *_: exchange.begin_anew())


class _Exchange(allreduces.AllReduce):
    """The mean of all ranks' gradients, or their sum."""

    def __init__(self, *, sums: bool, wire: torch.dtype | None, bucket_bytes: int | str | None) -> None:
        super().__init__(unused_parameters=True, wire=wire, bucket_bytes=bucket_bytes)
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
