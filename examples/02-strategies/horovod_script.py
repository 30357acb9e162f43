"""A script for Horovod, with its import line changed. The rest is as Horovod's users write it.

oarlock run --workers 2 -- python horovod_script.py
torchrun --nproc-per-node=2 horovod_script.py
"""

import torch
from torch import nn

from oarlock.train import horovod as hvd  # was: import horovod.torch as hvd

hvd.init()
torch.manual_seed(1)
x = torch.randn(2000, 8)
y = x.square().sum(1, keepdim=True) / 8
mine = torch.utils.data.distributed.DistributedSampler(x, hvd.size(), hvd.rank())
batches = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), 50, sampler=mine)

model = nn.Sequential(nn.Linear(8, 128), nn.ReLU(), nn.Linear(128, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.005 * hvd.size())
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
hvd.broadcast_optimizer_state(optimizer, root_rank=0)

for epoch in range(10):
    mine.set_epoch(epoch)
    for some_x, some_y in batches:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(some_x), some_y)
        loss.backward()
        optimizer.step()
mean = hvd.allreduce(loss.detach(), name="loss")
if hvd.rank() == 0:
    print(f"loss {mean.item():.4f}", flush=True)
