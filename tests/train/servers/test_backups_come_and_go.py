"""Backup workers that come and go: an update waits for the first m of those workers that take part in its step."""

from __future__ import annotations

import collections
import itertools
import json
import time
from collections.abc import Callable
from concurrent import futures
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.train.servers import farm
from tests.train.servers.test_apart import opened, push
from tests.train.servers.test_coming_and_going import TRUE, Served, come
from torch import nn

from oarlock import train
from oarlock.train.servers.model import openings, shares
from oarlock.train.servers.process import shard
from oarlock.train.servers.wire import frames

PATIENCE_S = 60.0
HELD_S = 0.3
"""An update that waits for no other gradient is made by then."""


def elastic(workers: int, backup: int) -> shard.Shard:
    served = opened(1, lr=1.0, sync=True, backup=backup, elastic=True)
    for rank in range(workers):
        served.join(rank, shares.Told(workers))
    return served


def step(served: shard.Shard, ranks: list[int]) -> None:
    """Make the next update with these gradients, all of which it waits for."""
    base = served.version
    first = [farm.aside(push, served, rank, base, float(rank), 1.0) for rank in ranks[:-1]]
    if first:
        assert not futures.wait(first, HELD_S).done, "the update does not wait for enough gradients"
    before = served.weights[0].clone()
    version, weights = farm.aside(push, served, ranks[-1], base, float(ranks[-1]), 1.0).result(PATIENCE_S)
    assert version == base + 1
    torch.testing.assert_close(weights, before - sum(ranks) / len(ranks))
    assert {each.result(PATIENCE_S)[0] for each in first} <= {base + 1}


def test_an_update_waits_for_one_gradient_more_once_a_newcomer_takes_part() -> None:
    served = elastic(3, backup=1)
    step(served, [0, 2])
    assert come(served, 3) == 1
    assert served.shares.divisions[-1] == (2, (0, 1, 2, 3)), "workers may compute the second step already"
    step(served, [1, 2])
    step(served, [0, 1, 3])


def test_an_update_waits_for_one_gradient_less_once_a_worker_has_left() -> None:
    served = elastic(3, backup=1)
    step(served, [0, 2])
    assert served.part(2) == 2
    step(served, [1, 2])
    step(served, [1])
    served.leave(2)
    step(served, [0])


def test_a_gradient_for_a_step_without_its_worker_is_not_taken() -> None:
    """A worker's last step was the one before on another server, which is an update behind."""
    served = elastic(3, backup=1)
    step(served, [0, 2])
    assert served.part(2) == 2
    step(served, [0, 2])
    late = farm.aside(push, served, 2, 2, 2.0, 1.0)
    assert not futures.wait([late], HELD_S).done
    step(served, [1])
    assert late.result(PATIENCE_S)[0] == 3, "it goes on with the weights of those that took part"
    for rank in (0, 1):
        served.leave(rank)
    step(served, [2])


def test_updates_go_on_with_those_that_are_left_when_workers_die() -> None:
    served = elastic(4, backup=1)
    step(served, [0, 1, 3])
    waits = farm.aside(push, served, 1, 1, 1.0, 1.0)
    served.leave(3, failed="worker 3 is gone")
    served.leave(2, failed="worker 2 is gone")
    assert not futures.wait([waits], HELD_S).done, "two workers are left"
    assert farm.aside(push, served, 0, 1, 0.0, 1.0).result(PATIENCE_S)[0] == 2
    assert waits.result(PATIENCE_S)[0] == 2
    assert come(served, 3) == 2, "its successor takes part at once"
    step(served, [0, 1, 3])


def test_a_server_learns_of_a_change_from_a_gradient_of_the_changed_step() -> None:
    first, second = (elastic(2, backup=1) for _ in range(2))
    come(first, 2)
    second.learn(first.shares.fields())
    for served in (first, second):
        step(served, [1])
        step(served, [0, 2])


def test_a_newcomer_waits_for_its_first_step_and_for_no_one_that_is_done() -> None:
    served = elastic(2, backup=1)
    come(served, 2)
    waits = farm.aside(served.await_version, 2, 1)
    assert not futures.wait([waits], HELD_S).done
    step(served, [0])
    waits.result(PATIENCE_S)
    waits = farm.aside(served.await_version, 2, 9)
    served.leave(0)
    served.leave(1, failed="worker 1 is gone")
    assert not futures.wait([waits], HELD_S).done, "the successor of a dead worker may go on"
    served.join(1, shares.Told(2, began=True))
    served.leave(1)
    waits.result(PATIENCE_S)


def test_all_workers_in_step_cannot_come_and_go_without_rounds() -> None:
    fields = openings.Opening((), "SGD", openings.Mode(1, backup=1, elastic=True)).fields()
    openings.read(fields)
    for changes in ({"backup": 0}, {"rounds": True}, {"elastic": False, "rounds": True}):
        with pytest.raises(frames.Refused, match="rounds"):
            openings.read({**fields, "mode": {**fields["mode"], "workers": 2, **changes}})


class Backed(Served):
    """Workers of which an update does not wait for the slowest."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._target: Callable[..., None] = trains


def trains(folder: Path, settings: dict[str, Any]) -> None:
    world = train.init()
    torch.manual_seed(world.rank)
    model = nn.Linear(6, 1, bias=False).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    train.data_parallel(model, optimizer, strategy=train.ParameterServers(**settings))
    x = torch.randn(331, 6, generator=torch.Generator().manual_seed(5)).double()
    batches = train.Batches((torch.arange(331), x, x @ TRUE.T), 4, seed=3)
    stop = folder.parent / "stop"
    with (
        (folder / "diary").open("a", buffering=1) as diary,
        train.Session(model=model, optimizer=optimizer, batches=batches) as session,
    ):
        for which, a, b in session.steps(batches, epochs=1_000):
            told = [session.step, batches.epoch, world.world_size, which.tolist()]
            optimizer.zero_grad()
            (model(a) - b).square().mean().backward()
            optimizer.step()
            names = ("step", "epoch", "ranks", "which")
            diary.write(json.dumps(dict(zip(names, told, strict=True))) + "\n")
            time.sleep(0.01 * (1 + world.rank))
            if stop.exists():
                session.request_stop()
    torch.save(model.state_dict(), folder / "end.pt")


@pytest.mark.parametrize("servers", [1, 2])
def test_workers_come_go_and_die(tmp_path: Path, servers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[int, int, int, tuple[int, ...]]] = []
    make = shard.Shard._make

    def noted(self: shard.Shard, pushes: Any) -> None:
        made.append((id(self), self.version + 1, len(pushes), self.shares.workers_of(self.version + 1)))
        assert pushes.keys() <= set(made[-1][3]), (made[-1], sorted(pushes), self.shares.fields())
        make(self, pushes)

    monkeypatch.setattr(shard.Shard, "_make", noted)
    with farm.running(servers) as found:
        workers = Backed(tmp_path, found, {"backup": 1})
        try:
            workers.start(["0", "1", "2"])
            workers.wait_for(["0", "1"], 3)
            workers.begin("3")
            workers.wait_for(["0", "1"], 4)
            workers.round(["0", "1", "3"], tell=["0", "1", "2", "3"])
            workers.wait_for(["0", "1"], 3)
            workers.wait(lambda: workers.processes["2"].exitcode == 0)
            planned = max(version for _, version, *_ in made)
            workers.kill("1")
            seen = len(workers.steps("0"))
            workers.wait(lambda: len(workers.steps("0")) > seen + 10)
            workers.begin("1.2")
            workers.wait(lambda: len(workers.steps("1.2")) > 3)
            workers.wait(lambda: workers.steps("0")[-1]["step"] >= 150)
            (tmp_path / "stop").touch()
            workers.end()
        finally:
            workers.close()
    counts = dict(sorted((version, len(members)) for _, version, _, members in made if version <= planned))
    assert [each for each, _ in itertools.groupby(counts.values())] == [3, 4, 3], counts
    for _, version, gradients, members in made:
        least = len(members) - 1 if version <= planned else 1
        assert least <= gradients <= len(members), (version, gradients, members)
    if servers == 1:
        for each in workers.all_steps():
            members = next(members for _, version, _, members in made if version == each["step"])
            assert each["ranks"] == len(members), f"step {each['step']} was divided otherwise than on the server"
    taken = collections.Counter((each["epoch"], example) for each in workers.all_steps() for example in each["which"])
    assert max(taken.values()) == 1, "an example came twice in an epoch"
    for name in ("0", "1.2", "3"):
        found_there = torch.load(tmp_path / name / "end.pt", weights_only=True)["weight"]
        assert (found_there - TRUE).abs().max() < 0.1
