"""Gradients that a script changes between the backward pass and the optimizer's step, as clip_grad_norm_ does.

With parameter servers they are each worker's own gradients then, and not the mean of all, so the update is another one
than that of one process on the joined batch.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

LOOKS = 10
"""The first steps in which changed gradients are looked for, where the script has named parameter servers."""


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

    def forget(self) -> None:
        """Forget all gradients, until a backward pass makes them anew."""
        self._marks, self._marked = [None] * len(self._parameters), False

    @property
    def found(self) -> bool:
        """Whether a gradient has changed since it was remembered."""
        pairs = zip(self._parameters, self._marks)
        return self._marked and any(mark is not None and _mark(one) != mark for one, mark in pairs)


class FirstSteps:
    """The first LOOKS steps of a script, in which changed gradients are told of, where it `says` so."""

    def __init__(self, parameters: Sequence[nn.Parameter], *, says: bool) -> None:
        self._changes, self._says, self._left = Changes(parameters), says, LOOKS
        self._changes.follow()

    def over(self) -> bool:
        """Look before a step. Return whether this was the last time."""
        found = self._changes.found
        if found and self._says:
            sys.stderr.write(
                "oarlock.train: the script changes gradients between backward() and optimizer.step(). With parameter "
                "servers they are each worker's own: clip_grad_norm_ clips the gradient of each worker, and not the "
                "mean. Where that is not meant, use strategy allreduce\n"
            )
        self._left -= 1
        if not found and self._left > 0:
            self._changes.forget()  # the next pass may not reach every parameter
            return False
        self._changes.stop()
        return True


def _mark(parameter: torch.Tensor) -> tuple[int, int] | None:
    gradient = parameter.grad
    return None if gradient is None else (id(gradient), gradient._version)
