"""Deep Gradient Compression where hosts have several ranks: dense within a host, sparse between hosts."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.train import crew
from tests.train.compression import test_dgc
from torch import nn

from oarlock import train
from oarlock.train import worlds
from oarlock.train.compression import dgc
from oarlock.train.sharing import crews, segments
from oarlock.train.strategies import dataparallel

Hosts = list[list[int]]
PAIRS: Hosts = [[0, 1], [2, 3]]
MIXED: Hosts = [[0, 2], [1, 3]]
UNEVEN: Hosts = [[0, 2], [1]]
ONE: Hosts = [[0, 1, 2]]


def pretend(hosts: Hosts, *, memory: bool = True) -> None:
    """Let this rank be on its host of these, where small tensors share memory too, or none does."""
    real, rank = segments.place(), int(os.environ["RANK"])
    host = next(number for number, ranks in enumerate(hosts) if rank in ranks)
    segments.place = lambda: f"{real} {host}"
    crews.LEAST_BYTES = 0 if memory else 1 << 60


def strategy_of(model: nn.Module) -> dgc.DeepGradientCompression:
    found = dataparallel.strategy_of(model)
    assert isinstance(found, dgc.DeepGradientCompression)
    return found


def as_described(hosts: Hosts, memory: bool) -> None:
    """The weights of the paper's algorithm: its nodes are the hosts."""
    pretend(hosts, memory=memory)
    for clip_norm in (1.5, None):
        settings = dgc.DGC(sparsity=0.9, clip_norm=clip_norm, warm_up_steps=12)
        for options in (test_dgc.PLAIN, test_dgc.DECAYED):
            model = test_dgc.learned(settings, options, 25)
            weight, bias = test_dgc.described(settings, options, 25, hosts=hosts)
            torch.testing.assert_close(model.weight.detach(), weight, rtol=1e-12, atol=1e-12)
            torch.testing.assert_close(model.bias.detach(), bias, rtol=1e-12, atol=1e-12)
            sums = strategy_of(model)._sums
            assert sums is not None
            assert sums.in_memory == (memory and len({len(host) for host in hosts}) == 1)
    apart, _ = test_dgc.described(settings, test_dgc.DECAYED, 25, hosts=[[rank] for rank in range(train.world_size())])
    assert (weight - apart).abs().max() > 1e-3, "ranks that are apart have other weights"


@pytest.mark.parametrize(
    ("hosts", "memory"),
    [(PAIRS, True), (MIXED, False), (UNEVEN, True), (ONE, True)],
    ids=["pairs, in memory", "mixed, by sockets", "uneven", "one host"],
)
def test_a_host_is_a_node_of_the_paper(tmp_path: Path, hosts: Hosts, memory: bool) -> None:
    ranks = sum(map(len, hosts))
    codes = crew.run(as_described, hosts, memory, folder=tmp_path, world_size=ranks)
    assert codes == [0] * ranks, crew.output(tmp_path, ranks)


def without_sparsity_as_dense() -> None:
    pretend(MIXED)
    for options in (test_dgc.PLAIN, test_dgc.DECAYED):
        dense = test_dgc.learned(None, options, 20)
        model = test_dgc.learned(dgc.DGC(sparsity=0.0, warm_up_steps=0), options, 20)
        for one, other in zip(model.parameters(), dense.parameters(), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def with_the_same_bits() -> None:
    """Ranks end with the same bits, and only the first rank of a host sends what leaves it."""
    pretend(MIXED)
    world = train.init()
    torch.manual_seed(world.rank)
    model = test_dgc.net()
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9, weight_decay=1e-4)
    train.data_parallel(model, optimizer, compression=dgc.DGC(sparsity=0.99, warm_up_steps=40, half_values=True))
    strategy = strategy_of(model)
    for _ in range(120):
        optimizer.zero_grad()
        x = torch.randn(8, 20)
        before = strategy.figures.sent_bytes
        nn.functional.cross_entropy(model(x), (x.sum(1) > 0).long()).backward()
        optimizer.step()
        sent = strategy.figures.sent_bytes - before
    for parameter in model.parameters():
        first, *others = world.gather(parameter.detach())
        assert all(torch.equal(first, other) for other in others)
    packed = dgc._Layout(strategy._sparse, 0.01, half_values=True).size
    small = round(2 * 3 / 4 * sum(2 * each.numel() for each in model.parameters() if each.dim() == 1))
    # once to the other host; what both hosts have sent goes to the other rank of this one
    assert sent - small == (packed + 2 * packed if world.rank in (0, 1) else 0)
    kept = [float(tensor.residual.norm()) for tensor in strategy._sparse]
    assert all(kept) if world.rank in (0, 1) else not any(kept)


def alone_on_their_hosts() -> None:
    """Ranks that are alone on their hosts exchange as those that know of no hosts, bit by bit."""
    pretend([[0], [1], [2], [3]])
    models = []
    for shared in ("1", "0"):
        worlds.nodes = None
        os.environ["OARLOCK_SHARED_MEMORY"] = shared
        models.append(test_dgc.learned(dgc.DGC(sparsity=0.9, clip_norm=2.0, warm_up_steps=8), test_dgc.PLAIN, 20))
        assert strategy_of(models[-1])._sums is None
    assert torch.equal(models[0].weight, models[1].weight)


@pytest.mark.parametrize("scenario", [without_sparsity_as_dense, with_the_same_bits, alone_on_their_hosts])
def test_four_ranks(tmp_path: Path, scenario: Callable[[], None]) -> None:
    codes = crew.run(scenario, folder=tmp_path, world_size=4)
    assert codes == [0] * 4, crew.output(tmp_path, 4)


def resumed(folder: Path, hosts: Hosts, total_steps: int, memory: bool = True) -> None:
    pretend(hosts, memory=memory)
    test_dgc.resumed(folder, total_steps)


@pytest.mark.parametrize("hosts", [PAIRS, ONE], ids=["pairs", "one host"])
def test_a_resumed_run_ends_with_the_same_bits(tmp_path: Path, hosts: Hosts) -> None:
    """On one host of three ranks the order of additions is that of the run before, whatever memory there is."""
    ranks = sum(map(len, hosts))
    runs: dict[str, list[tuple[int, bool]]] = {"whole": [(30, hosts is PAIRS)], "parts": [(15, hosts is PAIRS)]}
    runs["parts"].append((30, True))
    for name, parts in runs.items():
        folder = tmp_path / name
        folder.mkdir()
        for steps, memory in parts:
            codes = crew.run(resumed, folder, hosts, steps, memory, folder=folder, world_size=ranks)
            assert codes == [0] * ranks, crew.output(folder, ranks)
    whole, parted = (torch.load(tmp_path / name / "after-30.pt", weights_only=True) for name in runs)
    for name, values in whole.items():
        assert torch.equal(values, parted[name]), name


def accumulated(folder: Path, exchanges: bool, memory: bool) -> None:
    """Train two steps, with an exchange in each or in none."""
    pretend(ONE, memory=memory)
    train.init()
    torch.manual_seed(2)
    model = test_dgc.net()
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    train.data_parallel(model, optimizer, compression=dgc.DGC(sparsity=0.99, warm_up_steps=10))
    with train.Session(model=model, optimizer=optimizer, checkpoints=folder) as session:
        session.limit(session.step + 2)
        for _ in session.steps():
            with nullcontext() if exchanges else train.no_sync(model):
                model(torch.ones(8, 20)).sum().backward()


def test_a_checkpoint_before_the_first_exchange_keeps_the_order_of_additions(tmp_path: Path) -> None:
    """Steps that only accumulate gradients exchange none."""
    for exchanges, memory in ((True, False), (False, True)):
        codes = crew.run(accumulated, tmp_path, exchanges, memory, folder=tmp_path, world_size=3)
        assert codes == [0] * 3, crew.output(tmp_path, 3)
    for step in (2, 4):
        (shard,) = tmp_path.glob(f"attempt-*-step-{step}/rank-0.pt")
        choices = torch.load(shard, weights_only=True)["shared"]["oarlock.choices"]
        assert choices == {"strategy of model": {"sums_in_memory": False}}, step


def kept_back(strategy: dgc.DeepGradientCompression) -> dict[str, torch.Tensor]:
    """Return the sums over all ranks, of the tensors themselves."""
    world = train.init()
    return {
        f"{kind} of {tensor.name}": sum(world.gather(getattr(tensor, kind)))
        for tensor in strategy._sparse
        for kind in ("velocity", "residual")
    }


def moved(folder: Path, hosts: Hosts) -> None:
    """Go on where the ranks are placed otherwise: a host's sender gets all, and then the step sends from that."""
    pretend(hosts)
    world = train.init()
    torch.manual_seed(2)
    model = test_dgc.net()
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9, weight_decay=1e-4)
    train.data_parallel(model, optimizer, compression=dgc.DGC(sparsity=0.99, warm_up_steps=10))
    strategy = strategy_of(model)
    begun = (folder / "before.pt").exists()
    settings: dict[str, Any] = {"checkpoints": folder / "checkpoints", "total_steps": 18 if begun else 15}
    with train.Session(model=model, optimizer=optimizer, **settings) as session:
        if begun:
            assert session.step == 15
            before = torch.load(folder / "before.pt", weights_only=True)
            same(kept_back(strategy), before)
            strategy._hand_in(strategy._nodes())
            same(kept_back(strategy), before)
            kept = any(bool(tensor.residual.any()) for tensor in strategy._sparse)
            assert not kept or any(world.rank == host[0] for host in hosts), "only senders keep something back"
        for step in session.steps():
            x = torch.randn(8, 20, generator=torch.Generator().manual_seed(100 * step + world.rank))
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), (x.sum(1) > 0).long()).backward()
            optimizer.step()
        for parameter in model.parameters():
            first, *others = world.gather(parameter.detach())
            assert all(torch.equal(first, other) for other in others)
        sums = kept_back(strategy)
    if not begun and world.is_chief:
        torch.save(sums, folder / "before.pt")


def same(ours: dict[str, torch.Tensor], before: dict[str, torch.Tensor]) -> None:
    for name, value in before.items():
        assert value.any()
        torch.testing.assert_close(ours[name], value, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    "after",
    [[[0], [1], [2], [3]], MIXED, [[0, 1], [2]], [[0, 1]], [[0, 1, 2], [3, 4]]],
    ids=["apart", "placed otherwise", "fewer", "on one host", "more"],
)
def test_nothing_that_was_kept_back_is_lost_with_another_placement(tmp_path: Path, after: Hosts) -> None:
    for hosts in (PAIRS, after):
        ranks = sum(map(len, hosts))
        codes = crew.run(moved, tmp_path, hosts, folder=tmp_path, world_size=ranks)
        assert codes == [0] * ranks, crew.output(tmp_path, ranks)
