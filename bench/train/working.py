"""The library's own work in a step: the processor time of compression and of hooks, without any exchange."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from bench import table
from bench.train import compressing, networks
from oarlock import train
from oarlock.train.compression import dgc

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


def _compression(
    name: str, shapes: Sequence[tuple[int, ...]], rounds: int, reach: float | None, fewer: float
) -> table.Row:
    made = dgc.DeepGradientCompression(train.DGC(warm_up_steps=0, half_values=True))
    size = compressing.size(shapes)
    here, there = (torch.zeros(size // 4) for _ in range(2))
    copied: list[float] = []

    def seconds(work: Callable[[], object]) -> float:
        copied.append(_processor_s(lambda: there.copy_(here)))
        return _processor_s(work)

    took = compressing.work(made, shapes, torch.device("cpu"), rounds, seconds)
    work, copies = ([each * 1e3 * 25e6 / size for each in all_s] for all_s in (took, copied))
    sent = made.figures.sent_bytes / rounds
    detail = (
        f"{table.spread(work, 'ms')}, the least {min(work):.1f} ms; copying the 25 MB takes {table.median(copies):.1f} "
        f"ms; {sent / 1e3:.0f} KB of {size / 1e6:.0f} MB sent ({size / sent:.0f} times fewer, without headers; goal "
        f"{fewer:.0f}); load {os.getloadavg()[0]:.0f}"
    )
    what = f"DGC's own work per 25 MB on one core, {name}"
    return table.Row("working", what, table.median(work), "ms", reach, detail=detail)


def _processor_s(work: Callable[[], object]) -> float:
    began = time.thread_time()
    work()
    return time.thread_time() - began


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
