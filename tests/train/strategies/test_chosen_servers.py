"""Strategy `auto` beside a parameter server that is faster than allreduce: nothing is patched, the links are slow.

Four workers send over 4 Mbit/s and receive over 1 Gbit/s. In a ring each sends one and a half times the gradients, and
to a server on a fast machine once.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from bench.train import links, ranks
from tests.train import crew, machines
from torch import nn

from oarlock import train
from oarlock.train.strategies import choices, dataparallel

WORKERS, STEPS, WIDTH = 4, 5, 300
ATTEMPTS = 3
"""A machine that stands still for a second, in the one exchange that is measured, makes the servers seem slow."""


@pytest.fixture
def slow_senders() -> Iterator[tuple[links.Machine, ...]]:
    with machines.there(links.network(4, WORKERS + 1, receives=1000, fast=1)) as found:
        yield found


def learn(folder: Path, places: tuple[links.Machine, ...], strategy: str) -> None:
    """Train on the machine of this rank, if there is one. The chief notes the choice and the weights."""
    if places:
        place = places[int(os.environ["RANK"])]
        os.environ["GLOO_SOCKET_IFNAME"] = place.device
        machines.enter(place)
    world = train.init()
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH)).double()
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    train.data_parallel(model, optimizer, strategy=strategy)
    torch.manual_seed(2 + world.rank)
    for _ in range(STEPS):
        x = torch.randn(4, WIDTH, dtype=torch.float64)
        optimizer.zero_grad()
        (model(x) - x).square().mean().backward()
        optimizer.step()
    if world.is_chief:
        made = dataparallel.strategy_of(model)
        assert made is not None
        (folder / "choice.json").write_text(json.dumps(made.choice()))
        torch.save(model.state_dict(), folder / "weights.pt")
    train.shutdown()


@pytest.mark.timeout(900)
def test_servers_that_are_faster_are_chosen_and_train_as_allreduce_does(
    slow_senders: tuple[links.Machine, ...], tmp_path: Path
) -> None:
    workers, others = slow_senders[:WORKERS], slow_senders[WORKERS:]
    apart = {"OARLOCK_SHARED_MEMORY": "0"}  # each rank is on a host of its own
    place = {"MASTER_ADDR": workers[0].address, "MASTER_PORT": str(ranks.RANKS_PORT)}
    for attempt in range(ATTEMPTS):
        auto = tmp_path / f"auto-{attempt}"
        auto.mkdir()
        with ranks.servers(others) as known:
            env = {**apart, **place, **known, choices.VARIABLE: '{"kind": "auto"}'}
            ended = crew.run(learn, auto, workers, "auto", folder=auto, world_size=WORKERS, env=env)
        assert ended == [0] * WORKERS, crew.output(auto, WORKERS)
        chosen = json.loads((auto / "choice.json").read_text())["exchange"]
        if chosen == "ps":
            break
    assert chosen == "ps", crew.output(auto, WORKERS)
    dense = tmp_path / "dense"
    dense.mkdir()
    ended = crew.run(learn, dense, (), "allreduce", folder=dense, world_size=WORKERS, env=apart)
    assert ended == [0] * WORKERS, crew.output(dense, WORKERS)
    weights = [torch.load(folder / "weights.pt", weights_only=True) for folder in (auto, dense)]
    for name, tensor in weights[1].items():
        torch.testing.assert_close(weights[0][name], tensor, rtol=1e-12, atol=1e-12)
