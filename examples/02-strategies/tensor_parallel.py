"""Tensor parallelism: each matrix is divided among the processes, the first by columns and the second by rows.

    torchrun --nproc-per-node=2 tensor_parallel.py
    oarlock run --workers 2 -- python tensor_parallel.py

A halted job goes on from its checkpoint, in which each process has saved its parts: with more or fewer workers, too.
"""

import torch
from torch import nn
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from oarlock import train

world = train.init()
torch.manual_seed(1)  # all processes build the same model and see the same batches
model = nn.Sequential(nn.Linear(8, 256), nn.ReLU(), nn.Linear(256, 1)).to(world.device)
mesh = train.device_mesh()
model = parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
optimizer = torch.optim.Adam(model.parameters(), lr=0.01, foreach=False)

x = torch.randn(512, 8, device=world.device)
y = x.square().sum(1, keepdim=True) / 8
parallel = train.ModelParallel(model)
with train.Session(model=model, optimizer=optimizer, strategy=parallel, total_steps=100) as session:
    for _ in session.steps():
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        session.log(loss=loss)

rows = model[0].weight.to_local().shape[0]
print(f"rank {world.rank}: loss {loss.item():.4f}, {rows} of 256 neurons here", flush=True)
