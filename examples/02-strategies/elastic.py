"""Elastic membership: a worker dies, the other one goes on in its process, and a new one joins it.

    oarlock submit elastic.yaml --follow

Worker 1 kills itself at its step 50, as if its machine had failed. The other repeats that step alone. The new worker 1
gets model, optimizer and position in the data from it, between two steps. So no process begins at a checkpoint.
"""

import os
import signal
import time

import torch
from torch import nn

from oarlock import train

DIES = os.environ.get("OARLOCK_INDEX") == "1" and os.environ.get("OARLOCK_INCARNATION", "1") == "1"

world = train.init()
torch.manual_seed(1)
x = torch.randn(2000, 8)
y = x.square().sum(1, keepdim=True) / 8

model = nn.Sequential(nn.Linear(8, 128), nn.ReLU(), nn.Linear(128, 1)).to(world.device)
optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
model = train.data_parallel(model, optimizer)
batches = train.Batches((x, y), batch_size=50, seed=1)
sizes, joined = [], 0  # the numbers of workers that this process has seen, and the step since which there are so many

with train.Session(model=model, optimizer=optimizer, batches=batches) as session:
    for some_x, some_y in session.steps(batches, epochs=1000):
        if world.world_size not in sizes[-1:]:
            sizes.append(world.world_size)
            joined = session.step
            print(f"step {session.step}: {world.world_size} workers", flush=True)
        if DIES and session.step == 50:
            os.kill(os.getpid(), signal.SIGKILL)
        loss = nn.functional.mse_loss(model(some_x), some_y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        session.log(loss=loss)
        time.sleep(0.005)
        if sizes == [2, 1, 2] and session.step > joined + 50:
            session.request_stop()  # all have seen enough

print(f"loss {loss.item():.4f}, after {' and '.join(map(str, sizes))} workers", flush=True)
