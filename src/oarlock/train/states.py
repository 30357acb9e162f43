"""The state of a session's objects between two steps, apart from that which the exchanges alone change.

Weights and the moments of an optimizer change in exchanges alone. The rest a script changes even where there are no
gradients: the position in the data, schedulers, the settings of an optimizer, the buffers of BatchNorm.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Set
from typing import Any

import torch
from torch import nn, optim


class Mark:
    """Copies of the states at a boundary of steps. Those of the buffers of models use their memory again and again.

    `exchanged` has the ids of the parameters that the exchanges change. The copies lack their weights, and the moments
    of optimizers.
    """

    def __init__(self, state: Mapping[str, Any], exchanged: Set[int]) -> None:
        self._state = state
        # To look for the buffers in all modules takes longer than to copy those of a hundred layers.
        self._holders = {name: _holders(kept) for name, kept in state.items() if trains(kept, exchanged)}
        self.values: dict[str, Any] = {}

    @torch.no_grad()
    def take(self) -> None:
        """Copy the present states."""
        for name, kept in self._state.items():
            if name in self._holders:
                buffers = {prefix + each: one for prefix, held in self._holders[name] for each, one in held.items()}
                self.values[name] = _again(buffers, self.values.get(name, {}))
            elif isinstance(kept, nn.Module):
                self.values[name] = _again(kept.state_dict(), self.values.get(name, {}))
            elif isinstance(kept, optim.Optimizer):
                groups = (
                    {name: value for name, value in each.items() if name != "params"} for each in kept.param_groups
                )
                self.values[name] = [copied(each) for each in groups]
            else:  # it may keep a state that it is given: the next copy needs memory of its own
                self.values[name] = copied(kept.state_dict())


def put_back(kept: Any, state: Any, exchanged: Set[int]) -> None:
    """Give the object its state of a mark."""
    if isinstance(kept, optim.Optimizer):
        for group, before in zip(kept.param_groups, state):
            for name, value in before.items():
                if isinstance(value, torch.Tensor) and isinstance(group.get(name), torch.Tensor):
                    group[name].copy_(value)  # a scheduler, or a compiled step, may hold this very tensor
                else:
                    group[name] = value
    elif trains(kept, exchanged):
        with torch.no_grad():
            for name, buffer in kept.named_buffers():
                if state.get(name) is not None:
                    buffer.copy_(state[name])
    else:
        kept.load_state_dict(state)


def trains(kept: Any, exchanged: Set[int]) -> bool:
    """Return whether it is a model with exchanged gradients."""
    return isinstance(kept, nn.Module) and any(id(parameter) in exchanged for parameter in kept.parameters())


def _holders(model: nn.Module) -> list[tuple[str, dict[str, torch.Tensor | None]]]:
    """Return the dictionaries in which the modules have their buffers, each with its module's prefix."""
    named = model.named_modules()
    return [(f"{name}." if name else "", module._buffers) for name, module in named if module._buffers]


def _again(values: dict[str, Any], before: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy, in the memory of the copy before where a tensor's shape and type are the same."""
    made = copy.copy(values)  # of its own type
    here: list[torch.Tensor] = []
    there: list[torch.Tensor] = []
    for name, value in values.items():
        kept = before.get(name)
        if isinstance(value, torch.Tensor) and isinstance(kept, torch.Tensor) and _alike(value, kept):
            made[name] = kept
            here.append(value)
            there.append(kept)
        else:
            made[name] = copied(value)
    if here:
        torch._foreach_copy_(there, here)
    return made


def _alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.shape == other.shape and one.dtype == other.dtype and one.device == other.device


def copied(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        made = copy.copy(value)  # of its own type
        made.update({name: copied(each) for name, each in value.items()})
        return made
    if type(value) in (list, tuple):
        return type(value)(copied(each) for each in value)
    return copy.deepcopy(value)
