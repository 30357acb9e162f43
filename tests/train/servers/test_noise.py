"""The gradients' noise, as parameter servers measure it: the estimate of allreduce, and without bias."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.train import crew
from tests.train.servers import farm
from torch import nn

from oarlock import train
from oarlock.train import agreement, worlds
from oarlock.train.measuring import noise
from oarlock.train.servers.model import openings
from oarlock.train.servers.process import pushes, shard
from oarlock.train.servers.workers import norms
from oarlock.train.strategies import strategy

RANKS = 3
STEPS = 3 * noise.EVERY + 1


def taught(folder: Path, kind: str) -> None:
    """Train with a matrix that two servers divide, and keep what this rank knows of the noise."""
    world = train.init()
    torch.manual_seed(4)
    model = nn.Sequential(nn.Linear(100, 300), nn.Tanh(), nn.Linear(300, 3)).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    made = train.AllReduce() if kind == "allreduce" else train.ParameterServers()
    made.figures.share = 8
    train.data_parallel(model, optimizer, strategy=made)
    generator = torch.Generator().manual_seed(world.rank)
    for _ in range(STEPS):
        x = torch.randn(8, 100, generator=generator, dtype=torch.float64)
        y = torch.randint(0, 3, (8,), generator=generator)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    assert made.figures.noise._means is not None
    torch.save(torch.stack(list(made.figures.noise._means)), folder / f"{kind}-{world.rank}.pt")


def test_the_estimate_is_that_of_allreduce(tmp_path: Path) -> None:
    """With allreduce each rank has the norm of its own gradient, and a server the mean of all: so the servers' estimate
    is the mean of the ranks' estimates. Both depend linearly on that norm.
    """
    (tmp_path / "dense").mkdir()
    (tmp_path / "served").mkdir()
    codes = crew.run(taught, tmp_path, "allreduce", folder=tmp_path / "dense", world_size=RANKS)
    assert codes == [0] * RANKS, crew.output(tmp_path / "dense", RANKS)
    with farm.running(2) as servers:
        env = farm.variables(servers)
        codes = crew.run(taught, tmp_path, "ps", folder=tmp_path / "served", world_size=RANKS, env=env)
    assert codes == [0] * RANKS, crew.output(tmp_path / "served", RANKS)
    dense, served = (
        [torch.load(tmp_path / f"{kind}-{rank}.pt", weights_only=True) for rank in range(RANKS)]
        for kind in ("allreduce", "ps")
    )
    assert served[0][0] == 4, "the updates after versions 0, 8, 16 and 24"
    for each in served:
        torch.testing.assert_close(each, served[0], rtol=0, atol=0)
        torch.testing.assert_close(each, torch.stack(dense).mean(0), rtol=1e-9, atol=1e-12)


SIZE = 400


def opened(half: int, **mode: Any) -> shard.Shard:
    """Return the server of one half of a matrix: of its first or its last elements."""
    piece = openings.Piece("w", half * SIZE // 2, (SIZE // 2,), "float64", 0)
    made = shard.Shard(openings.Opening((piece,), "SGD", openings.Mode(RANKS, **mode)), torch.device("cpu"))
    made.load(made.layout.buffers(), 0, [{"lr": 0.0}])
    return made


@pytest.mark.parametrize("backup", [0, 1])
def test_the_estimates_have_no_bias(backup: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two servers hold halves of gradients with a known mean and variance. With a backup worker two of three gradients
    make an update.
    """
    monkeypatch.setattr(noise, "EVERY", 1)
    generator = torch.Generator().manual_seed(7)
    scale, share = 300.0, 16
    true = torch.randn(SIZE, generator=generator, dtype=torch.float64)
    each = (scale * true.square().sum() / SIZE).sqrt()
    halves = [opened(half, sync=True, backup=backup) for half in range(2)]
    told, found = norms.Norms(), []
    for version in range(300):
        gradients = true + each / share**0.5 * torch.randn(RANKS, SIZE, generator=generator, dtype=torch.float64)
        for half, served in enumerate(halves):
            here = gradients[:, half * SIZE // 2 :][:, : SIZE // 2]
            pushed = [farm.aside(give, served, rank, version, here[rank].clone()) for rank in range(RANKS - backup)]
            assert [done.result(60) for done in pushed] == [version + 1] * len(pushed)
        figures = strategy.Figures(worlds.init())
        figures.share = share
        told.take([served.norms for served in halves], figures)
        assert figures.noise._means is not None
        found.append(torch.stack(figures.noise._means[1:]))
    samples = torch.stack(found)
    errors = 3 * samples.std(0) / len(samples) ** 0.5
    squared, variance = true.square().sum().item(), scale * true.square().sum().item()
    assert errors[0] < squared / 2, "enough samples to notice a wrong number of gradients"
    assert samples[:, 0].mean().item() == pytest.approx(squared, abs=errors[0].item())
    assert samples[:, 1].mean().item() == pytest.approx(variance, abs=errors[1].item())


def give(served: shard.Shard, rank: int, base: int, gradient: torch.Tensor) -> int:
    """Push a gradient as a connection's desk does, and return the version after its update."""
    norm = pushes.squared_norm([gradient], ()) if served.measures(base) else None
    push = pushes.Push(base, [gradient], frozenset(), [{"lr": 0.0}], squared_norm=norm)
    version, *_ = served.push(rank, push, served.layout.buffers())
    return version


def test_norms_of_different_updates_are_no_sample() -> None:
    figures = strategy.Figures(worlds.init())
    figures.share = 4
    told = norms.Norms()
    first, again, later, fewer = (9, 2, 1.5, 1.0), (9, 2, 1.5, 1.0), (17, 2, 1.5, 1.0), (17, 3, 1.5, 1.0)
    for servers, samples in [
        ([first, None], 0),
        ([first, again], 1),
        ([first, again], 1),  # it is told with each answer until the next one is measured
        ([later, again], 1),
        ([later, fewer], 1),
    ]:
        told.take(servers, figures)
        means = figures.noise._means
        assert (0 if means is None else int(means[0])) == samples, servers
    assert means is not None
    assert means[1].item() == pytest.approx((2 * 2.0 - 3.0) / 1), "the sums of both servers"


def adapted(folder: Path, settings: dict[str, Any]) -> None:
    world = train.init()
    torch.manual_seed(1)
    model = nn.Linear(6, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    train.data_parallel(model, optimizer, strategy=train.ParameterServers(**settings))
    generator = torch.Generator().manual_seed(5)
    batches = train.Batches((torch.randn(512, 6, generator=generator),), 8, seed=1)
    steps = noise.EVERY * (noise.LEAST_SAMPLES + 8)
    with train.Session(model=model, optimizer=optimizer, batches=batches, adapt=True, total_steps=steps) as session:
        for (x,) in session.steps(batches):
            session.backward((model(x).flatten() - 3).square().mean())
            optimizer.step()
            optimizer.zero_grad()
            time.sleep(0.02)  # reports take the noise now and then
    assert session.batch is not None
    torch.save((session.gain, session.batch.local), folder / f"gain-{world.rank}.pt")


@pytest.mark.parametrize(
    ("settings", "gains"),
    [({}, True), ({"backup": 1}, True), ({"sync": False}, False)],
    ids=["sync", "backup", "async"],
)
def test_the_gain_follows_the_batch_where_gradients_have_a_mean(
    settings: dict[str, Any], gains: bool, tmp_path: Path
) -> None:
    """The job began with 8 examples a step, and its steps take 16 on each of 3 workers now."""
    known = {"OARLOCK_BATCH_SIZE": "8", "OARLOCK_LOCAL_BATCH": "16"}
    reports = {rank: {"OARLOCK_REPORT": str(tmp_path / f"report-{rank}")} for rank in range(RANKS)}
    with farm.running(2) as servers:
        env = {**known, **farm.variables(servers)}
        codes = crew.run(adapted, tmp_path, settings, folder=tmp_path, world_size=RANKS, env=env, env_of_rank=reports)
    assert codes == [0] * RANKS, crew.output(tmp_path, RANKS)
    found = [torch.load(tmp_path / f"gain-{rank}.pt", weights_only=True) for rank in range(RANKS)]
    assert {local for _, local in found} == {16}
    gain = sorted(each for each, _ in found)
    slow = 1 if "backup" in settings else 0  # a worker that is late in most steps is told of few updates
    assert all(each > 1 for each in gain[slow:]) if gains else gain == [1] * RANKS


def test_each_worker_out_of_lockstep_has_the_noise_that_it_measures() -> None:
    apart = agreement.Apart(train.Strategy())
    assert apart.settle(stop=0, save=False, noise=3.5).noise == 3.5
