"""Data parallelism: every process has the whole model and a part of each batch. The argument names the strategy.

    torchrun --nproc-per-node=2 data_parallel.py dgc
    oarlock run --workers 2 -- python data_parallel.py bf16
    oarlock run --workers 2 --ps 1 --strategy ps -- python data_parallel.py ps-async

Without an argument, the job file's `strategy:` chooses, or else `auto`: allreduce. The argument `auto` permits lossy
compression, which is then chosen by measurement.
"""

import sys

import torch
from torch import nn

from oarlock import train

STRATEGIES = {
    "allreduce": {"strategy": "allreduce"},
    "auto": {"compression": "auto"},
    "bf16": {"strategy": "allreduce", "compression": "bf16"},
    "fp16": {"strategy": "allreduce", "compression": "fp16"},
    "powersgd": {"strategy": "allreduce", "compression": train.PowerSGD(rank=2)},
    "dgc": {"strategy": "allreduce", "compression": train.DGC(sparsity=0.99, warm_up_steps=40)},
    "ps": {"strategy": train.ParameterServers},
    "ps-backup": {"strategy": lambda: train.ParameterServers(backup=1)},
    "ps-async": {"strategy": lambda: train.ParameterServers(sync=False)},
    "ps-staleness": {"strategy": lambda: train.ParameterServers(sync=False, staleness=2)},
}

# Gradients that come late act like momentum. With 0.9 of the optimizer's own the training would not be stable.
MOMENTUM = {"ps-async": 0.5, "ps-staleness": 0.5}

world = train.init()
torch.manual_seed(1)
chosen = dict(STRATEGIES[sys.argv[1]]) if len(sys.argv) > 1 else {}
if callable(chosen.get("strategy")):
    chosen["strategy"] = chosen["strategy"]()

# Two spirals: which one does a point belong to?
angle = torch.rand(2000) * 6
which = torch.arange(2000) % 2
points = torch.stack([angle.cos(), angle.sin()], 1) * (angle * (1 - 2 * which)).unsqueeze(1) / 6

model = nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 2)).to(world.device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=MOMENTUM.get("".join(sys.argv[1:]), 0.9))
model = train.data_parallel(model, optimizer, **chosen)
batches = train.Batches((points, which), batch_size=50, seed=1)

with train.Session(model=model, optimizer=optimizer, batches=batches) as session:
    for x, y in session.steps(batches, epochs=40):
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        session.log(loss=loss)

if world.is_chief:
    accuracy = (model(points.to(world.device)).argmax(1).cpu() == which).float().mean().item()
    print(f"accuracy {accuracy:.3f} after {session.step} steps", flush=True)
