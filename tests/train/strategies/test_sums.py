"""Sums over the ranks of one host by shared memory: the bits of one order of additions, on every rank."""

from __future__ import annotations

import copy
import dataclasses
import mmap
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tests.train import crew
from tests.train.strategies import test_allreduce
from torch import nn

from oarlock import train
from oarlock.train import worlds
from oarlock.train.sharing import crews, segments
from oarlock.train.strategies import allreduce

SIZES = (100_003, 70_000, 65)


def numbers(rank: int, step: int, size: int) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(1000 * step + 10 * rank + size % 7))


def summed(steps: int = 12) -> None:
    """Sums of several tensors, with ranks that are late at random, against the sum in the order of the ranks."""
    world = train.init()
    chance = random.Random(world.rank)
    reserved: list[int] = []
    reserve = os.posix_fallocate
    os.posix_fallocate = lambda file, begin, size: (reserved.append(size), reserve(file, begin, size))
    met = crews.gathered(world)
    assert met is not None
    assert (met.index, met.size) == (world.rank, world.world_size)
    sums = crews.shared(world, met, [torch.zeros(size) for size in SIZES])
    assert sums is not None
    assert all(each.sent_bytes == 0 for each in sums), "nothing goes by a wire"
    assert len(reserved) == 1, "each rank pays for its own numbers, not for those of others"
    assert 4 * sum(SIZES) <= reserved[0] < 4 * sum(SIZES) + 64 * len(SIZES)
    worlds.crew = met
    for step in range(steps):
        works = []
        for each, size in zip(sums, SIZES, strict=True):
            time.sleep(chance.random() * 0.01)
            each.ours.copy_(numbers(world.rank, step, size))
            works.append(each.start())
        for each, work, size in zip(sums, works, SIZES, strict=True):
            work.wait()
            expected = numbers(0, step, size)
            for rank in range(1, world.world_size):
                expected += numbers(rank, step, size)
            assert torch.equal(each.ours, expected)


@pytest.mark.parametrize("ranks", [2, 3])
def test_a_sum_has_the_order_of_the_ranks(ranks: int, tmp_path: Path) -> None:
    assert crew.run(summed, folder=tmp_path, world_size=ranks) == [0] * ranks, crew.output(tmp_path, ranks)


def over_hosts() -> None:
    """Four ranks, as if on two hosts."""
    rank = int(os.environ["RANK"])
    real = segments.place()
    segments.place = lambda: f"{real} {rank % 2}"
    world = train.init()
    met = crews.gathered(world)
    assert met is not None
    assert (met.index, met.size) == (rank // 2, 2)
    sums = crews.shared(world, met, [torch.zeros(SIZES[0])])
    assert sums is not None
    assert sum(world.gather(sums[0].sent_bytes)) == 2 * 4 * SIZES[0], "a host sends each number once"
    worlds.crew = met
    everyones = []
    for step in range(3):
        sums[0].ours.copy_(numbers(rank, step, SIZES[0]))
        sums[0].start().wait()
        expected = sum(numbers(each, step, SIZES[0]).double() for each in range(4))
        assert torch.allclose(sums[0].ours.double(), torch.as_tensor(expected), atol=1e-5)
        everyones.append(sums[0].ours.sum().item())
    assert len({tuple(each) for each in world.gather(everyones)}) == 1


def test_hosts_sum_their_sums(tmp_path: Path) -> None:
    assert crew.run(over_hosts, folder=tmp_path, world_size=4) == [0] * 4, crew.output(tmp_path, 4)


def wide_net() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 700), nn.Tanh(), nn.Linear(700, 700), nn.Tanh(), nn.Linear(700, 3))


def as_by_gloo() -> None:
    """A model whose buckets are in shared memory, and one whose gradients go by gloo."""
    train.init()
    for settings in ({}, {"unused_parameters": True}, {"bucket_bytes": 300_000}):
        ours, theirs = wide_net(), wide_net()
        crews.LEAST_BYTES = 1 << 40
        expected = test_allreduce.learned(theirs, train.data_parallel(theirs, strategy="allreduce", **settings))
        crews.LEAST_BYTES = 256 << 10
        strategy = allreduce.AllReduce(**settings)
        attached = strategy.attach(ours)
        by_wire = [bucket.sent_bytes for bucket in strategy._buckets if bucket._sum is None]
        assert len(by_wire) < len(strategy._buckets)
        assert sum(bucket.sent_bytes for bucket in strategy._buckets) == sum(by_wire)
        for one, other in zip(test_allreduce.learned(ours, attached), expected, strict=True):
            assert torch.equal(one, other)


def test_two_ranks_get_the_bits_of_gloo(tmp_path: Path) -> None:
    assert crew.run(as_by_gloo, folder=tmp_path) == [0, 0], crew.output(tmp_path, 2)


def forked() -> None:
    """A process that reads ahead is a fork. It would keep the memory of buckets that have another size by then."""
    train.init()
    strategy = allreduce.AllReduce()
    strategy.attach(wide_net())
    assert any(bucket._sum is not None for bucket in strategy._buckets)
    assert "/oarlock-" in Path("/proc/self/maps").read_text()
    child = os.fork()
    if child == 0:
        os._exit("/oarlock-" in Path("/proc/self/maps").read_text())
    assert os.waitpid(child, 0)[1] == 0, "the fork has the memory"


@pytest.mark.skipif(not hasattr(mmap, "MADV_DONTFORK"), reason="Linux alone can keep memory out of a fork")
def test_a_fork_has_no_part_in_the_memory(tmp_path: Path) -> None:
    assert crew.run(forked, folder=tmp_path) == [0, 0], crew.output(tmp_path)


def refuse(*_: object) -> None:
    raise OSError(28, "No space left on device")


def without(why: str) -> None:
    """No rank uses the memory where one of them cannot."""
    rank = int(os.environ["RANK"])
    real = segments.place()
    if why == "apart":
        segments.place = lambda: f"{real} {rank}"
    elif why == "uneven":
        segments.place = lambda: f"{real} {rank == 2}"
    elif why == "nowhere":
        segments.place = lambda: "" if rank else real
    elif why == "offer":
        segments._PART = 1 << 60
    elif why == "reserve":
        os.posix_fallocate = refuse
    elif why == "opened" and rank == 1:
        segments.Opened.__init__ = refuse
    train.init()
    expected = None
    for least in (256 << 10, 1 << 40):
        crews.LEAST_BYTES = least
        model = wide_net()
        strategy = allreduce.AllReduce()
        if why == "device" and rank == 1:
            strategy._world = dataclasses.replace(strategy._world, device=torch.device("cuda"))
        learned = test_allreduce.learned(model, strategy.attach(model))
        assert all(bucket._sum is None for bucket in strategy._buckets)
        assert expected is None or all(torch.equal(*pair) for pair in zip(learned, expected, strict=True))
        expected = copy.deepcopy(learned)


@pytest.mark.parametrize("why", ["apart", "uneven", "nowhere", "offer", "reserve", "opened", "device"])
def test_gloo_serves_where_a_rank_cannot_share_memory(why: str, tmp_path: Path) -> None:
    ranks = 3 if why == "uneven" else 2
    assert crew.run(without, why, folder=tmp_path, world_size=ranks) == [0] * ranks, crew.output(tmp_path, ranks)


def resumed(folder: Path) -> None:
    """Runs of three ranks that began with sums by gloo or by memory, and go on where the other way is at hand."""
    world = train.init()

    def trained(name: str, way: str, steps: int) -> torch.Tensor:
        segments._PART = 2 if way == "memory" else 1 << 60  # is there room in /dev/shm?
        model = wide_net()
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        train.data_parallel(model, optimizer)
        with train.Session(
            model=model, optimizer=optimizer, checkpoints=folder / name, every_steps=100, total_steps=steps
        ) as session:
            for step in session.steps():
                optimizer.zero_grad()
                model(numbers(world.rank, step, 48).view(8, 6)).square().mean().backward()
                optimizer.step()
        return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])

    whole = {way: trained(f"{way}, whole", way, 6) for way in ("gloo", "memory")}
    assert not torch.equal(whole["gloo"], whole["memory"]), "the order of additions is another one"
    for before, after in (("gloo", "memory"), ("memory", "gloo")):
        trained(before, before, 3)
        assert torch.equal(trained(before, after, 6), whole[before]), before
    os.posix_fallocate = refuse
    trained("memory", "gloo", 9)


def test_a_resumed_run_adds_up_as_the_one_before_it(tmp_path: Path) -> None:
    assert crew.run(resumed, tmp_path, folder=tmp_path, world_size=3) == [0] * 3, crew.output(tmp_path, 3)
    said = crew.output(tmp_path, 3)
    assert said.count("added up by shared memory of the ranks [0, 1, 2], now by gloo") == 1


def elsewhere() -> None:
    """The order of a checkpoint that these ranks cannot have, because they are placed otherwise."""
    train.init()
    segments._PART = 1 << 60
    strategy = allreduce.AllReduce()
    strategy.attach(wide_net())
    asked: list[int] = []

    def offer(size: int, **_: object) -> None:
        asked.append(size)
        refuse()

    segments.Offer = offer
    strategy.keep_choice({"sums": [[0, 2], [1, 3]]})
    assert not asked, "memory in another order wins no bits"
    assert strategy.choice() == {"sums": [[0], [1], [2], [3]]}
    strategy.keep_choice({"sums": [[0, 1, 2, 3]]})
    assert asked


def test_memory_is_not_taken_for_an_order_that_cannot_be_had(tmp_path: Path) -> None:
    assert crew.run(elsewhere, folder=tmp_path, world_size=4) == [0] * 4, crew.output(tmp_path, 4)


def killed(before: Callable[[], None]) -> None:
    world = train.init()
    model = wide_net()
    strategy = allreduce.AllReduce()
    strategy.attach(model)
    assert any(bucket._sum is not None for bucket in strategy._buckets)
    for step in range(1000):
        if step == 5 and world.rank == 1:
            before()
        model(torch.randn(4, 6)).sum().backward()


def at_once() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def in_a_sum() -> None:
    """Die in the thread that adds up, when the other has given its numbers."""
    crews._add_up = lambda *_: os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("moment", [at_once, in_a_sum])
def test_a_killed_rank_ends_the_sums_of_the_others_and_leaves_no_memory(
    moment: Callable[[], None], tmp_path: Path
) -> None:
    before = set(segments.FOLDER.glob("oarlock-*"))
    codes = crew.run(killed, moment, folder=tmp_path)
    assert codes[1] == -signal.SIGKILL
    assert codes[0] == 1, crew.output(tmp_path, 2)
    assert "Connection" in crew.output(tmp_path, 2)
    left = set(segments.FOLDER.glob("oarlock-*")) - before
    while any(each.exists() for each in left):  # those of tests that run beside this one are removed soon
        time.sleep(0.1)
