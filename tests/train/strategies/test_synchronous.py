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
from tests.train.compression import test_nodes
from tests.train.servers import farm
from torch import nn

from oarlock import train
from oarlock.train.compression import dgc
from oarlock.train.servers import addresses
from oarlock.train.servers.model import sharding
from oarlock.train.servers.wire import bodies
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
    "dgc of fp16 values": {"compression": train.DGC(sparsity=0.9, warm_up_steps=100, half_values=True)},
    "ps": {"sharding": "greedy"},
    "ps partitioned": {"sharding": "partition"},
    "ps with a backup": {"backup": 1},
    "dense in shared memory": {"compression": "none"},
    "dgc within hosts": {"compression": train.DGC(sparsity=0.9, warm_up_steps=100)},
    "ps in shared memory": {"sharding": "partition"},
}
"""Every synchronous way of training together."""
IN_MEMORY = ("dense in shared memory", "dgc within hosts", "ps in shared memory")
"""The ways of large gradients on one host: with a wide net, whose gradients are larger than 256 KB."""
NARROW, WIDE = 20, 150
HOSTS = {2: [[0, 1]], 3: [[0, 2], [1]]}
"""The ranks of each host, by the number of all, for a compression that is dense within a host."""


def net(layers: int, width: int = NARROW) -> nn.Sequential:
    torch.manual_seed(1 + train.rank())  # ranks begin apart
    hidden = [each for _ in range(layers) for each in (nn.Linear(width, width), nn.Tanh())]
    return nn.Sequential(nn.Linear(6, width), nn.Tanh(), *hidden, nn.Linear(width, 3)).double()


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
    return weights_of(model)


def weights_of(model: nn.Module) -> list[float]:
    return torch.cat([each.detach().flatten() for each in model.parameters()]).tolist()


def made(layers: int, width: int = NARROW, **given: Any) -> tuple[nn.Module, torch.optim.Optimizer]:
    model = net(layers, width)
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    train.data_parallel(model, optimizer, **given)
    return model, optimizer


def together(way: str, steps: int) -> None:
    sharding.LEAST_CUT_BYTES = 1
    if way == "dgc within hosts":
        test_nodes.pretend(HOSTS[int(os.environ["WORLD_SIZE"])])
    world, given = train.init(), WAYS[way]
    strategy = ParameterServers(**given) if way.startswith("ps") else None
    width = WIDE if way in IN_MEMORY else NARROW
    model, optimizer = made(2, width, **({"strategy": strategy} if strategy else given))
    weights = learn(model, optimizer, steps, [world.rank])
    check_way(way, world, dataparallel.strategy_of(model))
    if strategy is not None and strategy.settings.backup:
        strategy.finish(0)  # the slower ones have dropped gradients: all take the last weights
        weights = weights_of(model)
    assert len(set(map(tuple, world.gather(weights)))) == 1, "the replicas are apart"
    assert all(each == each for each in weights)
    train.shutdown()


def check_way(way: str, world: train.World, strategy: train.Strategy | None) -> None:
    """Check that the gradients have travelled in this way."""
    if isinstance(strategy, dgc.DeepGradientCompression):
        kept = any(world.gather(any(bool(tensor.residual.any()) for tensor in strategy._sparse)))
        sparse = way != "dgc within hosts" or len(HOSTS[world.world_size]) > 1
        assert kept == sparse, "sparse gradients, those between hosts, keep something back"
    if isinstance(strategy, AllReduce):
        together = [[*range(world.world_size)]] if way in IN_MEMORY else None
        assert strategy._hosts == together, "large gradients are added up in memory"
    if isinstance(strategy, ParameterServers):
        shared = [server.link.shares(bodies.LEAST_BYTES) for server in strategy._servers]
        assert shared == [way in IN_MEMORY] * len(shared)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("steps", marks.long_except([100], [100, 1000]))
@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("way", WAYS)
def test_the_replicas_are_the_same_bit_by_bit(way: str, ranks: int, steps: int, tmp_path: Path) -> None:
    with farm.running(2) as servers:
        env = farm.variables(servers) if way.startswith("ps") else {}
        apart = way in ("dgc", "dgc of fp16 values")  # as between hosts: else no gradient is sparse
        env |= {"OARLOCK_SHARED_MEMORY": "0"} if apart else {}
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
