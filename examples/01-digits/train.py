"""Handwritten digits, read by a small convolutional network on as many workers as there are.

python train.py                                  alone
torchrun --nproc-per-node 2 train.py             two processes on this machine
oarlock submit oarlock.yaml --follow             under Oarlock
"""

import argparse
import os
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import nn

from oarlock import train

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=20)
parser.add_argument("--batch", type=int, default=64, help="examples of a step, all workers together")
parser.add_argument("--checkpoints", default="checkpoints", help="where to keep them when Oarlock does not say")
args = parser.parse_args()

world = train.init()
torch.manual_seed(1 + world.rank)

# 1,797 images of 8 x 8 pixels with 17 shades; every fifth of a fixed shuffle is kept back for the test.
digits = load_digits()
images = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16
labels = torch.tensor(digits.target)
order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(7))
test, rest = order[: len(order) // 5], order[len(order) // 5 :]

model = nn.Sequential(
    nn.Conv2d(1, 16, 3, padding=1),
    nn.ReLU(),
    nn.Conv2d(16, 32, 3, padding=1),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.Flatten(),
    nn.Dropout(0.4),
    nn.Linear(32 * 4 * 4, 64),
    nn.ReLU(),
    nn.Linear(64, 10),
).to(world.device)

train.data_parallel(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
batches = train.Batches((images[rest], labels[rest]), args.batch // world.world_size, seed=1)

with train.Session(model=model, optimizer=optimizer, batches=batches, checkpoints=args.checkpoints) as session:
    for x, y in session.steps(batches, epochs=args.epochs):
        logits = model(x)
        loss = nn.functional.cross_entropy(logits, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        session.log(loss=loss, accuracy=(logits.argmax(1) == y).float().mean())

if world.is_chief:
    model.eval()
    with torch.no_grad():
        right = (model(images[test].to(world.device)).argmax(1).cpu() == labels[test]).float().mean()
    print(f"test accuracy {right:.4f} on {len(test)} images, {session.step} steps on {world.world_size} workers")
    if results := os.environ.get("OARLOCK_RESULTS"):
        torch.save(model.state_dict(), Path(results) / "model.pt")
