"""Layers placed by hand: the first process has the first layer, the last process the others.

    torchrun --nproc-per-node=2 by_hand.py

Activations go forward and gradients go back, as two plain messages a step.
"""

import torch
from torch import distributed, nn

from oarlock import train

world = train.init()
torch.manual_seed(1)
first, last = 0, world.world_size - 1
x = torch.randn(256, 8, device=world.device)
y = x.square().sum(1, keepdim=True) / 8
part = nn.Sequential(nn.Linear(8, 128), nn.ReLU()) if world.rank == first else nn.Linear(128, 1)
part.to(world.device)
optimizer = torch.optim.Adam(part.parameters(), lr=0.01)

with train.Session(total_steps=100, per_rank={"part": part, "optimizer": optimizer}) as session:
    for _ in session.steps():
        optimizer.zero_grad()
        if world.rank == first:
            activations = part(x)
            distributed.send(activations.detach(), last)
            gradient = torch.empty_like(activations)
            distributed.recv(gradient, last)
            activations.backward(gradient)
        elif world.rank == last:
            activations = torch.empty(256, 128, device=world.device)
            distributed.recv(activations, first)
            activations.requires_grad_()
            loss = nn.functional.mse_loss(part(activations), y)
            loss.backward()
            distributed.send(activations.grad, first)
            session.log(loss=loss)
        optimizer.step()
if world.rank == last:
    print(f"loss {loss.item():.4f}", flush=True)
