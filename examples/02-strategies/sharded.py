"""FSDP2: every process keeps a part of each parameter, of its gradient and of the optimizer's state.

    torchrun --nproc-per-node=2 sharded.py
    oarlock run --workers 2 -- python sharded.py

A halted job goes on from its checkpoint, in which each process has saved its parts: with more or fewer workers, too.
"""

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard

from oarlock import train

world = train.init()
torch.manual_seed(1)
model = nn.Sequential(nn.Linear(8, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 1)).to(world.device)
whole = sum(parameter.numel() for parameter in model.parameters())
mesh = train.device_mesh()
for layer in model:
    if isinstance(layer, nn.Linear):
        fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

x = torch.randn(512, 8, device=world.device)
y = x.square().sum(1, keepdim=True) / 8
mine = slice(world.rank, None, world.world_size)
parallel = train.ModelParallel(model)
with train.Session(model=model, optimizer=optimizer, strategy=parallel, total_steps=100) as session:
    for _ in session.steps():
        loss = nn.functional.mse_loss(model(x[mine]), y[mine])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        session.log(loss=loss)

here = sum(parameter.to_local().numel() for parameter in model.parameters())
print(f"rank {world.rank}: loss {loss.item():.4f}, {here} of {whole} parameters here", flush=True)
