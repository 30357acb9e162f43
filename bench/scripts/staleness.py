"""One of three workers of a parameter server, with sleeps of random length as computing.

staleness.py KIND SEED FOLDER       KIND is sync, stale or async; FOLDER holds a file of each worker that is done
"""

import json
import random
import sys
import time
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import nn

from oarlock import train

KIND, SEED, FOLDER = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
KINDS = {"sync": {"sync": True}, "stale": {"sync": False, "staleness": 2}, "async": {"sync": False}}
LONGEST_S = 0.06
STEPS = 300
BATCH = 16
LR = {"sync": 0.15, "stale": 0.05, "async": 0.05}  # a step in lockstep is the mean of three gradients

torch.set_num_threads(1)
world = train.init()
found = load_digits()
images, labels = torch.tensor(found.data, dtype=torch.float32) / 16, torch.tensor(found.target)
order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(7))
rest, test = order[::2], order[1::2]
torch.manual_seed(SEED)
model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=LR[KIND], momentum=0.9)
train.data_parallel(model, optimizer, strategy=train.ParameterServers(**KINDS[KIND]))
chance = random.Random(1000 * SEED + world.rank)
batches = torch.Generator().manual_seed(1000 * SEED + world.rank)


def step(x: torch.Tensor, y: torch.Tensor) -> None:
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()


began = time.perf_counter()
for _ in range(STEPS):
    time.sleep(chance.uniform(0, LONGEST_S))
    mine = rest[torch.randint(len(rest), (BATCH,), generator=batches)]
    step(images[mine], labels[mine])
step_s = (time.perf_counter() - began) / STEPS
(FOLDER / f"{world.rank}").touch()
if world.rank == 0 and KIND != "sync":  # the weights after the last gradient of everybody
    while len(list(FOLDER.iterdir())) < world.world_size:
        time.sleep(0.05)
    optimizer.param_groups[0]["lr"] = 0.0
    step(images[rest[:BATCH]], labels[rest[:BATCH]])
with torch.no_grad():
    accuracy = (model(images[test]).argmax(1) == labels[test]).double().mean().item()
print(json.dumps({"step_s": step_s, "accuracy": accuracy}), flush=True)
train.shutdown()
