"""In-graph replication: one process drives several devices. Each has a replica and a part of the batch.

    python in_graph.py

Without GPUs, two threads on the CPU take the place of two devices.
"""

import copy
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn

from oarlock import train

train.init()
torch.manual_seed(1)
count = torch.cuda.device_count()
devices = [torch.device("cuda", number) for number in range(count)] if count > 1 else [torch.device("cpu")] * 2
model = nn.Sequential(nn.Linear(8, 128), nn.ReLU(), nn.Linear(128, 1)).to(devices[0])
replicas = [model, *(copy.deepcopy(model).to(device) for device in devices[1:])]
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
x = torch.randn(256, 8)
y = x.square().sum(1, keepdim=True) / 8


def learn(replica: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    replica.zero_grad()
    loss = nn.functional.mse_loss(replica(x), y)
    loss.backward()
    return loss.detach()


with train.Session(model=model, optimizer=optimizer, total_steps=100) as session, ThreadPoolExecutor() as pool:
    for _ in session.steps():
        parts = zip(x.chunk(len(devices)), y.chunk(len(devices)), devices, strict=True)
        placed = [(a.to(device), b.to(device)) for a, b, device in parts]
        losses = list(pool.map(learn, replicas, *zip(*placed, strict=True)))
        with torch.no_grad():
            for parameter, *others in zip(*(replica.parameters() for replica in replicas), strict=True):
                for other in others:
                    parameter.grad += other.grad.to(parameter.device)
                parameter.grad /= len(replicas)
            optimizer.step()
            for parameter, *others in zip(*(replica.parameters() for replica in replicas), strict=True):
                for other in others:
                    other.copy_(parameter)
        session.log(loss=losses[0])
print(f"loss {losses[0].item():.4f} with {len(replicas)} replicas", flush=True)
