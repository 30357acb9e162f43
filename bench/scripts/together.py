"""One rank of a training with timed steps. Arguments: method, steps. The last line of rank 0 is a JSON object.

The model is an MLP of 25 MB, the batch 64 examples. DistributedDataParallel is the reference.
"""

import json
import os
import sys
import time
from pathlib import Path

import torch
from torch import distributed, nn

from oarlock import train

METHODS = {
    "allreduce": {},
    "bf16": {"compression": "bf16"},
    "powersgd": {"compression": train.PowerSGD(rank=1)},
    "dgc": {"compression": train.DGC(warm_up_steps=0)},
    "dgc-half": {"compression": train.DGC(warm_up_steps=0, half_values=True)},
    "ps": {"strategy": "ps"},
}
method, steps = sys.argv[1], int(sys.argv[2])
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


many = method in ("fused", "each")
model: nn.Module = (
    Many() if many else nn.Sequential(*[layer for _ in range(4) for layer in (nn.Linear(1256, 1256), nn.ReLU())])
)
if method == "ddp":
    model = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
if method in METHODS or method == "fused":
    train.data_parallel(model, optimizer, **METHODS.get(method, {}))
x = torch.randn(64, 1256)


def sent() -> int:
    """Return the bytes that this machine has put on the link, with the headers of TCP and IP."""
    total = 0
    for line in Path("/proc/net/dev").read_text().splitlines()[2:]:
        name, _, numbers = line.partition(":")
        if name.strip() != "lo":
            total += int(numbers.split()[8])
    return total


def step() -> None:
    optimizer.zero_grad()
    (model(x) - x).square().mean().backward()
    if method == "each":
        for parameter in model.parameters():
            distributed.all_reduce(parameter.grad)
    optimizer.step()


for _ in range(2):
    step()
seconds, before = [], sent()
for _ in range(steps):
    began = time.perf_counter()
    step()
    seconds.append(time.perf_counter() - began)
if world.rank == 0:
    size = sum(each.numel() * each.element_size() for each in model.parameters())
    print(json.dumps({"seconds": seconds, "sent": (sent() - before) / steps, "bytes": size}), flush=True)
if method == "ps":
    train.shutdown()
else:
    if distributed.is_initialized():
        distributed.barrier()
    sys.stdout.flush()
    os._exit(0)  # now and then gloo aborts while the interpreter ends, which is not measured here
