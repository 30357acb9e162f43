"""Hugging Face Accelerate: it finds out by itself how many processes there are, and shards the data among them."""

import sys

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed

accelerator = Accelerator(cpu=True)
set_seed(0)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
inputs = torch.randn(64, 8)
data = torch.utils.data.TensorDataset(inputs, inputs.sum(1, keepdim=True))
model, optimizer, loader = accelerator.prepare(model, optimizer, torch.utils.data.DataLoader(data, batch_size=8))
total = torch.zeros(())
for _ in range(3):
    for inputs, targets in loader:
        loss = (model(inputs) - targets).square().mean()
        optimizer.zero_grad()
        accelerator.backward(loss)
        optimizer.step()
        total = accelerator.reduce(loss.detach(), "mean")
rank, world = accelerator.process_index, accelerator.num_processes
# One write: torchrun starts Python with -u, and the two pieces that print() writes would mix with those of other ranks.
sys.stdout.write(f"rank {rank} of {world}, {len(loader)} batches: loss {total.item():.9f}\n")
sys.stdout.flush()
accelerator.end_training()
