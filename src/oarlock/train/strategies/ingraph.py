"""In-graph replication: one process drives several devices, each with a replica of the model and a part of the batch.

    replicas = train.InGraph(model)
    with train.Session(model=model, optimizer=optimizer, strategy=replicas, total_steps=100) as session:
        for _ in session.steps():
            optimizer.zero_grad()
            loss = replicas.backward(loss_of, x, y)
            optimizer.step()

The name is that of TensorFlow (Abadi et al. 2016, arXiv 1605.08695; the other way, a process for each device, is
`data_parallel`). Each device has a thread. The gradients add up in the model's own parameters, in the order of the
devices, so that the same batches give the same bits.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent import futures
from typing import Any

import torch
from torch import nn

from oarlock.train import errors, worlds
from oarlock.train.measuring import noise
from oarlock.train.strategies.strategy import Figures, Strategy


class InGraph(Strategy):
    """Replicas of `model` on several `devices` of this process: `Session(strategy=train.InGraph(model))`.

    The first device is the model's own. Without `devices` these are the model's GPU and all others that this process
    sees; a model on the CPU has one replica. A device that is named twice has two replicas: on the CPU, which has one
    random generator, dropout then differs from run to run. Weights, buffers, `train()` and `eval()`, and which
    parameters are frozen are the model's at each pass.

    Raises StateError where the model is on another device, WorldError where the job has several processes.
    """

    kind = "in-graph"

    def __init__(self, model: nn.Module, devices: Sequence[torch.device | str] | None = None) -> None:
        world = worlds.init()
        if world.world_size > 1:
            raise errors.WorldError(
                f"in-graph replication is for one process, and there are {world.world_size}: "
                "use data_parallel(model, optimizer), with one device for each process"
            )
        found = next(model.parameters(), None)
        own = found.device if found is not None else world.device
        self.devices = [torch.device(one) for one in devices] if devices is not None else _with_others(own)
        if not self.devices or _indexed(self.devices[0]) != _indexed(own):
            first = self.devices[0] if self.devices else "none"
            raise errors.StateError(
                f"the model is on {own}, and the first device is {first}: "
                "the first of `devices` is the model's own, so call model.to(devices[0]) before the optimizer is made"
            )
        self.replicas = [model, *(copy.deepcopy(model).to(device) for device in self.devices[1:])]
        self.parameters = list(model.parameters())
        self.figures: Figures = Figures(world)
        self.figures.noise = noise.Noise(len(self.devices))
        self._threads = futures.ThreadPoolExecutor(len(self.devices), "in-graph")

    def backward(self, loss_of: Callable[..., torch.Tensor], *batch: Any) -> torch.Tensor:
        """Divide the batch among the devices, and add the gradient of its mean loss to the model's. Return that loss.

        `loss_of(replica, *part)` returns a scalar, the mean over the examples of its part; it runs in a thread of the
        device, under the autocast of the caller. The tensors of the batch are divided along their first dimension,
        examples, and moved to the device; anything else is given to each device. Raises StateError for tensors of
        different lengths, or of none.
        """
        parts = self._parts(batch)
        examples = sum(count for count, _ in parts)
        weights = [count / examples for count, _ in parts]
        before = [parameter.grad for parameter in self.parameters]
        with self.figures.waiting:
            self._copy_model(len(parts))
        casts = _casts({device.type for device in self.devices})
        started = [
            self._threads.submit(_learn, replica, device, casts[device.type], loss_of, part, weight)
            for replica, device, (_, part), weight in zip(self.replicas, self.devices, parts, weights)
        ]
        futures.wait(started)
        try:
            losses = [one.result() for one in started]
        except BaseException:
            for parameter, earlier in zip(self.parameters, before):
                parameter.grad = earlier
            raise
        with self.figures.waiting, torch.no_grad():
            self._add_up(parts, weights)
            _add_earlier(self.parameters, before)
        return torch.stack([loss.to(losses[0].device) * weight for loss, weight in zip(losses, weights)]).sum()

    def after_step(self, step: int) -> None:
        self.figures.exchanges += 1
        self.figures.waiting.settle()

    def _parts(self, batch: Sequence[Any]) -> list[tuple[int, list[Any]]]:
        """Return the number of examples of each device that gets any, and its part of the batch."""
        lengths = {len(one) if one.dim() else 0 for one in batch if isinstance(one, torch.Tensor)}
        if len(lengths) != 1 or lengths == {0}:
            told = " and ".join(map(str, sorted(lengths))) or "none"
            raise errors.StateError(
                f"the tensors of a batch must have the same number of examples, at least one, and have {told}: "
                "give backward() tensors whose first dimension is the examples, and bind other tensors in loss_of"
            )
        examples, places = lengths.pop(), len(self.devices)
        counts = [examples // places + (number < examples % places) for number in range(places)]  # as tensor_split
        divided = [one.tensor_split(places) if isinstance(one, torch.Tensor) else [one] * places for one in batch]
        return [(count, list(part)) for count, part in zip(counts, zip(*divided)) if count]

    @torch.no_grad()
    def _copy_model(self, count: int) -> None:
        """Give the first `count` replicas the model's weights, buffers and modes, and no gradients."""
        for replica in self.replicas[:count]:
            for ours, theirs in zip(self.replicas[0].modules(), replica.modules()):
                theirs.training = ours.training
            for ours, theirs in zip(self.parameters, replica.parameters()):
                theirs.requires_grad_(ours.requires_grad)
            for ours, theirs in zip(_tensors(self.replicas[0]), _tensors(replica)):
                if theirs is not ours:
                    theirs.copy_(ours, non_blocking=True)
                    self._count(ours, theirs)
            for parameter in replica.parameters():
                parameter.grad = None

    def _add_up(self, parts: Sequence[tuple[int, list[Any]]], weights: Sequence[float]) -> None:
        """Add the replicas' gradients to the model's own, which are those of this pass alone."""
        equal = len(parts) == len(self.devices) and len({count for count, _ in parts}) == 1
        measured = self.figures.noise.due() and equal
        local = _squared_norm(self.parameters) / weights[0] ** 2 if measured else None
        for replica in self.replicas[1 : len(parts)]:
            for ours, theirs in zip(self.parameters, replica.parameters()):
                if theirs.grad is None:
                    continue
                self._count(theirs.grad, ours)
                moved = theirs.grad.to(ours.device)
                ours.grad = moved if ours.grad is None else ours.grad.add_(moved)
        if local is not None:
            self.figures.noise.take(local, _squared_norm(self.parameters), parts[0][0])

    def _count(self, sent: torch.Tensor, to: torch.Tensor) -> None:
        if sent.device != to.device:
            self.figures.sent_bytes += sent.nbytes


def _casts(kinds: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return the settings of autocast for these kinds of devices, as they are in the calling thread."""
    return {
        kind: {
            "device_type": kind,
            "dtype": torch.get_autocast_dtype(kind),
            "enabled": torch.is_autocast_enabled(kind),
        }
        for kind in kinds
    }


def _learn(
    replica: nn.Module,
    device: torch.device,
    cast: Mapping[str, Any],
    loss_of: Callable[..., torch.Tensor],
    part: Sequence[Any],
    weight: float,
) -> torch.Tensor:
    """Make the gradients of `weight` times the loss of this part. Return the loss."""
    with torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext():
        moved = [one.to(device, non_blocking=True) if isinstance(one, torch.Tensor) else one for one in part]
        with torch.autocast(**cast):
            loss = loss_of(replica, *moved)
        (loss * weight).backward()
        return loss.detach()


def _add_earlier(parameters: Sequence[nn.Parameter], before: Sequence[torch.Tensor | None]) -> None:
    """Add the gradients that were there before this pass."""
    for parameter, earlier in zip(parameters, before):
        if earlier is not None:
            parameter.grad = earlier if parameter.grad is None else earlier.add_(parameter.grad)


def _tensors(module: nn.Module) -> Iterator[torch.Tensor]:
    yield from module.parameters()
    yield from module.buffers()


def _squared_norm(parameters: Sequence[nn.Parameter]) -> torch.Tensor:
    norms = [noise.squared_norm(one.grad) for one in parameters if one.grad is not None]
    return torch.stack(norms).sum() if norms else torch.zeros(())


def _with_others(own: torch.device) -> list[torch.device]:
    if own.type != "cuda":
        return [own]
    own = _indexed(own)
    others = (torch.device("cuda", number) for number in range(torch.cuda.device_count()))
    return [own, *(one for one in others if one != own)]


def _indexed(device: torch.device) -> torch.device:
    """Return the device with its number, where there are several of its kind."""
    if device.type == "cuda" and device.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return device
