"""The library's own work in a step: the processor time of compression and of hooks, without any exchange."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any
from unittest import mock

import torch
from torch import nn

from bench import table
from bench.train import networks
from oarlock import train
from oarlock.train.compression import dgc
from oarlock.train.worlds import World

STEP_S = 0.039
"""The step of the MLP of 25 MB, with a batch of 64 on one quiet core."""


def run(rounds: int = 40) -> list[table.Row]:
    torch.set_num_threads(1)
    mlp = [shape for _ in range(4) for shape in ((1256, 1256), (1256,))]
    return [
        _compression("25 MB MLP", mlp, rounds, 10.0, 600.0),
        _compression("ResNet-50's shapes", networks.shapes(networks.resnet50()), rounds, None, 270.0),
        _hooks(rounds * 25),
    ]


class _Done:
    def wait(self) -> None:
        """Return at once: nothing travels here."""


def _compression(
    name: str, shapes: Sequence[tuple[int, ...]], rounds: int, reach: float | None, fewer: float
) -> table.Row:
    """Compress random gradients as one of two ranks, with collectives that only copy."""
    parameters = [nn.Parameter(torch.zeros(shape)) for shape in shapes]
    optimizer = torch.optim.SGD(parameters, 0.01, momentum=0.9)
    made = dgc.DeepGradientCompression(train.DGC(warm_up_steps=0, half_values=True))
    made.world = World(0, 2, 0, torch.device("cpu"))

    def gather(everyones: torch.Tensor, ours: torch.Tensor, *, async_op: bool) -> _Done:
        for row in everyones.view(2, -1):
            row.copy_(ours)
        return _Done()

    took: list[float] = []
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(dgc, "_gather", gather))
        stack.enter_context(mock.patch.object(dgc.distributed, "all_reduce", return_value=_Done()))
        made.take_over([(str(number), each) for number, each in enumerate(parameters)], optimizer)
        for _ in range(rounds):
            for parameter in parameters:
                parameter.grad = torch.randn_like(parameter)
            began = time.thread_time()
            made.rehearse()
            took.append(time.thread_time() - began)
    size = sum(each.numel() * each.element_size() for each in parameters)
    work = [seconds * 1e3 * 25e6 / size for seconds in took]
    sent = made.figures.sent_bytes / rounds
    detail = (
        f"{table.spread(work, 'ms')}, the least {min(work):.1f} ms; {sent / 1e3:.0f} KB of {size / 1e6:.0f} MB sent "
        f"({size / sent:.0f} times fewer, without headers; goal {fewer:.0f}); load {os.getloadavg()[0]:.0f}"
    )
    what = f"DGC's own work per 25 MB on one core, {name}"
    return table.Row("working", what, table.median(work), "ms", reach, detail=detail)


def _hooks(steps: int) -> table.Row:
    """Return the processor time that the usual hooks add to a step, as a part of the step of 39 ms."""
    times = {}
    for name, hooks in (("without", []), ("with", [train.NaNGuard("loss"), train.StopAtStep(steps), _patience()])):
        model = nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        with train.Session(model=model, optimizer=optimizer, total_steps=steps, hooks=hooks, resume=False) as session:
            began = time.thread_time()
            for step in session.steps():
                session.log(loss=1.0 / step)
            times[name] = (time.thread_time() - began) / steps
    part = 100 * (times["with"] - times["without"]) / STEP_S
    detail = f"a session takes {times['without'] * 1e6:.0f} us a step without hooks, {times['with'] * 1e6:.0f} us with"
    return table.Row("working", "three hooks, of a step of 39 ms", part, "%", 1.0, detail=detail)


def _patience() -> Any:
    return train.EarlyStopping("loss", patience=1 << 30)
