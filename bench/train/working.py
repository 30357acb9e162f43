"""The library's own work in a step: the processor time of compression and of hooks, without any exchange."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Sequence

import torch
from torch import nn

from bench import table
from bench.train import compressing, networks
from oarlock import train
from oarlock.train.compression import dgc

STEP_S = 0.039
"""The step of the MLP of 25 MB, with a batch of 64 on one quiet core."""
PROFILED = 3
"""The first steps, which the profiler records."""
MLP = [shape for _ in range(4) for shape in ((1256, 1256), (1256,))]


def run(rounds: int = 40) -> list[table.Row]:
    torch.set_num_threads(1)
    return [
        _compression("25 MB MLP", MLP, rounds, 10.0),
        _compression("ResNet-50's shapes", networks.shapes(networks.resnet50()), rounds, None),
        _hooks(rounds * 25),
    ]


def _compression(name: str, shapes: Sequence[tuple[int, ...]], rounds: int, reach: float | None) -> table.Row:
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
        f"ms; {sent / 1e3:.0f} KB of {size / 1e6:.0f} MB sent, headers not counted; load {os.getloadavg()[0]:.0f}"
    )
    what = f"DGC's own work per 25 MB on one core, {name}"
    return table.Row("working", what, table.median(work), "ms", reach, detail=detail)


def _processor_s(work: Callable[[], object]) -> float:
    began = time.thread_time()
    work()
    return time.thread_time() - began


def _hooks(steps: int) -> table.Row:
    """Return the processor time that all ready-made hooks together add to a step, as a part of the step of 39 ms."""
    model = nn.ParameterList([torch.randn(shape) for shape in MLP])
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with tempfile.TemporaryDirectory() as folder:
        ready = hooks(model, optimizer, folder, PROFILED + steps)
        (_, without), (profile_s, with_all) = (_steps(model, optimizer, some, steps) for some in ([], ready))
    detail = (
        f"a session takes {without * 1e6:.0f} us a step without hooks, {with_all * 1e6:.0f} us with; in every 100th "
        f"step the norms of 25 MB of weights and of their gradients; the profiler takes {profile_s:.1f} s once, for "
        f"{PROFILED} steps that are not in the figure"
    )
    what = "all five hooks, of a step of 39 ms"
    return table.Row("working", what, 100 * (with_all - without) / STEP_S, "%", 1.0, detail=detail)


def hooks(model: nn.Module, optimizer: torch.optim.Optimizer, folder: str, last: int) -> list[train.Hook]:
    """Return every ready-made hook, for a training of so many steps."""
    return [
        train.NaNGuard("loss"),
        train.StopAtStep(last),
        train.EarlyStopping("loss", patience=1 << 30),
        train.Summaries(model, optimizer),
        train.Profiler(folder, first=1, steps=PROFILED),
    ]


def _steps(
    model: nn.Module, optimizer: torch.optim.Optimizer, some: list[train.Hook], steps: int
) -> tuple[float, float]:
    """Return the processor seconds of the first steps together, and those of one of the `steps` after them."""
    total = PROFILED + steps
    began = after = time.thread_time()
    with train.Session(model=model, optimizer=optimizer, total_steps=total, hooks=some, resume=False) as session:
        for step in session.steps():
            if step == PROFILED + 1:
                after = time.thread_time()
            session.log(loss=1.0 / step)
        return after - began, (time.thread_time() - after) / steps
