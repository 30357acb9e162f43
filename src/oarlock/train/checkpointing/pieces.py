"""The pieces of tensors that the ranks have divided among themselves: torch's DTensor, as FSDP2 and tensor parallelism
make it.

`split` takes each divided tensor out of a state. The chief's shard holds a description in its place: the whole shape,
its type, the mesh and the placements, in plain values. Each rank's shard holds the rank's own piece, with its offset in
the whole tensor. A piece that several ranks have is stored once. So pieces are copied, written, hashed and verified as
all other tensors of a shard are.

`Pieces` puts them together again, for the mesh of this run: a rank reads the parts of stored pieces that overlap its
own piece, from its own shard first, and from the others by mapped memory. So the ranks may be more or fewer than when
the checkpoint was made. A tensor that was saved whole may be divided now, and the other way round.

torch.distributed.checkpoint divides and joins tensors too, but its metadata is a pickle, which runs code when it is
loaded.
"""

from __future__ import annotations

import copy
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn, optim

from oarlock.train import errors

DIVIDED = "oarlock.divided"
"""The only key of a description."""


def is_divided(value: Any) -> bool:
    """Return whether the value is a tensor that ranks have divided. There is none before torch's module is imported."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(value, module.DTensor)


def divides(kept: Any) -> bool:
    """Return whether a module or an optimizer, or an object with such attributes, holds divided tensors.

    A module with FSDP2 does, even while its parameters are gathered: state_dict() divides them again.
    """
    if "torch.distributed.tensor" not in sys.modules:
        return False
    if isinstance(kept, nn.Module):
        return bool(_of_fsdp(kept)) or any(map(is_divided, (*kept.parameters(), *kept.buffers())))
    if isinstance(kept, optim.Optimizer):
        return any(map(is_divided, _parameters(kept)))
    held = vars(kept).values() if hasattr(kept, "__dict__") else ()
    return any(isinstance(each, (nn.Module, optim.Optimizer)) and divides(each) for each in held)


def let_go(model: nn.Module) -> None:
    """Let the parameters that FSDP2 has gathered be divided again, as after a backward pass."""
    for module in _of_fsdp(model):
        module.reshard()


def split(state: Any, place: str, pieces: dict[str, Any]) -> Any:
    """Return the state with descriptions in the place of divided tensors, and put this rank's pieces into `pieces`.

    `place` is the name of the state. StateError for a tensor that is still to be added up.
    """
    if is_divided(state):
        piece = _piece(state, place)
        if _is_first(state) and piece["values"].numel():
            pieces[place] = piece
        return _described(state)
    return _mapped(state, lambda each, key: split(each, f"{place}/{key}", pieces))


def kept_whole(state: Any, place: str) -> Any:
    """Return the state of one rank with its pieces in the descriptions, for the same rank of as many ranks."""
    if is_divided(state):
        return {DIVIDED: {**_described(state)[DIVIDED], **_piece(state, place)}}
    return _mapped(state, lambda each, key: kept_whole(each, f"{place}/{key}"))


class Pieces:
    """The stored pieces of all shards. `own` are those of this rank's shard, which is `shards[rank]` if it has one."""

    def __init__(self, shards: Sequence[Path], own: Mapping[str, Any] | None, rank: int) -> None:
        self._opened: list[Mapping[str, Any]] = [] if own is None else [own]
        self._unread = [path for number, path in enumerate(shards) if own is None or number != rank]

    def joined(self, state: Any, place: str, kept: Any) -> Any:
        """Return the state for `kept`: divided tensors where it has them now, and whole ones elsewhere."""
        return state if not _described_in(state) and not divides(kept) else self._join(state, place, _likeness(kept))

    def _join(self, state: Any, place: str, like: Any) -> Any:
        told = _description(state)
        if told is not None:
            return self._tensor(told, place, like)
        if isinstance(state, torch.Tensor):
            return _divided_as(state, like) if is_divided(like) and _same_shape(state, like) else state
        return _mapped(state, lambda each, key: self._join(each, f"{place}/{key}", _child(like, key)))

    def _tensor(self, told: Mapping[str, Any], place: str, like: Any) -> torch.Tensor:
        shape = tuple(told["shape"])
        if "values" in told:
            return _own_piece(told, place, like)
        if not is_divided(like):
            return self._region(told, place, (0,) * len(shape), shape)
        placements = like.placements if tuple(like.shape) == shape else _placements(told, place, like)
        offset, size = _bounds(shape, like.device_mesh, placements)
        local = self._region(told, place, offset, size)
        return _made(local, like.device_mesh, placements, shape)

    def _region(self, told: Mapping[str, Any], place: str, offset: Sequence[int], size: Sequence[int]) -> torch.Tensor:
        """Return a region of the whole tensor, from the shards that have parts of it."""
        region = torch.empty(tuple(size), dtype=told["dtype"], device="cpu")
        missing = region.numel()
        number = 0
        while missing:
            if number == len(self._opened):
                if not self._unread:
                    raise errors.CheckpointError(
                        f"the checkpoint lacks {missing} of {region.numel()} values of {place}: its shards do not hold "
                        "the whole tensor. Restore an older one, or begin again with resume=False."
                    )
                self._opened.append(_mapped_pieces(self._unread.pop(0)))
            stored = self._opened[number].get(place)
            missing -= _copy_overlap(stored, region, offset) if stored is not None else 0
            number += 1
        return region


def _of_fsdp(model: nn.Module) -> list[Any]:
    """Return the modules with FSDP2. There is none before torch's module is imported."""
    module = sys.modules.get("torch.distributed.fsdp")
    return [] if module is None else [each for each in model.modules() if isinstance(each, module.FSDPModule)]


def _mapped(state: Any, change: Any) -> Any:
    """Return a copy of a tree of containers, in which `change(value, key)` has replaced each value."""
    if isinstance(state, dict):
        made = copy.copy(state)  # of its own type, with the versions of the modules that torch hangs on it
        for key, each in state.items():
            made[key] = change(each, key)
        return made
    if type(state) in (list, tuple):
        return type(state)(change(each, number) for number, each in enumerate(state))
    return state


def _description(state: Any) -> Mapping[str, Any] | None:
    return state[DIVIDED] if isinstance(state, dict) and state.keys() == {DIVIDED} else None


def _described_in(state: Any) -> bool:
    if isinstance(state, dict):
        return _description(state) is not None or any(map(_described_in, state.values()))
    return type(state) in (list, tuple) and any(map(_described_in, state))


def _described(tensor: Any) -> dict[str, Any]:
    mesh = tensor.device_mesh
    placed = [getattr(each, "dim", None) for each in tensor.placements]
    told = {"shape": list(tensor.shape), "dtype": tensor.dtype, "mesh": list(mesh.shape), "dimensions": placed}
    return {DIVIDED: told}


def _is_first(tensor: Any) -> bool:
    """Return whether this rank stores its piece: of the ranks with the same one, the first in the mesh."""
    place = tensor.device_mesh.get_coordinate()
    replicas = zip(place or (), tensor.placements)
    return place is not None and not any(number for number, each in replicas if each.is_replicate())


def _piece(tensor: Any, place: str) -> dict[str, Any]:
    if any(each.is_partial() for each in tensor.placements):
        raise errors.StateError(
            f"{place} is a tensor with parts that are not added up yet ({tensor.placements}): it cannot be saved. Let "
            "state_dict() give tensor.redistribute(placements=[Replicate()])."
        )
    offset, size = _bounds(tensor.shape, tensor.device_mesh, tensor.placements)
    values = tensor.to_local().detach()
    if tuple(values.shape) != size or _has_gaps(tensor.placements):
        raise errors.StateError(
            f"{place} has a part of shape {tuple(values.shape)} on this rank, and {tuple(size)} was expected of "
            f"{tensor.placements}: give the session a tensor that is divided as torch's distribute_tensor does it."
        )
    if values.untyped_storage().nbytes() > 2 * values.nbytes:  # a view of the whole tensor would be stored whole
        values = values.clone()
    return {"offset": list(offset), "values": values}


def _has_gaps(placements: Sequence[Any]) -> bool:
    """Return whether a piece may consist of rows that do not follow each other. FSDP2 over tensor parallelism divides
    with steps too (_StridedShard), but divides the same dimension again, so that its pieces have no gaps.
    """
    dimensions = [getattr(each, "dim", None) for each in placements]
    strided = [number for number, each in enumerate(placements) if hasattr(each, "split_factor")]
    return any(dimensions[number] not in dimensions[number + 1 :] for number in strided)


def _bounds(shape: Sequence[int], mesh: Any, placements: Sequence[Any]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the offset and the size of this rank's piece of a tensor."""
    tensor = _made(torch.empty(0, device=mesh.device_type), mesh, placements, shape)
    (chunk,) = tensor.__create_chunk_list__()  # by this torch.distributed.checkpoint asks for it
    return tuple(chunk.offsets), tuple(chunk.sizes)


def _placements(told: Mapping[str, Any], place: str, like: Any) -> list[Any]:
    """Return the placements of a tensor of another shape than the parameter to which it belongs."""
    from torch.distributed.tensor import Replicate, Shard

    if len(told["dimensions"]) != like.device_mesh.ndim:
        raise errors.CheckpointError(
            f"{place} was divided over a mesh of the shape {told['mesh']}, now it is {list(like.device_mesh.shape)}: "
            "use a mesh with as many dimensions as before, or begin again with resume=False."
        )
    return [Replicate() if each is None else Shard(each) for each in told["dimensions"]]


def _own_piece(told: Mapping[str, Any], place: str, like: Any) -> torch.Tensor:
    if not is_divided(like):
        raise errors.CheckpointError(
            f"{place} was divided among ranks when it was saved, and is not now: divide the model as before, or begin "
            "again with resume=False."
        )
    shape = tuple(told["shape"])
    placements = like.placements if tuple(like.shape) == shape else _placements(told, place, like)
    offset, size = _bounds(shape, like.device_mesh, placements)
    if [*offset, *size] != [*told["offset"], *told["values"].shape]:
        raise errors.CheckpointError(
            f"{place} was divided over a mesh of the shape {told['mesh']}, and this rank has another part of it now: "
            "per_rank state needs the same mesh as before. Use that, or begin again with resume=False."
        )
    return _made(told["values"], like.device_mesh, placements, shape)


def _divided_as(whole: torch.Tensor, like: Any) -> torch.Tensor:
    """Return this rank's piece of a tensor that was saved whole."""
    offset, size = _bounds(whole.shape, like.device_mesh, like.placements)
    local = whole[tuple(slice(begin, begin + length) for begin, length in zip(offset, size))].clone()
    return _made(local, like.device_mesh, like.placements, whole.shape)


def _made(local: torch.Tensor, mesh: Any, placements: Sequence[Any], shape: Sequence[int]) -> Any:
    return _dtensor().from_local(
        local, mesh, placements, run_check=False, shape=torch.Size(shape), stride=_stride(shape)
    )


def _dtensor() -> Any:
    from torch.distributed.tensor import DTensor

    return DTensor


def _stride(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(math.prod(shape[number + 1 :]) for number in range(len(shape)))


def _parameters(optimizer: optim.Optimizer) -> list[torch.Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _likeness(kept: Any) -> Any:
    """Return a tree with the tensors as which those of a state are to be divided, as far as they are known.

    An optimizer has no state before its first step: it will be divided as its parameters are.
    """
    if isinstance(kept, optim.Optimizer):
        return {"state": dict(enumerate(_parameters(kept)))}
    return kept.state_dict()


def _child(like: Any, key: Any) -> Any:
    if isinstance(like, Mapping):
        return like.get(key)
    if isinstance(like, (list, tuple)):
        return like[key] if key < len(like) else None
    return like  # a parameter, for all entries of its state in an optimizer


def _same_shape(tensor: torch.Tensor, like: torch.Tensor) -> bool:
    return tensor.shape == like.shape and tensor.ndim > 0  # a number, as the count of an optimizer's steps, stays


def _mapped_pieces(path: Path) -> Mapping[str, Any]:
    """Return the pieces of another rank's shard. Only those are read that are looked at."""
    try:
        shard = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as cause:
        raise errors.CheckpointError(
            f"{path} is complete, but torch {torch.__version__} cannot load it ({cause}). "
            "Restore with the version that wrote it."
        ) from cause
    pieces: Mapping[str, Any] = shard["own"].get("pieces", {})
    return pieces


def _copy_overlap(stored: Mapping[str, Any], region: torch.Tensor, offset: Sequence[int]) -> int:
    """Copy the part of a stored piece that lies in the region at `offset`. Return the number of its values."""
    values: torch.Tensor = stored["values"]
    here, there = [], []
    for first, length, begin, size in zip(stored["offset"], values.shape, offset, region.shape):
        low, high = max(first, begin), min(first + length, begin + size)
        if low >= high:
            return 0
        here.append(slice(low - begin, high - begin))
        there.append(slice(low - first, high - first))
    part = values[tuple(there)]
    region[tuple(here)] = part
    return part.numel()
