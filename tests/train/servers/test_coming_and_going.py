"""Workers of parameter servers that come and go while the others train, without lockstep."""

from __future__ import annotations

import collections
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.train import crew
from tests.train.rounds import gang
from tests.train.servers import farm
from tests.train.servers.test_apart import opened, push, started
from torch import nn

from oarlock import train
from oarlock.train.servers import addresses
from oarlock.train.servers.model import openings, shares
from oarlock.train.servers.process import shard
from oarlock.train.servers.wire import frames, handshake
from oarlock.train.servers.workers import links

TRUE = torch.tensor([[1.0, -2.0, 3.0, -4.0, 5.0, -6.0]], dtype=torch.float64)


def test_a_change_holds_from_a_step_on_and_is_the_last_one_of_that_step() -> None:
    found = shares.Shares()
    found.begin([0, 1])
    assert found.change([0, 1, 2], 5) == 5
    assert found.change([0, 2], 4) == 5, "a change before the last one would give a step two divisions"
    assert found.change([0, 2, 3], 9) == 9
    places = {step: [found.of(worker, step) for worker in range(4)] for step in (5, 6, 9, 10)}
    assert places == {
        5: [(0, 2), (1, 2), (2, 2), (2, 2)],
        6: [(0, 2), (1, 2), (1, 2), (2, 2)],
        9: [(0, 2), (1, 2), (1, 2), (2, 2)],
        10: [(0, 3), (1, 3), (1, 3), (2, 3)],
    }
    assert found.of(0, 0) is None
    assert [found.last_of(worker) for worker in range(4)] == [None, 5, None, None]


PATIENCE_S = 60.0
HELD_S = 0.3
"""A push that nobody holds has ended by then."""


@pytest.mark.parametrize("told", [[[1, [0]], [2, ["x"]]], [[-1, [0]]], [[0]], 7, [["0", []]]])
def test_shares_that_are_not_valid_are_refused(told: Any) -> None:
    with pytest.raises(frames.Refused, match="not valid"):
        shares.Shares().take(told)


def elastic(workers: int, *, staleness: int | None = None) -> shard.Shard:
    """A shard whose `workers` workers have begun."""
    served = opened(1, lr=1.0, sync=False, staleness=staleness, elastic=True)
    for rank in range(workers):
        served.join(rank, shares.Told(workers))
    return served


def come(served: shard.Shard, rank: int) -> int:
    return served.join(rank, shares.Told(9, began=True))


def test_a_newcomer_begins_at_a_step_that_no_other_has_begun() -> None:
    served = elastic(2)
    for number in range(1, 8):
        push(served, 0, 0, 0.0, number=number)
    assert come(served, 2) == 8, "the first worker may compute its eighth step, on half of the data"
    assert [served.shares.of(2, step) for step in (8, 9)] == [(2, 2), (2, 3)]
    assert come(served, 2) == 8, "its answer was lost, and it opens again"
    assert len(served.shares.divisions) == 2
    assert served.taken() == {0: 7, 1: 0, 2: 8}


def test_a_worker_that_leaves_has_its_share_until_the_others_do_without_it() -> None:
    served = elastic(3)
    for number in range(1, 5):
        push(served, 1, 0, 0.0, number=number)
    assert [served.part(2), served.part(2)] == [5, 5]
    assert [served.shares.of(2, step) for step in (5, 6)] == [(2, 3), (2, 2)]
    served.leave(2)
    assert come(served, 2) == 5, "another process of the task is a newcomer"
    assert served.shares.of(2, 6) == (2, 3)


def stands(served: shard.Shard, clock: int) -> None:
    """Wait until the first worker has begun its push of this number, and go on while it stands there."""
    with served.changed:
        assert served.changed.wait_for(lambda: served.clocks[0] >= clock, PATIENCE_S)
        assert served.clocks[0] == clock


def test_the_bound_holds_among_those_that_are_there() -> None:
    """One that has left holds nobody, and one that has come holds the others from its first step on."""
    served = elastic(3, staleness=2)
    leads: list[tuple[int, int]] = []

    def fast() -> None:
        for number in range(1, 15):
            push(served, 0, 0, 0.0, number=number)
            with served.changed:
                leads.append((number, min(served.clocks[rank] for rank in served.clocks.keys() - served._gone)))

    threads = started(fast)
    stands(served, 3)
    assert len(leads) == 2
    for number in range(1, 10):
        push(served, 1, 0, 0.0, number=number)
        if number == 2:
            threads[0].join(HELD_S)
            assert served.clocks[0] == 3, "the third worker holds the first"
            served.part(2)
            served.leave(2)
    stands(served, 12)
    assert len(leads) == 11, "the second worker holds the first"
    begins_at = come(served, 2)
    assert begins_at == 13
    served.leave(1)
    for thread in threads:
        thread.join(PATIENCE_S)
    assert served.clocks[0] == 14
    assert all(number - least <= 2 for number, least in leads[:-1])
    pushing = started(lambda: push(served, 0, 0, 0.0, number=16))
    stands(served, 16)
    pushing[0].join(HELD_S)
    assert pushing[0].is_alive(), "the newcomer holds the first"
    push(served, 2, 0, 0.0, number=14)
    pushing[0].join(PATIENCE_S)
    assert not pushing[0].is_alive()


def test_a_restored_server_does_not_wait_for_a_worker_that_has_left_since() -> None:
    served = elastic(3, staleness=0)
    saved = served.saved()
    last = served.part(2)
    served.leave(2)
    restored = opened(1, lr=1.0, sync=False, staleness=0, elastic=True)
    restored.restore(saved)
    known = served.shares.fields()
    for rank in range(2):
        restored.join(rank, shares.Told(3, known, 1, began=True))
        restored.is_back(rank)
    assert restored.shares.last_of(2) == last
    threads = started(*(lambda rank=rank: push(restored, rank, 0, 0.0, number=2) for rank in range(2)))
    for thread in threads:
        thread.join(30)
    held = [thread.is_alive() for thread in threads]
    restored.leave(2)
    assert held == [False, False]
    assert restored.clocks == {0: 2, 1: 2, 2: 0}


def test_a_worker_of_a_fixed_number_cannot_ask_to_leave() -> None:
    opening = openings.Opening((openings.Piece("w", 0, (1,), "float64", 0),), "SGD", openings.Mode(1, sync=False))
    with farm.running() as servers:
        link = links.Link(servers, 0, handshake.Place(0, 1, 1, "step"))
        link.open(opening.fields())
        with pytest.raises(train.ServerError, match="do not come and go"):
            link.ask(frames.Kind.LEAVE, {})
        link.close()


class Served(gang.Gang):
    """Workers by name, NUMBER or NUMBER.INCARNATION, that train with these servers."""

    def __init__(self, folder: Path, servers: addresses.Addresses, settings: dict[str, Any]) -> None:
        super().__init__(folder, trains, settings)
        self._variables = farm.variables(servers)

    def _place(self, name: str, names: Sequence[str]) -> dict[str, str]:
        number, _, incarnation = name.partition(".")
        own = {"OARLOCK_WORKER": number, "OARLOCK_INCARNATION": incarnation or "1"}
        return {**super()._place(name, names), **own, **self._variables}

    def begin(self, name: str) -> None:
        """Start a process that takes part once it has found the servers."""
        self.ports[name] = crew.free_port()
        self._launch(name, self._place(name, [*self.processes, name]))

    def _launch(self, name: str, place: dict[str, str]) -> None:
        folder = self.folder / name
        folder.mkdir()
        env = {**place, "LOCAL_RANK": "0", "OARLOCK_ROUND": str(self.number), "OARLOCK_REPORT": str(folder)}
        self.processes[name] = crew._CONTEXT.Process(
            target=crew._member, args=(self._target, (folder, *self._args), env, folder / "output.txt")
        )
        self.processes[name].start()

    def steps(self, name: str) -> list[dict[str, Any]]:
        """Return the steps that a worker has made."""
        diary = self.folder / name / "diary"
        return [json.loads(line) for line in diary.read_text().split("\n")[:-1]] if diary.exists() else []

    def all_steps(self) -> list[dict[str, Any]]:
        names = [path.parent.name for path in self.folder.glob("*/diary")]
        return [{**each, "name": name} for name in names for each in self.steps(name)]

    def wait_for(self, names: Sequence[str], ranks: int) -> None:
        """Wait until these have made three steps among so many workers."""
        self.wait(lambda: all(sum(each["ranks"] == ranks for each in self.steps(name)[-3:]) == 3 for name in names))


def trains(folder: Path, settings: dict[str, Any]) -> None:
    world = train.init()
    torch.manual_seed(world.rank)
    model = nn.Linear(6, 1, bias=False).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    train.data_parallel(model, optimizer, strategy=train.ParameterServers(sync=False, **settings))
    x = torch.randn(331, 6, generator=torch.Generator().manual_seed(5)).double()
    batches = train.Batches((torch.arange(331), x, x @ TRUE.T), 4, seed=3)
    state: dict[str, Any] = {"model": model, "optimizer": optimizer, "batches": batches}
    stop = folder.parent / "stop"
    with (
        (folder / "diary").open("a", buffering=1) as diary,
        train.Session(**state, checkpoints=folder.parent / "checkpoints", every_steps=8) as session,
    ):
        for which, a, b in session.steps(batches, epochs=1_000):
            told = {"step": session.step, "epoch": batches.epoch, "place": world.rank, "ranks": world.world_size}
            optimizer.zero_grad()
            (model(a) - b).square().mean().backward()
            optimizer.step()
            diary.write(json.dumps({**told, "which": which.tolist()}) + "\n")
            time.sleep(0.01 * (1 + world.rank))
            if stop.exists():
                session.request_stop()
    torch.save(model.state_dict(), folder / "end.pt")


@pytest.mark.parametrize("settings", [{}, {"staleness": 2}], ids=["asynchronous", "bounded staleness"])
def test_workers_come_and_go_while_the_others_train(tmp_path: Path, settings: dict[str, Any]) -> None:
    with farm.running(2) as servers:
        workers = Served(tmp_path, servers, settings)
        try:
            workers.start(["0", "1"])
            workers.wait_for(["0", "1"], 2)
            workers.begin("2")
            workers.wait_for(["0", "1", "2"], 3)
            workers.round(["0", "2"], tell=["0", "1", "2"])
            workers.wait_for(["0", "2"], 2)
            workers.wait(lambda: workers.processes["1"].exitcode == 0)
            workers.begin("1.2")
            workers.wait_for(["0", "1.2", "2"], 3)
            planned = workers.steps("0")[-1]["step"]
            workers.kill("2")  # a death: the others go on, with their shares
            seen = len(workers.steps("0"))
            workers.wait(lambda: len(workers.steps("0")) > seen + 10)
            workers.begin("2.2")
            workers.wait_for(["0", "1.2", "2.2"], 3)
            workers.wait(lambda: workers.steps("0")[-1]["step"] >= 250)
            (tmp_path / "stop").touch()
            workers.end()
        finally:
            workers.close()
    steps = workers.all_steps()
    taken = collections.Counter((each["epoch"], example) for each in steps for example in each["which"])
    assert max(taken.values()) == 1, "an example came twice in an epoch"
    ended = min(workers.steps(name)[-1]["step"] for name in ("0", "1.2", "2"))
    by_step: dict[int, list[dict[str, Any]]] = collections.defaultdict(list)
    for each in steps:
        by_step[each["step"]].append(each)
    for step, some in by_step.items():
        assert len({each["ranks"] for each in some}) == 1, f"step {step} was divided in two ways"
        whole = sorted(each["place"] for each in some) == [*range(some[0]["ranks"])]
        assert whole or step > min(planned, ended), f"step {step} lacks a share"
    for name in ("0", "1.2", "2.2"):
        found = torch.load(tmp_path / name / "end.pt", weights_only=True)["weight"]
        assert (found - TRUE).abs().max() < 0.01
