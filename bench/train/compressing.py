"""A compression's own work: one of two ranks compresses random gradients, with collectives that only copy."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from unittest import mock

import torch
from torch import nn

from oarlock.train import worlds
from oarlock.train.compression import nodes
from oarlock.train.strategies.wholegradient import WholeGradient


class Done:
    def wait(self) -> None:
        """Return at once: nothing travels here."""


def work(
    made: WholeGradient,
    shapes: Sequence[tuple[int, ...]],
    device: torch.device,
    rounds: int,
    seconds: Callable[[Callable[[], None]], float],
) -> list[float]:
    """Return what `seconds` gives for each of these exchanges of gradients with these shapes."""
    parameters = [nn.Parameter(torch.zeros(shape, device=device)) for shape in shapes]
    optimizer = torch.optim.SGD(parameters, 0.01, momentum=0.9)
    made.world = worlds.World(0, 2, 0, device)

    def gather(everyones: torch.Tensor, ours: torch.Tensor, **_: object) -> Done:
        for row in everyones.view(2, -1):
            row.copy_(ours)
        return Done()

    took = []
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(worlds, "nodes", nodes.Nodes(0, [[0], [1]])))
        stack.enter_context(mock.patch.object(nodes, "_gather", gather))
        stack.enter_context(mock.patch("torch.distributed.all_reduce", return_value=Done()))
        made.take_over([(str(number), each) for number, each in enumerate(parameters)], optimizer)
        for _ in range(rounds):
            for parameter in parameters:
                parameter.grad = torch.randn_like(parameter)
            took.append(seconds(made.rehearse))
    return took


def size(shapes: Sequence[tuple[int, ...]]) -> int:
    """Return the bytes of fp32 gradients with these shapes."""
    return sum(4 * torch.Size(shape).numel() for shape in shapes)
