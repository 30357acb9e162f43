"""A script whose computing is a sleep, so that many processes share two cores without slowing each other.

The sleep and the transfer are so long that compressing and serving, which are work, take a small part of a step.
"""

import time

import torch
from torch import nn

from oarlock import train

SLEEP_S = 0.9
PER_RANK = 8
WIDTH = 396  # four layers of 2.5 MB, which take a third of the sleep over a link of 66 Mbit/s

torch.set_num_threads(1)
world = train.init()
model = nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(4)])
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
train.data_parallel(model, optimizer)
batches = train.Batches((torch.zeros(100_000, 1),), PER_RANK, seed=1)

with train.Session(model=model, optimizer=optimizer, batches=batches, resume=False) as session:
    for _ in session.steps(batches, epochs=1000):
        time.sleep(SLEEP_S)
        optimizer.zero_grad()
        model(torch.randn(1, WIDTH)).sum().backward()
        optimizer.step()
