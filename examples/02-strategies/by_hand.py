"""Layers placed by hand: worker 0 has the first layer, worker 1 the others.

    torchrun --nproc-per-node=2 by_hand.py
    oarlock run --workers 2 -- python by_hand.py

Activations go forward and gradients go back, as two plain messages a step. A halted job goes on with as many processes
as before, because the layers are state of each process.
"""

import torch
from torch import nn

from oarlock import train

world = train.init()
torch.manual_seed(1)
first, last = train.rank_of("worker", 0), train.rank_of("worker", 1)
x = torch.randn(256, 8, device=world.device)
y = x.square().sum(1, keepdim=True) / 8
part = nn.Sequential(nn.Linear(8, 128), nn.ReLU()) if world.rank == first else nn.Linear(128, 1)
part.to(world.device)
optimizer = torch.optim.Adam(part.parameters(), lr=0.01)

parallel = train.ModelParallel()
mine = {"part": part, "optimizer": optimizer}
with train.Session(per_rank=mine, strategy=parallel, total_steps=100) as session:
    for _ in session.steps():
        optimizer.zero_grad()
        if world.rank == first:
            activations = part(x)
            parallel.send(activations, last)
            activations.backward(parallel.receive(torch.empty_like(activations), last))
        elif world.rank == last:
            activations = parallel.receive(torch.empty(256, 128, device=world.device), first).requires_grad_()
            loss = nn.functional.mse_loss(part(activations), y)
            loss.backward()
            parallel.send(activations.grad, first)
            session.log(loss=loss)
        optimizer.step()
if world.rank == last:
    print(f"loss {loss.item():.4f}", flush=True)
