"""Sparse rows: the rows of a large table that a batch uses travel to a parameter server and back, and no others.

    oarlock run --workers 2 --ps 1 --strategy ps -- python embeddings.py
    torchrun --nproc-per-node=2 embeddings.py

The table has 50,000 words, and a text 20 of them. Adagrad changes the rows that have a gradient, so the others stay
where they are. With momentum every row would change in every step, and travel.
"""

import torch
from torch import nn

from oarlock import train

WORDS, TEXTS, LENGTH = 50_000, 2000, 20

world = train.init()
torch.manual_seed(1)

# Some words are much more frequent than others. A text is glad if most of its words are even.
texts = (torch.rand(TEXTS, LENGTH) ** 6 * WORDS).long()
glad = (texts % 2 == 0).sum(1) * 2 > LENGTH


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.EmbeddingBag(WORDS, 16, sparse=True, mode="sum")
        self.out = nn.Linear(16, 2)

    def forward(self, x):
        return self.out(self.words(x))


model = Reader().to(world.device)
optimizer = torch.optim.Adagrad(model.parameters(), lr=0.1)
model = train.data_parallel(model, optimizer, strategy=train.ParameterServers())
batches = train.Batches((texts, glad.long()), batch_size=50, seed=1)

with train.Session(model=model, optimizer=optimizer, batches=batches) as session:
    for x, y in session.steps(batches, epochs=8):
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        session.log(loss=loss)

if world.is_chief:
    accuracy = (model(texts.to(world.device)).argmax(1).cpu() == glad).float().mean().item()
    print(f"accuracy {accuracy:.3f} after {session.step} steps", flush=True)
