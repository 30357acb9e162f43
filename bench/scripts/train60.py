"""About a minute of data-parallel training on the CPU, the same under torchrun and under Oarlock; argument: steps."""

import os
import sys

import torch
import torch.distributed as dist

torch.set_num_threads(1)
torch.manual_seed(0)
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(
    torch.nn.Sequential(*[layer for _ in range(4) for layer in (torch.nn.Linear(512, 512), torch.nn.ReLU())])
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = torch.randn(64, 512)
for step in range(int(sys.argv[1])):
    loss = (model(data) - data).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 100 == 0 and dist.get_rank() == 0:
        print(step, loss.item(), flush=True)
dist.barrier()
sys.stdout.flush()
os._exit(0)  # now and then gloo aborts while the interpreter ends, which is not what is measured
