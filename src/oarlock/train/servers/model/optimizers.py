"""The optimizer of a worker, as plain values for the server that runs it, and its state as tensors.

The server builds an optimizer from the name of a class of torch.optim and the settings of its groups. No code travels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn, optim

from oarlock.train import errors
from oarlock.train.servers.wire import frames, memory

ELEMENTWISE = frozenset(
    {"ASGD", "Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop", "SGD"}
)
"""Optimizers that treat each element by itself, so that a tensor may be cut."""
WHOLE = frozenset({"Adafactor", "Muon", "SparseAdam"})
_PLAIN = (bool, int, float, str, type(None))


def kind_of(optimizer: optim.Optimizer) -> str:
    """Return the name of its class. StateError if the servers cannot run it."""
    name = type(optimizer).__name__
    if name not in ELEMENTWISE | WHOLE or getattr(optim, name, None) is not type(optimizer):
        known = ", ".join(sorted(each for each in ELEMENTWISE | WHOLE if hasattr(optim, each)))
        raise errors.StateError(
            f"parameter servers cannot run the optimizer {name}: they run torch.optim's {known}. "
            "Use one of them, or strategy='allreduce'."
        )
    return name


def settings_of(optimizer: optim.Optimizer) -> list[dict[str, Any]]:
    """Return the present settings of each group, as plain values."""
    return [
        {name: _plain(value, name) for name, value in group.items() if name not in {"params", "param_names"}}
        for group in optimizer.param_groups
    ]


def prepare() -> None:
    """Import what torch imports with the first optimizer of a process. That takes about as long as torch itself, and
    workers should not wait for it in a step.
    """
    optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)


def build(
    kind: str, settings: Sequence[Mapping[str, Any]], members: Sequence[Sequence[nn.Parameter]]
) -> optim.Optimizer:
    """Return the optimizer of these groups. Raises Refused for names and settings that torch.optim does not take."""
    if kind not in ELEMENTWISE | WHOLE or not hasattr(optim, kind):
        raise frames.Refused(f"torch {torch.__version__} on the server has no optimizer {kind}")
    groups = [{**_here(each), "params": list(params)} for each, params in zip(settings, members) if params]
    try:
        made: optim.Optimizer = getattr(optim, kind)(groups)
    except (TypeError, ValueError, KeyError, RuntimeError) as cause:
        raise frames.Refused(
            f"torch {torch.__version__} on the server cannot make the optimizer {kind}: {cause}"
        ) from None
    return made


def change(optimizer: optim.Optimizer, settings: Sequence[Mapping[str, Any]]) -> None:
    """Give the groups these settings. A changed setting keeps its type."""
    for group, changed in zip(optimizer.param_groups, settings):
        group.update(_here(changed))


def _here(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings as the server takes them. `capturable` is for a worker's GPU: a processor has no graphs."""
    made = {name: tuple(value) if isinstance(value, list) else value for name, value in settings.items()}
    return {**made, "capturable": False} if "capturable" in made else made


def _plain(value: Any, name: str) -> Any:
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        return value.item()
    if isinstance(value, (list, tuple)):
        return [_plain(each, name) for each in value]
    if isinstance(value, _PLAIN):
        return value
    raise errors.StateError(
        f"the optimizer's setting {name} is a {type(value).__name__}, which cannot be sent to a parameter server"
    )


@dataclass(frozen=True)
class Slot:
    """One value of an optimizer's state: that of this `name` among the `values` of parameter number `index`."""

    index: int
    name: str
    values: dict[str, Any]

    @property
    def is_tensor(self) -> bool:
        return isinstance(self.values[self.name], torch.Tensor)


def slots_of(optimizer: optim.Optimizer, parameters: Sequence[nn.Parameter]) -> list[Slot]:
    """Return all values of the state, where they are."""
    values = ((index, optimizer.state.get(parameter, {})) for index, parameter in enumerate(parameters))
    return [Slot(index, name, some) for index, some in values for name in some]


def entries_of(slots: Sequence[Slot]) -> list[list[Any]]:
    """Return an entry [number of the parameter, name, type, shape, value] for each, as `state_of` does."""
    found: list[list[Any]] = []
    for slot in slots:
        value = slot.values[slot.name]
        if slot.is_tensor:
            found.append([slot.index, slot.name, memory.name_of(value.dtype), list(value.shape), None])
        else:
            found.append([slot.index, slot.name, None, None, value])
    return found


def state_of(
    optimizer: optim.Optimizer, parameters: Sequence[nn.Parameter]
) -> tuple[list[list[Any]], list[torch.Tensor]]:
    """Return the state: an entry [number of the parameter, name, type, shape, value] for each, and the tensors' values
    on the CPU. An entry whose type is None is the plain value.
    """
    slots = slots_of(optimizer, parameters)
    tensors = []
    for slot in slots:
        if slot.is_tensor:
            value = slot.values[slot.name].detach()
            dense = value.to_dense() if value.is_sparse else value
            tensors.append(dense.to("cpu", copy=True).contiguous())
    return entries_of(slots), tensors


def load_state(
    optimizer: optim.Optimizer,
    parameters: Sequence[nn.Parameter],
    entries: Sequence[Sequence[Any]],
    tensors: Sequence[torch.Tensor],
    device: torch.device,
) -> None:
    """Take the state that `state_of` returned. Raises Refused where it does not fit."""
    values = iter(tensors)
    state: dict[nn.Parameter, dict[str, Any]] = {}
    for index, name, dtype, _, plain in entries:
        if not 0 <= index < len(parameters):
            raise frames.Refused("the state belongs to a piece that is not here")
        value = next(values).to(device) if dtype is not None else plain
        state.setdefault(parameters[index], {})[name] = value
    for parameter, values_of in state.items():
        optimizer.state[parameter] = values_of
