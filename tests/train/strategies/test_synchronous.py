"""Synchronous training: the replicas stay together bit by bit, and `auto` never leaves it without permission."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
from tests import marks
from tests.train import crew
from tests.train.servers import farm
from torch import nn

from oarlock import train
from oarlock.train.compression import dgc
from oarlock.train.servers import addresses
from oarlock.train.servers.model import sharding
from oarlock.train.strategies import automatic, choices, dataparallel
from oarlock.train.strategies.allreduce import AllReduce
from oarlock.train.strategies.parameterservers import ParameterServers, Settings

RATES_BYTES_PER_S = {"10 Gbit/s": 1.25e9, "1 Gbit/s": 1.25e8, "100 Mbit/s": 1.25e7}
MODELS = {"small": (1, 1e6, 0.05), "MLP": (2, 25e6, 0.04), "large": (3, 100e6, 0.3)}
"""The hidden layers of a model of the tests, and the bytes and the seconds of computing that it stands for."""
WAYS: dict[str, dict[str, Any]] = {
    "dense": {"compression": "none"},
    "bf16": {"compression": "bf16"},
    "fp16": {"compression": "fp16"},
    "powersgd": {"compression": train.PowerSGD(rank=2)},
    "dgc": {"compression": train.DGC(sparsity=0.9, warm_up_steps=100)},
    "ps": {"sharding": "greedy"},
    "ps partitioned": {"sharding": "partition"},
}
"""Every synchronous way of training together."""


def net(layers: int) -> nn.Sequential:
    torch.manual_seed(1 + train.rank())  # ranks begin apart
    hidden = [each for _ in range(layers) for each in (nn.Linear(20, 20), nn.Tanh())]
    return nn.Sequential(nn.Linear(6, 20), nn.Tanh(), *hidden, nn.Linear(20, 3)).double()


def examples(step: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(4, 6, generator=generator).double(), torch.randint(0, 3, (4,), generator=generator)


def learn(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int, ranks: list[int]) -> list[float]:
    """Train on the examples of these ranks, in their order. Return all weights."""
    for step in range(steps):
        optimizer.zero_grad()
        for rank in ranks:
            x, y = examples(step, rank)
            (nn.functional.cross_entropy(model(x), y) / len(ranks)).backward()
        optimizer.step()
    return torch.cat([each.detach().flatten() for each in model.parameters()]).tolist()


def made(layers: int, **given: Any) -> tuple[nn.Module, torch.optim.Optimizer]:
    model = net(layers)
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    train.data_parallel(model, optimizer, **given)
    return model, optimizer


def together(way: str, steps: int) -> None:
    sharding.LEAST_CUT_BYTES = 1
    world, given = train.init(), WAYS[way]
    strategy = ParameterServers(**given) if "sharding" in given else None
    model, optimizer = made(2, **({"strategy": strategy} if strategy else given))
    weights = learn(model, optimizer, steps, [world.rank])
    compressed = dataparallel.strategy_of(model)
    if isinstance(compressed, dgc.DeepGradientCompression):
        assert any(tensor.residual.any() for tensor in compressed._sparse), "sparse gradients keep something back"
    assert len(set(map(tuple, world.gather(weights)))) == 1, "the replicas are apart"
    assert all(each == each for each in weights)
    train.shutdown()


@pytest.mark.timeout(900)
@pytest.mark.parametrize("steps", marks.long_except([100], [100, 1000]))
@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("way", WAYS)
def test_the_replicas_are_the_same_bit_by_bit(way: str, ranks: int, steps: int, tmp_path: Path) -> None:
    with farm.running(2) as servers:
        env = farm.variables(servers) if way.startswith("ps") else {}
        env |= {"OARLOCK_SHARED_MEMORY": "0"} if way == "dgc" else {}  # as between hosts: else no gradient is sparse
        codes = crew.run(together, way, steps, folder=tmp_path, world_size=ranks, env=env, timeout_s=600)
    assert codes == [0] * ranks, crew.output(tmp_path, ranks)


def alone(steps: int) -> None:
    """Against one process with the examples of all ranks: their gradients are divided, then added, rank by rank."""
    world = train.init()
    model, optimizer = made(2, strategy="allreduce")
    single = net(2)
    single.load_state_dict(model.state_dict())
    weights = learn(model, optimizer, steps, [world.rank])
    others = learn(single, torch.optim.SGD(single.parameters(), 0.05, momentum=0.9), steps, [*range(world.world_size)])
    if world.world_size == 2:
        assert weights == others
    torch.testing.assert_close(torch.tensor(weights).double(), torch.tensor(others).double(), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("ranks", [2, 3])
def test_allreduce_is_one_process_with_the_joined_batch(ranks: int, tmp_path: Path) -> None:
    """In float64: bit by bit with two ranks, whose gradients add up in one order; with more but for rounding."""
    codes = crew.run(alone, 50, folder=tmp_path, world_size=ranks)
    assert codes == [0] * ranks, crew.output(tmp_path, ranks)


def simulate(rate: float, size: float, own_s: float) -> None:
    """Let all measurements be those of such a link and model. Lossy exchanges would be the fastest by far; a server on
    a host of its own halves the bytes of dense ones, and costs 20 ms.
    """
    dense_s = size / rate
    took = {"none": dense_s, "ps": dense_s / 2 + 0.02, "bf16": 1e-4, "powersgd": 1e-4, "dgc": 1e-4}
    sound, enough = sounds

    def once(self: Any, kind: str, *args: Any) -> float:
        sound(self, kind, *args)
        return took[kind]

    def knows_enough(self: Any) -> bool:
        self._steps = [automatic.Step(own_s + dense_s, dense_s, None)] * len(self._steps)
        return enough(self)

    automatic.Automatic._once = once  # type: ignore[method-assign]
    automatic.Automatic._knows_enough = knows_enough  # type: ignore[method-assign]


sounds: Any = (automatic.Automatic._once, automatic.Automatic._knows_enough)


def without_permission(steps: int, farms: list[str]) -> None:
    world, chosen = train.init(), set()
    for rate in RATES_BYTES_PER_S.values():
        for layers, size, own_s in MODELS.values():
            os.environ[addresses.VARIABLE] = farms.pop()
            simulate(rate, size, own_s)
            os.environ[choices.VARIABLE] = '{"kind": "auto"}'
            model, optimizer = made(layers)
            weights = learn(model, optimizer, steps, [world.rank])
            strategy = dataparallel.strategy_of(model)
            assert isinstance(strategy, automatic.Automatic)
            kind, present = strategy.choice()["exchange"], strategy._present
            chosen.add(kind)
            if kind == "ps":
                assert isinstance(present, ParameterServers)
                assert present.settings == Settings(), "synchronous, and no gradient is left out"
            else:
                assert (kind, type(present)) == ("none", AllReduce)
                assert present._wire is None  # type: ignore[union-attr]
            os.environ[choices.VARIABLE] = '{"kind": "allreduce"}'
            dense = learn(*made(layers), steps, [world.rank])
            assert weights == dense, f"{kind} is not dense allreduce"
            assert len(set(map(tuple, world.gather(weights)))) == 1
    assert chosen == {"none", "ps"}, "the figures let each of the two win somewhere"
    train.shutdown()


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("steps", marks.long_except([30], [30, 1000]))
def test_without_permission_auto_computes_dense_synchronous_updates(steps: int, tmp_path: Path) -> None:
    """Over 3 links x 3 models with parameter servers, by simulated measurements: the lossy exchanges would win."""
    with ExitStack() as stack:
        farms = [stack.enter_context(farm.running()) for _ in range(len(RATES_BYTES_PER_S) * len(MODELS))]
        env = {**farm.variables(farms[0]), choices.VARIABLE: '{"kind": "auto"}'}
        told = [each.servers[0] for each in farms]
        codes = crew.run(without_permission, steps, told, folder=tmp_path, env=env, timeout_s=1500)
    assert codes == [0, 0], crew.output(tmp_path)
    assert crew.output(tmp_path).count("parameter servers from now on") > 1
