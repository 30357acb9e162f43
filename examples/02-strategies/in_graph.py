"""In-graph replication: one process drives several devices. Each has a replica and a part of the batch.

    python in_graph.py

Without GPUs, two threads on the CPU take the place of two devices.
"""

import torch
from torch import nn

from oarlock import train

train.init()
torch.manual_seed(1)
count = torch.cuda.device_count()
devices = [torch.device("cuda", number) for number in range(count)] if count > 1 else [torch.device("cpu")] * 2
model = nn.Sequential(nn.Linear(8, 128), nn.ReLU(), nn.Linear(128, 1)).to(devices[0])
replicas = train.InGraph(model, devices)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
x = torch.randn(256, 8)
y = x.square().sum(1, keepdim=True) / 8


def loss_of(replica: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return nn.functional.mse_loss(replica(x), y)


with train.Session(model=model, optimizer=optimizer, strategy=replicas, total_steps=100) as session:
    for _ in session.steps():
        optimizer.zero_grad()
        loss = replicas.backward(loss_of, x, y)
        optimizer.step()
        session.log(loss=loss)
print(f"loss {loss.item():.4f} with {len(devices)} replicas", flush=True)
