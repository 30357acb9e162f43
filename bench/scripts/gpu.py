"""One rank of several trainings on a GPU, in turns. The last line of rank 0 is a JSON object: the seconds of the steps
of each method.

gpu.py ROUNDS STEPS METHOD...

Each method trains a perceptron of 105 MB. DistributedDataParallel is the reference.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import distributed, nn

from oarlock import train

METHODS: dict[str, dict[str, Any]] = {
    "allreduce": {"strategy": "allreduce"},
    "bf16": {"strategy": "allreduce", "compression": "bf16"},
    "powersgd": {"strategy": "allreduce", "compression": train.PowerSGD(rank=1)},
    "dgc": {"strategy": "allreduce", "compression": train.DGC(warm_up_steps=0)},
    "ps": {"strategy": "ps"},
}
WIDTH = 2560

rounds, steps, methods = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
world = train.init()
x = torch.randn(256, WIDTH, device=world.device)


def made(method: str) -> Callable[[], float]:
    """Return a step of this method's training, which returns its seconds."""
    torch.manual_seed(world.rank)
    model = nn.Sequential(*[layer for _ in range(4) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]).to(world.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    whole: nn.Module = model
    if method == "ddp":
        whole = nn.parallel.DistributedDataParallel(model, device_ids=[world.device])
    else:
        train.data_parallel(model, optimizer, **METHODS[method])

    def step() -> float:
        torch.cuda.synchronize()
        began = time.perf_counter()
        optimizer.zero_grad()
        whole(x).square().mean().backward()
        optimizer.step()
        torch.cuda.synchronize()
        return time.perf_counter() - began

    return step


trainings = {method: made(method) for method in methods}
seconds: dict[str, list[float]] = {method: [] for method in methods}
for number in range(rounds + 1):  # the first one is not counted
    for method, step in trainings.items():
        distributed.barrier()
        took = [step() for _ in range(steps)]
        seconds[method] += took if number else []
if world.rank == 0:
    print(json.dumps(seconds), flush=True)
distributed.barrier()
sys.stdout.flush()
train.shutdown()
os._exit(0)
