"""Plain DistributedDataParallel, as its tutorial has it: nothing of it knows Oarlock."""

import os
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
inputs = torch.randn(32, 8, generator=torch.Generator().manual_seed(rank))
loss = torch.zeros(())
for _ in range(20):
    loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
# One write: torchrun starts Python with -u, and the two pieces that print() writes would mix with those of other ranks.
sys.stdout.write(f"rank {rank} of {world}, local rank {os.environ['LOCAL_RANK']}: loss {loss.item():.9f}\n")
sys.stdout.flush()
dist.destroy_process_group()
