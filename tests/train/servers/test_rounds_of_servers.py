"""Workers of parameter servers that step together, and come and go: the others go on with exact weights."""

from __future__ import annotations

import collections
import itertools
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.train.rounds import counting as counts
from tests.train.rounds import gang
from tests.train.servers import farm
from tests.train.servers.test_apart import opened
from torch import nn

from oarlock import train
from oarlock.train import errors
from oarlock.train.servers import addresses
from oarlock.train.servers.model import openings
from oarlock.train.servers.process import pushes, server, shard
from oarlock.train.servers.wire import frames, handshake, memory
from oarlock.train.servers.workers import exchanges, links, remotes


class Served(gang.Gang):
    """Members that train with these servers."""

    def __init__(self, folder: Path, servers: addresses.Addresses, *args: Any) -> None:
        super().__init__(folder, *args)
        self._variables = farm.variables(servers)

    def _place(self, name: str, names: Sequence[str]) -> dict[str, str]:
        return {**super()._place(name, names), **self._variables}


def count(folder: Path, pause_s: float, ballast: int = 0) -> None:
    counts.count(folder, pause_s, ballast, train.ParameterServers())


@contextmanager
def counting(folder: Path, servers: int, *args: Any, target: Callable[..., None] = count) -> Iterator[Served]:
    with farm.running(servers) as found:
        made = Served(folder, found, target, *args)
        try:
            yield made
        finally:
            made.close()


@pytest.mark.parametrize("servers", [1, 3])
@pytest.mark.parametrize("kills", [5, pytest.param(100, marks=[pytest.mark.soak, pytest.mark.timeout(3600)])])
def test_survivors_go_on_and_newcomers_join(tmp_path: Path, servers: int, kills: int) -> None:
    with counting(tmp_path, servers, 0.002) as made:
        counts.kill_and_replace(made, kills)


BATCH, EXAMPLES = 4, 60
PLACES = ("before", "between", "pushed", "agreed", "committing", "half", "taken")
"""The places of a step: before its gradients, between those to two servers, after them, when all servers have all
gradients, between the requests to make the update, between the weights of two servers, and after the optimizer's step.
"""


def net() -> nn.Sequential:
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(6, 20), nn.Tanh(), nn.Linear(20, 3)).double()


def stepping(model: nn.Module) -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return optimizer, torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)


def examples() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    return torch.randn(EXAMPLES, 6, generator=generator).double(), torch.randint(0, 3, (EXAMPLES,), generator=generator)


class Diary(train.Hook):
    """The steps that were begun, each with its share of the examples, and those that were made."""

    def __init__(self, folder: Path) -> None:
        self._file = (folder / "diary").open("a", buffering=1)
        self._stop = folder.parent / "stop"

    def begin(self, session: train.Session, epoch: int, which: torch.Tensor) -> None:
        world = session.world
        self._write("begun", session, world.world_size, world.rank, epoch, which.tolist())

    def after_step(self, session: train.Session) -> None:
        self._write("made", session, session.world.world_size)
        if self._stop.exists():
            session.request_stop()

    def _write(self, what: str, session: train.Session, *told: Any) -> None:
        print(json.dumps([what, session.step, *told]), file=self._file)


def learn(folder: Path, deaths: dict[str, str]) -> None:
    """Train until a file says stop. A member of `deaths` dies in its fourth step, at this place, or when it enters."""
    world = train.init()
    place, own_steps = deaths.get(folder.name), 0

    def die(here: str) -> None:
        if own_steps == (0 if place == "entering" else 4) and here == place:
            os.kill(os.getpid(), signal.SIGKILL)

    for name, first, second in (
        ("push", "between", "pushed"), ("agree", "", "agreed"), ("commit", "committing", ""), ("take", "half", ""),
        ("enter", "entering", ""),
    ):  # fmt: skip
        interrupt(name, (first, second), die)
    torch.manual_seed(world.rank)
    model = net()
    optimizer, scheduler = stepping(model)
    train.data_parallel(model, optimizer, strategy=train.ParameterServers())
    batches = train.Batches((torch.arange(EXAMPLES), *examples()), BATCH, seed=3)
    diary = Diary(folder)
    state = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "batches": batches}
    with train.Session(**state, hooks=[diary]) as session:
        for which, a, b in session.steps(batches, epochs=10_000):
            own_steps += 1
            diary.begin(session, batches.epoch, which)
            die("before")
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(a), b).backward()
            optimizer.step()
            die("taken")
            scheduler.step()
            time.sleep(0.005)
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, folder / "final.pt")


def interrupt(name: str, places: tuple[str, str], die: Callable[[str], None]) -> None:
    """Call `die` after the method of the first and of the second server."""
    method = getattr(remotes.Remote, name)

    def called(self: remotes.Remote, *args: Any, **kwargs: Any) -> Any:
        result = method(self, *args, **kwargs)
        die(places[self.link.number])
        return result

    setattr(remotes.Remote, name, called)


def check(folder: Path, names: Sequence[str]) -> list[int]:
    """Train one process on the joined batches: the weights are equal. Return the number of workers of each step."""
    begun: dict[tuple[int, int, int], tuple[int, list[int]]] = {}
    made: dict[int, int] = {}
    for path in folder.glob("*/diary"):
        for line in path.read_text().split("\n")[:-1]:
            what, step, ranks, *told = json.loads(line)
            if what == "made":
                assert made.setdefault(step, ranks) == ranks, f"step {step} was made in two rounds"
            else:
                rank, epoch, which = told
                assert begun.setdefault((step, ranks, rank), (epoch, which)) == (epoch, which)
    assert sorted(made) == list(range(1, len(made) + 1))
    model, (x, y) = net(), examples()
    optimizer, scheduler = stepping(model)
    epochs: dict[int, list[int]] = collections.defaultdict(list)
    for step, ranks in sorted(made.items()):
        optimizer.zero_grad()
        for rank in range(ranks):
            epoch, which = begun[step, ranks, rank]
            epochs[epoch] += which
            (nn.functional.cross_entropy(model(x[which]), y[which]) / ranks).backward()
        optimizer.step()
        scheduler.step()
    for epoch, seen in sorted(epochs.items()):
        assert len(seen) == len(set(seen)), f"an example came twice in epoch {epoch}"
        left_out = EXAMPLES - len(seen)
        assert left_out < BATCH * 3 or epoch == max(epochs), f"epoch {epoch} lacks {left_out} examples"
    for name in names:
        found = torch.load(folder / name / "final.pt", weights_only=True)
        for key, value in model.state_dict().items():
            torch.testing.assert_close(found["model"][key], value, rtol=1e-9, atol=1e-12)
        moments = [one["momentum_buffer"] for one in found["optimizer"]["state"].values()]
        for moment, expected in zip(moments, optimizer.state.values(), strict=True):
            torch.testing.assert_close(moment, expected["momentum_buffer"], rtol=1e-9, atol=1e-12)
    return [ranks for _, ranks in sorted(made.items())]


def test_a_newcomer_dies_while_it_enters(tmp_path: Path) -> None:
    """It has taken part on one server, and not on the other."""
    names = ["a", "b"]
    with counting(tmp_path, 2, {"c": "entering"}, target=learn) as made:
        made.start(names)
        made.wait(lambda: all(map(made.ready, names)))
        made.begin("c")
        made.wait(lambda: made.ready("c"))
        made.round(["c", *names])
        dead = made.processes.pop("c")
        made.wait(lambda: dead.exitcode == -signal.SIGKILL)
        counts.change(made, names)
        after = len((tmp_path / "a" / "diary").read_text())
        made.wait(lambda: len((tmp_path / "a" / "diary").read_text()) > after + 1000)
        (tmp_path / "stop").touch()
        made.end()
    assert set(check(tmp_path, names)) == {2}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("least", [0, 1], ids=["the chief", "another"])
def test_a_worker_is_killed_at_each_place_of_a_step(tmp_path: Path, least: int) -> None:
    """The step is made by all, or by those that are left, on all servers; and then a newcomer takes part."""
    victims = [f"v{number}" for number in range(len(PLACES) + 1)]
    names = ["a", "b"]
    with counting(tmp_path, 2, dict(zip(victims, PLACES, strict=False)), target=learn) as made:
        names.insert(least, victims[0])
        made.start(names)
        for victim, fresh in itertools.pairwise(victims):
            dead = made.processes.pop(victim)
            made.wait(lambda dead=dead: dead.exitcode == -signal.SIGKILL)
            names.remove(victim)
            counts.change(made, names)
            counts.take_in(made, names, fresh, least)
        (tmp_path / "stop").touch()
        made.end()
    workers = check(tmp_path, names)
    changes = [now for before, now in itertools.pairwise([0, *workers]) if before != now]
    assert changes == [3, *[2, 3] * len(PLACES)], changes


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("changes", [4, pytest.param(50, marks=pytest.mark.long)])
def test_another_membership_every_20_steps(tmp_path: Path, changes: int) -> None:
    """Members leave and join in turn, and no step is repeated."""
    with counting(tmp_path, 2, 0.002) as made:
        counts.change_every_20_steps(made, changes)


def test_one_that_trains_alone_takes_others_in(tmp_path: Path) -> None:
    with counting(tmp_path, 2, 0.002) as made:
        made.start(["a", "b"])
        made.wait(lambda: all(map(made.ready, ["a", "b"])))
        made.round(["b"], tell=["a", "b"])
        made.wait(lambda: made.rounds("b") == [2])
        made.begin("c")
        made.wait(lambda: made.ready("c"))
        counts.change(made, ["c", "b"])
        counts.end(made, ["b", "c"], losses=0)


def test_two_lost_at_once_and_one_while_the_others_meet(tmp_path: Path) -> None:
    names = ["a", "b", "c", "d"]
    with counting(tmp_path, 2, 0.002) as made:
        made.start(names)
        made.wait(lambda: all(map(made.ready, names)))
        made.kill("b")
        made.processes["c"].kill()
        made.round(["a", "c", "d"], tell=["a", "d"])  # c is gone too, but the job's server does not know it yet
        made.processes.pop("c").join()
        counts.change(made, ["a", "d"])
        counts.end(made, ["a", "d"], losses=2)


def test_a_stopped_worker_holds_the_others_up_only_until_it_is_out(tmp_path: Path) -> None:
    names = ["a", "b", "c"]
    with counting(tmp_path, 2, 0.002) as made:
        made.start(names)
        made.wait(lambda: all(map(made.ready, names)))
        made.signal("b", signal.SIGSTOP)
        counts.stands_still(made, ["a", "c"])
        made.kill("b")
        counts.change(made, ["a", "c"])
        counts.end(made, ["a", "c"], losses=1)


class Farm:
    """Servers that die, and whose successors know nothing."""

    def __init__(self, count: int) -> None:
        self._servers: list[server.Server] = []
        self._threads: list[threading.Thread] = []
        for _ in range(count):
            self._start(0)
        self.found = addresses.Addresses(tuple(f"127.0.0.1:{one.port}" for one in self._servers), farm.TOKEN)

    def _start(self, port: int) -> None:
        self._servers.append(server.Server(("127.0.0.1", port), farm.TOKEN))
        self._threads.append(threading.Thread(target=self._servers[-1].serve))
        self._threads[-1].start()

    def replace(self, number: int) -> None:
        old = self._servers.pop(number)
        old.close()
        self._start(old.port)
        self._servers.insert(number, self._servers.pop())

    def cut(self, number: int) -> None:
        """Break the connections of one server."""
        for connection in list(self._servers[number]._connections):
            connection.close()

    def close(self) -> None:
        for one in self._servers:
            one.close()
        for thread in self._threads:
            thread.join()


@contextmanager
def counting_with(folder: Path, servers: Farm) -> Iterator[Served]:
    made = Served(folder, servers.found, count, 0.002)
    try:
        yield made
    finally:
        made.close()
        servers.close()


def test_servers_die_in_several_rounds(tmp_path: Path) -> None:
    names, servers = ["a", "b", "c"], Farm(2)
    with counting_with(tmp_path, servers) as made:
        made.start(names)
        made.wait(lambda: all(map(made.ready, names)))
        for number, victim in enumerate("ab"):
            servers.replace(number)
            after = max(counts.reached(made, name) for name in names)
            made.wait(lambda after=after: all(counts.reached(made, name) > after + 5 for name in names))
            counts.lose(made, names, victim)
        counts.end(made, names, losses=2)


def test_a_worker_dies_that_the_successors_of_the_servers_have_never_seen(tmp_path: Path) -> None:
    names, servers = ["a", "b", "c"], Farm(2)
    with counting_with(tmp_path, servers) as made:
        made.start(names)
        made.wait(lambda: all(map(made.ready, names)))
        made.signal("b", signal.SIGSTOP)
        counts.stands_still(made, ["a", "c"])
        servers.replace(0)
        servers.replace(1)
        made.kill("b")
        made.lost = made.number
        counts.change(made, ["a", "c"])
        counts.end(made, ["a", "c"], losses=1)


def test_connections_break_though_all_workers_live(tmp_path: Path) -> None:
    names, servers = ["a", "b", "c"], Farm(2)
    with counting_with(tmp_path, servers) as made:
        made.start(names)
        made.wait(lambda: all(map(made.ready, names)))
        servers.cut(1)
        made.meet_again(names)
        made.wait(lambda: all(made.rounds(name)[-1:] == [made.number] for name in names))
        counts.end(made, names, losses=1)


def in_round(number: int, workers: int, served: shard.Shard | None = None) -> shard.Shard:
    """Return a shard with weights 1 whose `workers` workers are those of a round."""
    served = served or opened(1, lr=1.0, rounds=True)
    served.begin_round(number, workers)
    return served


def give(served: shard.Shard, rank: int, life: int, gradient: float, *, base: int = 0) -> tuple[int, Any]:
    """Push a gradient that waits for `commit`. Return the version and whether the answer has no weights."""
    buffers = served.layout.buffers()
    buffers[0].fill_(gradient)
    push = pushes.Push(base, buffers, frozenset(), [{"lr": 1.0}], life=life, hold=True)
    version, _, bare, _ = served.push(rank, push, buffers)
    return version, bare


def test_an_update_that_has_all_gradients_outlives_the_death_of_a_worker() -> None:
    """Another server may have made it already: the dead worker had all answers, and the others have or get them."""
    served = in_round(1, 2)
    other = farm.aside(give, served, 1, 1, 0.5)
    assert farm.aside(give, served, 0, 1, 0.25).result(60) == (0, True)
    assert other.result(60) == (0, True)
    served.leave(1, failed="worker 1 is gone")
    again = farm.aside(give, served, 0, 1, 0.25)
    assert again.result(60) == (0, True), "its connection broke, and it asks again"
    for _ in range(2):
        version, *_ = served.commit(0, 0, served.layout.buffers(), all_rows=False)
        assert version == 1
    assert served.weights[0].tolist() == [1 - 0.375] * 5
    with pytest.raises(frames.RoundOver, match="worker 1 is gone"):
        give(served, 0, 1, 0.25, base=1)


def test_an_update_that_lacks_a_gradient_is_given_up() -> None:
    served = in_round(1, 3)
    waiting = [farm.aside(give, served, rank, 1, 1.0) for rank in (0, 2)]
    with served.changed:
        while len(served._pending) < 2:
            served.changed.wait(0.01)
    served.leave(1, failed="worker 1 is gone")
    for each in waiting:
        with pytest.raises(frames.RoundOver, match="worker 1 is gone"):
            each.result(60)
    late = farm.aside(give, in_round(2, 2, served), 0, 1, 1.0)  # of the round before
    with pytest.raises(frames.RoundOver):
        late.result(60)
    with pytest.raises(frames.Refused, match="are not here"):
        served.commit(0, 0, served.layout.buffers(), all_rows=False)
    other = farm.aside(give, served, 1, 2, 0.5)
    assert farm.aside(give, served, 0, 2, 0.25).result(60) == (0, True)
    assert other.result(60) == (0, True)
    served.commit(1, 0, served.layout.buffers(), all_rows=False)
    assert served.weights[0].tolist() == [1 - 0.375] * 5, "the mean is over the workers of the round"


def test_a_newcomer_that_waits_for_the_others_ends_no_round() -> None:
    """The others may be in a step still. The first one that steps has met all others in the new round."""
    opening = openings.Opening((openings.Piece("w", 0, (1,), "float64", 0),), "SGD", openings.Mode(1, rounds=True))
    one = torch.ones(1, dtype=torch.float64)

    def place(number: int, rank: int, purpose: str) -> handshake.Place:
        return handshake.Place(rank, 2, 1, purpose, round=number)

    with farm.running() as found:
        old = [links.Link(found, 0, place(1, rank, "step")) for rank in range(2)]
        for link in old:
            link.open(opening.fields())
        old[0].ask(frames.Kind.LOAD, {"version": 0, "settings": [{"lr": 0.25}]}, [memory.view(one)])
        newcomer = exchanges.Exchanges(found, place(2, 0, "meet"))
        fields = {"base": 0, "number": 0, "absent": [], "settings": [{"lr": 0.25}], "wish": 0}
        for link in old:
            link.start(frames.Kind.STEP, fields, [memory.view(one)])
        for link in old:
            link.finish(lambda head: [memory.view(one)])
        assert one.item() == 0.75
        steps = links.Link(found, 0, place(2, 1, "step"))
        old[0].start(frames.Kind.STEP, {**fields, "base": 1}, [memory.view(one)])
        with pytest.raises(errors.PeersLost, match="round 1 is over, and round 2 has begun"):
            old[0].finish(lambda head: [memory.view(one)])
        with pytest.raises(errors.PeersLost, match="round 1 is over"):
            links.Link(found, 0, place(1, 0, "meet"))
        for each in (*old, steps, newcomer):
            each.close()


def asks_for_backup(folder: Path) -> None:
    train.init()
    model = nn.Linear(1, 1)
    with pytest.raises(train.StateError, match="the job file says that all workers step together"):
        train.data_parallel(model, torch.optim.SGD(model.parameters()), strategy=train.ParameterServers(backup=1))


def test_a_script_that_asks_for_another_mode_than_the_job_file_is_refused(tmp_path: Path) -> None:
    with farm.running() as found:
        made = Served(tmp_path, found, asks_for_backup)
        try:
            made.start(["a", "b"])
            made.end()
        finally:
            made.close()
