"""Replicas: the same model, with the chief's values, on every rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import distributed, nn

from oarlock.train import errors, worlds
from oarlock.train.checkpointing import pieces


def trained(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """Return the parameters that get a gradient, with their names."""
    return [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]


def exchange_device(device: torch.device) -> torch.device:
    """Return the device from which a tensor of this device is exchanged. NCCL exchanges those of GPUs alone."""
    only_gpus = device.type == "cpu" and distributed.is_initialized() and distributed.get_backend() == "nccl"
    return worlds.init().device if only_gpus else device


def check_devices(named: Sequence[tuple[str, nn.Parameter]]) -> None:
    """Raise StateError where the process group cannot exchange the gradient of a parameter."""
    for name, parameter in named:
        if exchange_device(parameter.device) != parameter.device:
            raise errors.StateError(
                f"{name} is on the {parameter.device}, and GPUs exchange gradients: give the model to its GPU before, "
                "as in train.data_parallel(model.to(world.device))"
            )


def check_same(world: worlds.World, named: Sequence[tuple[str, nn.Parameter]]) -> None:
    """Raise StateError, on every rank, where a rank has other parameters. All ranks must call it."""
    if worlds.joining():
        return
    described = [(name, tuple(parameter.shape), str(parameter.dtype)) for name, parameter in named]
    for rank, theirs in enumerate(world.gather(described)):
        if theirs != described:
            ours, other = next(pair for pair in zip((*described, None), (*theirs, None)) if pair[0] != pair[1])
            raise errors.StateError(
                f"rank {rank} has another model: {other} where this rank has {ours}. "
                "Build the same model on every rank."
            )


def broadcast(model: nn.Module) -> None:
    """Give every rank the chief's parameters and buffers. The piece of a divided tensor stays its rank's own, but for
    replicas of the same piece, which get the values of the first one.
    """
    if worlds.init().world_size > 1 and not worlds.joining():
        pieces.let_go(model)
        tensors = [tensor.detach() for tensor in (*model.parameters(), *model.buffers())]
        broadcast_tensors([tensor for tensor in tensors if not pieces.is_divided(tensor)])
        for tensor in filter(pieces.is_divided, tensors):
            _broadcast_replicas(tensor)


def _broadcast_replicas(tensor: Any) -> None:
    mesh, local = tensor.device_mesh, tensor.to_local()
    for dimension, placement in enumerate(tensor.placements if mesh.get_coordinate() is not None else ()):
        if placement.is_replicate():
            group = mesh.get_group(dimension)
            distributed.broadcast(local, src=distributed.get_global_rank(group, 0), group=group)


def broadcast_tensors(tensors: Sequence[torch.Tensor], source: int = 0) -> None:
    """Give every rank the values of rank `source`, with one exchange for each type and device."""
    kinds: dict[tuple[torch.dtype, torch.device], list[torch.Tensor]] = {}
    for tensor in tensors:
        kinds.setdefault((tensor.dtype, tensor.device), []).append(tensor)
    for alike in kinds.values():
        flat = torch.cat([tensor.reshape(-1) for tensor in alike])
        if worlds.exchanges is not None:
            here = flat.cpu()
            worlds.exchanges.broadcast(here, source)
            flat = here.to(flat.device)
        else:
            flat = flat.to(exchange_device(flat.device))
            with worlds.exchanging():
                worlds.finish(distributed.broadcast(flat, src=source, async_op=True))
        with torch.no_grad():
            flat = flat.to(alike[0].device)
            for tensor, values in zip(alike, torch.split(flat, [tensor.numel() for tensor in alike])):
                tensor.copy_(values.view_as(tensor))
