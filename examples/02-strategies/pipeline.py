"""Pipelining: each process has some layers of the model. Parts of a batch follow each other through the stages.

    torchrun --nproc-per-node=2 pipeline.py
    oarlock run --workers 2 -- python pipeline.py

The stages are state of each process. So a halted job goes on with as many processes as before.
"""

import torch
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

from oarlock import train

world = train.init()
torch.manual_seed(1)
layers = [
    nn.Sequential(nn.Linear(8, 128), nn.ReLU()),
    *[nn.Sequential(nn.Linear(128, 128), nn.ReLU()) for _ in range(world.world_size - 2)],
    nn.Linear(128, 1),
]
part = layers[world.rank].to(world.device)
stage = PipelineStage(part, world.rank, world.world_size, world.device)
schedule = Schedule1F1B(stage, n_microbatches=4, loss_fn=nn.functional.mse_loss)
optimizer = torch.optim.Adam(part.parameters(), lr=0.01)

x = torch.randn(256, 8, device=world.device)
y = x.square().sum(1, keepdim=True) / 8
last = world.rank == world.world_size - 1
mine = {"part": part, "optimizer": optimizer}
with train.Session(per_rank=mine, strategy=train.ModelParallel(part), total_steps=100) as session:
    for _ in session.steps():
        optimizer.zero_grad()
        losses = []
        if world.is_chief:
            schedule.step(x)
        elif last:
            schedule.step(target=y, losses=losses)
        else:
            schedule.step()
        optimizer.step()
        if last:
            session.log(loss=torch.stack(losses).mean())
if last:
    print(f"loss {torch.stack(losses).mean().item():.4f}", flush=True)
