"""The state of a session's objects between two steps, apart from that which the exchanges alone change.

Weights and the moments of an optimizer change in exchanges alone. The rest a script changes even where there are no
gradients: the position in the data, schedulers, the settings of an optimizer, the buffers of BatchNorm.
"""

from __future__ import annotations

import copy
from collections.abc import Set
from typing import Any

import torch
from torch import nn, optim


def plain(kept: Any, exchanged: Set[int]) -> Any:
    """Return a copy of the state, except weights and an optimizer's moments. `exchanged` has the ids of the parameters
    whose gradients are exchanged.
    """
    if isinstance(kept, optim.Optimizer):
        return [
            {name: copied(value) for name, value in group.items() if name != "params"} for group in kept.param_groups
        ]
    if trains(kept, exchanged):
        return {name: copied(buffer) for name, buffer in kept.named_buffers()}
    return copied(kept.state_dict())


def put_back(kept: Any, state: Any, exchanged: Set[int]) -> None:
    """Give the object the state that `plain` returned."""
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
                if name in state:
                    buffer.copy_(state[name])
    else:
        kept.load_state_dict(state)


def trains(kept: Any, exchanged: Set[int]) -> bool:
    """Return whether it is a model whose gradients are exchanged."""
    return isinstance(kept, nn.Module) and any(id(parameter) in exchanged for parameter in kept.parameters())


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
