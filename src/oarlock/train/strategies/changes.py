"""Gradients that a script changes between the backward pass and the optimizer's step, as clip_grad_norm_ does.

With parameter servers they are each worker's own gradients then, and not the mean of all, so the update is another one
than that of one process on the joined batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn


class Changes:
    """The gradients of `parameters` as the backward pass has left them."""

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self._parameters = parameters
        self._marks: list[tuple[int, int] | None] = [None] * len(parameters)
        self._marked = False
        self._hooks: list[Any] = []

    def mark(self) -> None:
        """Remember all gradients."""
        self._marks, self._marked = [_mark(one) for one in self._parameters], True

    def follow(self) -> None:
        """Remember each gradient from now on when a backward pass has made it."""
        for index, parameter in enumerate(self._parameters):
            self._hooks.append(parameter.register_post_accumulate_grad_hook(self._hook(index)))

    def _hook(self, index: int) -> Any:
        def made(parameter: torch.Tensor) -> None:
            self._marks[index], self._marked = _mark(parameter), True

        return made

    def stop(self) -> None:
        """Look no more."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        self._marked = False

    @property
    def found(self) -> bool:
        """Whether a gradient has changed since it was remembered."""
        pairs = zip(self._parameters, self._marks)
        return self._marked and any(mark is not None and _mark(one) != mark for one, mark in pairs)


def _mark(parameter: torch.Tensor) -> tuple[int, int] | None:
    gradient = parameter.grad
    return None if gradient is None else (id(gradient), gradient._version)
