"""One of two ranks that train a model of more than a million parameters, once for each method. Rank 0 prints a JSON
line with the method and the accuracy of each.

accuracy.py MODEL SEED METHOD...     MODEL is digits or text
BENCH_STEPS bounds the steps of each method.
"""

import contextlib
import json
import os
import pydoc_data.topics
import sys
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
from sklearn.datasets import load_digits
from torch import nn

from oarlock import train
from oarlock.train.compression import dgc, momentum
from oarlock.train.strategies import allreduce

MODEL, SEED, *METHODS = sys.argv[1:]
EPOCHS = {"digits": 20, "text": 8}[MODEL]
STEPS = int(os.environ.get("BENCH_STEPS", "1000000"))
WARM_UP_EPOCHS = 2
CLIP_NORM = 2.0
BATCH, LENGTH, WINDOWS = 32, 32, 4096  # of a rank
TEST_CHARACTERS = 20_000


def digits() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return images and labels for training, and those for the test: every fifth of a fixed shuffle."""
    found = load_digits()
    images = torch.tensor(found.images, dtype=torch.float32)[:, None] / 16
    labels = torch.tensor(found.target)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(7))
    test, rest = order[: len(order) // 5], order[len(order) // 5 :]
    return images[rest], labels[rest], images[test], labels[test]


def text() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return windows of Python's own help, and each character's successor."""
    told = "".join(pydoc_data.topics.topics.values()).encode("ascii", "replace")
    characters = torch.frombuffer(bytearray(told), dtype=torch.uint8).long()
    rest, test = characters[:-TEST_CHARACTERS], characters[-TEST_CHARACTERS:]
    starts = torch.randperm(len(rest) - LENGTH - 1, generator=torch.Generator().manual_seed(7))[:WINDOWS]
    windows = torch.stack([rest[start : start + LENGTH + 1] for start in starts.tolist()])
    tests = test[: (len(test) - 1) // LENGTH * LENGTH]
    followers = test[1 : len(tests) + 1]
    return windows[:, :-1], windows[:, 1:], tests.view(-1, LENGTH), followers.view(-1, LENGTH)


class Speller(nn.Module):
    """A GRU that predicts the next character."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(128, 128)
        self.cells = nn.GRU(128, 512, batch_first=True)
        self.out = nn.Linear(512, 128)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.cells(self.embed(x))[0]).transpose(1, 2)


def reader() -> nn.Module:
    convolutions = [nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 64, 3, padding=1), nn.ReLU()]
    rest = [nn.MaxPool2d(2), nn.Flatten(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)]
    return nn.Sequential(*convolutions, *rest)


@contextlib.contextmanager
def without(method: str) -> Iterator[None]:
    """Leave out a trick of DGC."""
    keep, settings = dgc._Tensor.keep, dgc.DeepGradientCompression._settings

    def unmasked(tensor: Any, positions: torch.Tensor, rest: torch.Tensor) -> None:
        velocity = tensor.velocity[positions]
        keep(tensor, positions, rest)
        tensor.velocity[positions] = velocity

    def forgetting(tensor: Any, positions: torch.Tensor, rest: torch.Tensor) -> None:
        tensor.residual.zero_()

    def plain(strategy: Any) -> dict[int, tuple[float, bool]]:
        return dict.fromkeys(settings(strategy), (0.0, False))

    with contextlib.ExitStack() as stack:

        def replace(kind: type, name: str, by: Any) -> None:  # with its signature: a change of the library is noticed
            stack.enter_context(mock.patch.object(kind, name, autospec=True, side_effect=by))

        if method == "no masking":
            replace(dgc._Tensor, "keep", unmasked)
        if method == "plain top-k":
            replace(dgc._Tensor, "keep", forgetting)
        if method in ("no correction", "plain top-k"):  # the optimizer applies momentum to the sum
            replace(dgc.DeepGradientCompression, "_settings", plain)
            complete = momentum.Momentum._complete

            def whole(self: Any, parameter: nn.Parameter, group: dict[str, Any]) -> None:
                self.compressed = set()
                complete(self, parameter, group)

            replace(momentum.Momentum, "_complete", whole)
        yield


def accuracy(method: str) -> float:
    world = train.init()
    x, y, test_x, test_y = digits() if MODEL == "digits" else text()
    torch.manual_seed(int(SEED))
    model = reader() if MODEL == "digits" else Speller()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05 if MODEL == "digits" else 0.5, momentum=0.9)
    steps_an_epoch = len(x) // (BATCH * world.world_size)
    strategy: Any = allreduce.AllReduce()
    if method != "dense":
        bare = method == "plain top-k"
        strategy = dgc.DeepGradientCompression(
            train.DGC(
                clip_norm=None if method == "no clipping" or bare else CLIP_NORM,
                warm_up_steps=0 if method == "no warm-up" or bare else WARM_UP_EPOCHS * steps_an_epoch,
            )
        )
    strategy.attach(model, optimizer)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS * steps_an_epoch)
    shuffles = torch.Generator().manual_seed(1000 + int(SEED))
    for epoch in range(EPOCHS):
        order = torch.randperm(len(x), generator=shuffles)
        for step in range(min(steps_an_epoch, STEPS - epoch * steps_an_epoch)):
            begin = (step * world.world_size + world.rank) * BATCH
            mine = order[begin : begin + BATCH]
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x[mine]), y[mine])
            loss.backward()
            if method == "dense":
                nn.utils.clip_grad_norm_(model.parameters(), CLIP_NORM)
            optimizer.step()
            schedule.step()
    model.eval()
    with torch.no_grad():
        return (model(test_x).argmax(1) == test_y).double().mean().item()


torch.set_num_threads(1)
for name in METHODS:
    with without(name):
        reached = accuracy(name)
    if train.is_chief():
        print(json.dumps({"method": name, "accuracy": reached}), flush=True)
