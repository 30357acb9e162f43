"""The momentum and the weight decay of the user's SGD while gradients are compressed: applied once, by hooks around its
step.

The gradient of a compressed tensor already contains its momentum. So the step runs without momentum and weight decay,
on gradients to which both were added where they are still missing:

    x <- weight_decay * parameter, and the mean gradient where the tensor is not compressed
    buffer <- momentum buffer + x
    gradient <- what was exchanged compressed, and the buffer (Nesterov: x + momentum buffer)

`buffer` is the optimizer's own `momentum_buffer`, so its state_dict holds it. After the step the settings are back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn, optim

from oarlock.train import errors

_TAKEN_OVER = ("momentum", "weight_decay", "nesterov")
_HINT = "Give data_parallel(model, optimizer, compression='dgc') a torch.optim.SGD, or use another compression."


class Momentum:
    """The settings of `optimizer`, an SGD that steps all parameters of `named`. `compressed` are the ids of the
    parameters whose gradient contains its momentum. Raises StateError for any other optimizer.
    """

    def __init__(self, optimizer: optim.Optimizer | None, named: Sequence[tuple[str, nn.Parameter]]) -> None:
        if optimizer is None:
            raise errors.StateError(f"compression dgc takes part in the optimizer's step, and got none. {_HINT}")
        if not isinstance(optimizer, optim.SGD):
            kind = type(optimizer).__name__
            raise errors.StateError(f"compression dgc does not know the momentum of {kind}. {_HINT}")
        self.compressed: set[int] = set()
        self._optimizer = optimizer
        stepped = {id(one) for group in optimizer.param_groups for one in group["params"]}
        self._held: list[tuple[dict[str, Any], dict[str, Any]]] = []
        for name, parameter in named:
            if id(parameter) not in stepped:
                raise errors.StateError(f"the optimizer does not step {name}: give it that parameter, or freeze it")
        for group in optimizer.param_groups:
            if group["dampening"] or group["maximize"]:
                raise errors.StateError("compression dgc has no dampening and no maximize: leave them out of the SGD")
        self._hooks = [
            optimizer.register_step_pre_hook(self._before),
            optimizer.register_step_post_hook(self._after),
        ]

    def remove(self) -> None:
        """Leave the optimizer as it was."""
        for hook in self._hooks:
            hook.remove()

    def settings(self) -> dict[int, tuple[float, bool]]:
        """Return the present momentum of each parameter, and whether it is Nesterov's, by the parameter's id."""
        return {
            id(parameter): (float(group["momentum"]), bool(group["nesterov"]))
            for group in self._optimizer.param_groups
            for parameter in group["params"]
        }

    @torch.no_grad()
    def _before(self, optimizer: optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if kwargs.get("closure") is not None or any(one is not None for one in args[1:]):
            raise errors.StateError("compression dgc needs backward() before step(): call step() without a closure")
        self._restore()  # a step that failed
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._complete(parameter, group)
            self._held.append((group, {name: group[name] for name in _TAKEN_OVER}))
            group.update(momentum=0.0, weight_decay=0.0, nesterov=False)

    def _complete(self, parameter: nn.Parameter, group: dict[str, Any]) -> None:
        """Add what the gradient still misses."""
        gradient, momentum, decay = parameter.grad, group["momentum"], group["weight_decay"]
        compressed = id(parameter) in self.compressed
        state = self._optimizer.state[parameter]
        if momentum == 0:
            if decay:
                gradient.add_(parameter, alpha=decay)
            return
        buffer = state.get("momentum_buffer")
        if compressed:
            if not decay and buffer is None:
                return
            if buffer is not None and not group["nesterov"]:
                gradient.add_(buffer.mul_(momentum).add_(parameter, alpha=decay))
                return
            own = parameter * decay
        else:
            own = gradient.add(parameter, alpha=decay) if decay else gradient.clone()
            gradient.zero_()
        if buffer is None:
            buffer = state["momentum_buffer"] = own.clone()
        else:
            buffer.mul_(momentum).add_(own)
        if group["nesterov"]:
            gradient.add_(own).add_(buffer, alpha=momentum)
        else:
            gradient.add_(buffer)

    def _after(self, optimizer: optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._restore()

    def _restore(self) -> None:
        for group, values in self._held:
            group.update(values)
        self._held.clear()
