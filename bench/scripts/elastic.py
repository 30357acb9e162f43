"""Train until a file says stop, and write down each step with its time; arguments: a folder for that, the file."""

import json
import os
import pathlib
import sys
import time

import torch

from oarlock import train

folder, stop = map(pathlib.Path, sys.argv[1:])
world = train.init()
model = torch.nn.Sequential(torch.nn.Linear(64, 512), torch.nn.ReLU(), torch.nn.Linear(512, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
train.data_parallel(model, optimizer)
batches = train.Batches((torch.randn(6000, 64), torch.randint(0, 10, (6000,))), 16, seed=1)
with (
    (folder / str(os.getpid())).open("a", buffering=1) as diary,
    train.Session(model=model, optimizer=optimizer, batches=batches, every_steps=20) as session,
):
    for x, y in session.steps(batches, epochs=1_000_000):
        loss = torch.nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(0.02)
        if stop.exists():
            session.request_stop()
        made = all(parameter.grad is not None for parameter in model.parameters())
        told = {"step": session.step, "ranks": world.world_size, "made": made, "at": time.time()}
        print(json.dumps({**told, "task": os.environ.get("OARLOCK_INDEX", os.environ["RANK"])}), file=diary)
