"""Two ranks that train a model of more than a million parameters, once for each method. Prints a JSON line with the
method and the accuracy of each.

Both ranks are in this process, with the library's own compression in each: an exchange is a function call, so that no
rank waits for a turn on a busy machine.

accuracy.py MODEL SEED METHOD...     MODEL is digits or text
BENCH_STEPS bounds the steps of each method.
"""

import contextlib
import copy
import functools
import json
import os
import pydoc_data.topics
import sys
import time
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
from sklearn.datasets import load_digits
from torch import nn

from oarlock import train
from oarlock.train.compression import dgc, momentum, nodes
from oarlock.train.worlds import World

MODEL, SEED, *METHODS = sys.argv[1:]
EPOCHS = {"digits": 40, "text": 4}[MODEL]
STEPS = int(os.environ.get("BENCH_STEPS", "1000000"))
WARM_UP_STEPS = 84
RANKS = 2
LR = {"digits": 0.05, "text": 0.1}
CLIP_NORM = 2.0
BATCH = {"digits": 16, "text": 32}[MODEL]  # of a rank
CONTEXT, EXAMPLES = 16, 20_000
TEST_CHARACTERS = 20_000


def digits() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return images and labels for training, and as many for the test, of a fixed shuffle."""
    found = load_digits()
    images = torch.tensor(found.images, dtype=torch.float32)[:, None] / 16
    labels = torch.tensor(found.target)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(7))
    test, rest = order[::2], order[1::2]
    return images[rest], labels[rest], images[test], labels[test]


def text() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return places in Python's own help, CONTEXT characters and the next one, for training and for the test."""
    told = "".join(pydoc_data.topics.topics.values()).encode("ascii", "replace")
    characters = torch.frombuffer(bytearray(told), dtype=torch.uint8).long()
    rest, test = characters[:-TEST_CHARACTERS], characters[-TEST_CHARACTERS:]
    places = torch.randperm(len(rest) - CONTEXT, generator=torch.Generator().manual_seed(7))[:EXAMPLES]
    windows, tests = rest.unfold(0, CONTEXT + 1, 1)[places], test.unfold(0, CONTEXT + 1, 1)
    return windows[:, :-1], windows[:, -1], tests[:, :-1], tests[:, -1]


def speller() -> nn.Module:
    """Return a network that predicts the next character from those before it (Bengio et al., 2003)."""
    embedded = [nn.Embedding(128, 64), nn.Flatten(), nn.Linear(64 * CONTEXT, 896)]
    return nn.Sequential(*embedded, nn.ReLU(), nn.Linear(896, 128))


def reader() -> nn.Module:
    convolutions = [nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU()]
    rest = [nn.MaxPool2d(2), nn.Flatten(), nn.Linear(512, 2000), nn.ReLU(), nn.Linear(2000, 10)]
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


class Replica(dgc.DeepGradientCompression):
    """The strategy of one of RANKS ranks in this process. Where it waits for an exchange, the next rank runs up to the
    same place: every rank begins all its exchanges before it waits for one.
    """

    def __init__(self, settings: train.DGC, rank: int, model: nn.Module, optimizer: torch.optim.SGD) -> None:
        super().__init__(settings)
        self.world = World(rank, RANKS, 0, torch.device("cpu"))
        self.others: list[Replica] = []
        self.begun: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.desk = Desk(self)
        self.take_over(list(model.named_parameters()), optimizer)

    def _nodes(self) -> nodes.Nodes:
        return self.desk

    def begin(self, ours: torch.Tensor, result: torch.Tensor) -> int:
        self.begun.append((ours.clone(), result))
        return len(self.begun) - 1

    def start_sum(self, flat: torch.Tensor) -> Any:
        return self.begin(flat, flat)

    def wait_for(self, work: Any) -> None:
        later = self.world.rank + 1
        if later < RANKS and not self.others[later].begun:
            self.others[later].take_part()
        everyones = [one.begun[work][0] for one in self.others]
        result = self.begun[work][1]
        if result.numel() == RANKS * everyones[0].numel():
            result.copy_(torch.cat(everyones))
        else:
            result.copy_(functools.reduce(torch.add, everyones))

    @torch.no_grad()
    def take_part(self) -> None:
        self.exchange()
        self.settle()


class Desk(nodes.Nodes):
    """The nodes of these ranks: each is one by itself."""

    def __init__(self, replica: Replica) -> None:
        super().__init__(replica.world.rank, [[rank] for rank in range(RANKS)])
        self.replica = replica

    def start_sum(self, flat: torch.Tensor) -> int:
        return self.replica.begin(flat, flat)

    def start_gather(self, everyones: torch.Tensor, ours: torch.Tensor) -> int:
        return self.replica.begin(ours, everyones)


def accuracy(method: str) -> float:
    x, y, test_x, test_y = digits() if MODEL == "digits" else text()
    torch.manual_seed(int(SEED))
    model = reader() if MODEL == "digits" else speller()
    models = [model] if method == "dense" else [model, *(copy.deepcopy(model) for _ in range(1, RANKS))]
    optimizers = [torch.optim.SGD(one.parameters(), lr=LR[MODEL], momentum=0.9) for one in models]
    steps_an_epoch = len(x) // (BATCH * RANKS)
    for one in models[1:]:  # the weights of all ranks are the same, so one optimizer steps them
        for mine, parameter in zip(one.parameters(), model.parameters(), strict=True):
            mine.data = parameter.data
    replicas = []
    if method != "dense":
        bare = method == "plain top-k"
        settings = train.DGC(
            clip_norm=None if method == "no clipping" or bare else CLIP_NORM,
            warm_up_steps=0 if method == "no warm-up" or bare else WARM_UP_STEPS,
        )
        replicas = [Replica(settings, rank, *both) for rank, both in enumerate(zip(models, optimizers, strict=True))]
    for one in replicas:
        one.others = replicas
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizers[0], EPOCHS * steps_an_epoch)
    shuffles = torch.Generator().manual_seed(1000 + int(SEED))
    for epoch in range(EPOCHS):
        order = torch.randperm(len(x), generator=shuffles)
        for step in range(min(steps_an_epoch, STEPS - epoch * steps_an_epoch)):
            batch = order[step * RANKS * BATCH : (step + 1) * RANKS * BATCH]
            for one, optimizer, mine in zip(models, optimizers, batch.chunk(len(models)), strict=True):
                optimizer.zero_grad()
                nn.functional.cross_entropy(one(x[mine]), y[mine]).backward()
            if replicas:
                replicas[0].take_part()
            else:
                nn.utils.clip_grad_norm_(model.parameters(), CLIP_NORM)
            for replica in replicas:
                replica.begun.clear()
            optimizers[0].step()
            schedule.step()
    model.eval()
    with torch.no_grad():
        return (model(test_x).argmax(1) == test_y).double().mean().item()


torch.set_num_threads(1)
for name in METHODS:
    began = time.process_time()
    with without(name):
        reached = accuracy(name)
    print(json.dumps({"method": name, "accuracy": reached, "cpu_s": time.process_time() - began}), flush=True)
