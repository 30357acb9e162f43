"""One rank of a training with timed steps. The last line of rank 0 is a JSON object.

together.py METHOD STEPS [MODEL [SECONDS [OF]]]

MODEL is `mlp` (25 MB, the batch 64 examples), `table` (an embedding of 25 MB, of which each step uses 512 rows; its
gradient is sparse for parameter servers) or a network of bench/train/networks.py: tensors with a quarter of their
width, and sleeps of SECONDS a step in the place of its arithmetic, divided among the layers as that is. `whole NAME` is
such a network with the tensors in their full width.
DistributedDataParallel is the reference. The steps of `auto` and `auto-lossy` are those after the choice; the object
tells of the steps before it, too. With OF, the steps of the whole training, STEPS are timed in each stage of it: the
warm-up of `dgc-warm`, and of `auto-lossy` where it chose that, has four of them.
"""

import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import distributed, nn

sys.path.insert(0, str(Path(__file__).parents[2]))
from bench.train import networks

from oarlock import train
from oarlock.train.strategies import dataparallel

NARROWER = 4
METHODS: dict[str, dict[str, Any]] = {
    "allreduce": {"strategy": "allreduce"},
    "bf16": {"strategy": "allreduce", "compression": "bf16"},
    "powersgd": {"strategy": "allreduce", "compression": train.PowerSGD(rank=1)},
    "powersgd-2": {"strategy": "allreduce", "compression": "powersgd"},
    "dgc": {"strategy": "allreduce", "compression": train.DGC(warm_up_steps=0)},
    "dgc-warm": {"strategy": "allreduce", "compression": "dgc"},
    "dgc-half": {"strategy": "allreduce", "compression": train.DGC(warm_up_steps=0, half_values=True)},
    "ps": {"strategy": "ps"},
    "auto": {"strategy": "auto"},
    "auto-lossy": {"strategy": "auto", "compression": "auto"},
}
method, steps = sys.argv[1], int(sys.argv[2])
name, seconds_a_step, of = (sys.argv[3:] + ["mlp", "0", "0"][len(sys.argv[3:]) :])[:3]
if method == "auto-lossy":
    os.environ["OARLOCK_STRATEGY"] = json.dumps({"kind": "auto", "compression": "auto"})
torch.set_num_threads(1)
world = train.init()
torch.manual_seed(world.rank)


class Many(nn.Module):
    """500 tensors of 10 KB, whose gradients cost nothing to compute."""

    def __init__(self) -> None:
        super().__init__()
        self.all = nn.ParameterList([torch.zeros(2560) for _ in range(500)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat(list(self.all)).sum() * x[0, 0]


class Table(nn.Module):
    """An embedding, and other rows of it in each step."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.Embedding(100_000, 64, sparse=method == "ps")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        numbers: torch.Tensor = self.rows(torch.randint(self.rows.num_embeddings, (512,)))
        return numbers


class Sleep(torch.autograd.Function):
    """A layer's arithmetic: a third of its time in the forward pass, and gradients that are there already."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, seconds: float, ready: list[torch.Tensor], *weights: torch.Tensor) -> Any:
        ctx.seconds, ctx.ready = seconds, ready
        time.sleep(seconds / 3)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        time.sleep(ctx.seconds * 2 / 3)
        return gradient, None, None, *ctx.ready


class Sleeping(nn.Module):
    """A layer with the tensors of another one."""

    def __init__(self, shapes: Sequence[tuple[int, ...]], seconds: float) -> None:
        super().__init__()
        self.weights = nn.ParameterList([torch.zeros(shape) for shape in shapes])
        self.ready, self.seconds = [torch.randn(shape) for shape in shapes], seconds

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        asleep: torch.Tensor = Sleep.apply(x, self.seconds, self.ready, *self.weights)
        return asleep


def narrow(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of the tensor in a network of a quarter of the width."""
    return tuple(max(1, size // NARROWER) for size in shape[:2]) + shape[2:]


def sleeping(layers: list[networks.Layer], seconds: float, *, full_width: bool) -> nn.Module:
    whole = sum(layer.operations for layer in layers)
    return nn.Sequential(
        *[
            Sleeping(
                one.shapes if full_width else [narrow(each) for each in one.shapes],
                seconds * one.operations / whole,
            )
            for one in layers
        ]
    )


if method in ("fused", "each"):
    model: nn.Module = Many()
elif name == "table":
    model = Table()
elif name == "mlp":
    model = nn.Sequential(*[layer for _ in range(4) for layer in (nn.Linear(1256, 1256), nn.ReLU())])
else:
    network = networks.named(name.removeprefix("whole "))
    model = sleeping(network, float(seconds_a_step), full_width=name.startswith("whole "))
size = sum(each.numel() * each.element_size() for each in model.parameters())
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
whole = model
if method == "ddp":
    model = nn.parallel.DistributedDataParallel(model)
elif method == "ps-async":
    train.data_parallel(model, optimizer, strategy=train.ParameterServers(sync=False))
elif method in METHODS or method == "fused":
    train.data_parallel(model, optimizer, **METHODS.get(method, {}))
x = torch.randn(64, 1256)


def sent() -> int:
    """Return the bytes that this machine has put on the link, with the headers of TCP and IP."""
    total = 0
    for line in Path("/proc/net/dev").read_text().splitlines()[2:]:
        device, _, numbers = line.partition(":")
        if device.strip() != "lo":
            total += int(numbers.split()[8])
    return total


def step() -> float:
    began = time.perf_counter()
    optimizer.zero_grad()
    (model(x) - (x if name == "mlp" else 0.0)).square().mean().backward()
    if method == "each":
        for parameter in model.parameters():
            distributed.all_reduce(parameter.grad)
    optimizer.step()
    return time.perf_counter() - began


def go_to(exchanges: int) -> None:
    """Let the compression exchange as after so many exchanges."""
    shared = strategy.shared()
    (shared["shared"] if "exchange" in shared else shared)["exchanges"] = exchanges
    strategy.catch_up(shared, made=False)


before_choice: list[float] = []
choice: dict[str, Any] = {}
strategy: Any = dataparallel.strategy_of(whole)
if int(of):
    strategy.steps_left = int(of)  # as a session would tell
if method.startswith("auto") and world.world_size > 1 and strategy is not None:
    waits_for = type(strategy).__name__ == "Automatic"
    while waits_for and "exchange" not in choice:  # the order of sums is told before it
        before_choice.append(step())
        choice = strategy.choice()
warm_up = [step() for _ in range(2)]
if before_choice:
    before_choice += warm_up
left = max(1, int(of) - len(before_choice))
warms_up = int(of) > 0 and "dgc" in (method.partition("-")[0], choice.get("exchange"))
stages = []
for begin, count in train.DGC().stages(left) if warms_up else [(0, left)]:
    if warms_up:
        go_to(begin)
    before = sent()
    seconds = [step() for _ in range(steps)]
    stages.append((count, seconds))
if world.rank == 0:
    told = {
        "seconds": seconds,
        "sent": (sent() - before) / steps,
        "bytes": size,
        "before_choice": before_choice,
        "stages": stages,
        "choice": choice.get("exchange", "none"),
    }
    print(json.dumps(told), flush=True)
if "ps" in (method, method[:2], choice.get("exchange")):
    train.shutdown()
else:
    if distributed.is_initialized():
        distributed.barrier()
    sys.stdout.flush()
    os._exit(0)  # now and then gloo aborts while the interpreter ends, which is not measured here
