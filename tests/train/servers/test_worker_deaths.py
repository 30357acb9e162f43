"""Workers in lockstep that are killed: the others wait in their step, and a successor goes on where they wait."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.train import crew
from tests.train.servers import farm
from torch import nn

from oarlock import train
from oarlock.train import errors
from oarlock.train.servers.model import openings
from oarlock.train.servers.process import handover
from oarlock.train.servers.wire import frames, handshake, memory
from oarlock.train.servers.workers import links, remotes
from oarlock.train.strategies import choices

EXAMPLES, BATCH = 48, 4
PLACES = ("before", "between", "pushed", "half", "taken", "settled")
"""The places of a step: before its gradient, between the pushes to two servers, after them, between the weights of two
servers, after the optimizer's step, and after the step."""


SMALL, SHARED = 20, 2500
"""The number of hidden units of a small net, and of one that is so large that bodies go by shared memory."""


def net(hidden: int) -> nn.Sequential:
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(6, hidden), nn.Tanh(), nn.Linear(hidden, 3)).double()


def learn(folder: Path, deaths: dict[int, list[tuple[int, str]]], steps: int, save: bool, hidden: int) -> None:
    """Train. The incarnation N of a rank dies at its Nth entry of `deaths`: at this step and place."""
    world = train.init()
    incarnation = int(os.environ.get("OARLOCK_INCARNATION") or 1)
    mine = deaths.get(world.rank, [])
    at, place = mine[incarnation - 1] if incarnation <= len(mine) else (-1, "")
    now = [0]

    def die(here: str) -> None:
        if now[0] == at and here == place:
            os.kill(os.getpid(), signal.SIGKILL)

    _interrupt("push", "between", "pushed", die)
    _interrupt("take", "half", "", die)
    torch.manual_seed(world.rank + 7 * incarnation)
    model = net(hidden)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    train.data_parallel(model, optimizer, strategy=train.ParameterServers())
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.97)
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(EXAMPLES, 6, generator=generator).double()
    y = torch.randint(0, 3, (EXAMPLES,), generator=generator)
    batches = train.Batches((x, y, torch.arange(EXAMPLES)), BATCH, seed=3)
    options: dict[str, Any] = {"checkpoints": folder / "checkpoints", "every_steps": 3} if save else {}
    diary = (folder / f"diary-{world.rank}.txt").open("a", buffering=1)
    state = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "batches": batches}
    with train.Session(**state, total_steps=steps, **options) as session:
        for a, b, which in session.steps(batches):
            now[0] = session.step
            print(json.dumps([session.step, batches.epoch, which.tolist()]), file=diary)
            die("before")
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(a), b).backward()
            optimizer.step()
            die("taken")
            scheduler.step()
            if place == "settled" and session.step == at:
                monkeypatch = pytest.MonkeyPatch()
                monkeypatch.setattr(session._agreement, "settle", _after(session._agreement.settle, die))
            time.sleep(0.005)
    kept = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": session.step}
    torch.save(kept, folder / f"taught-{world.rank}.pt")


def _after(settle: Callable[..., Any], die: Callable[[str], None]) -> Callable[..., Any]:
    def called(**told: Any) -> Any:
        result = settle(**told)
        die("settled")
        return result

    return called


def _interrupt(name: str, first: str, second: str, die: Callable[[str], None]) -> None:
    """Call `die` after the method of the first and of the second server."""
    method = getattr(remotes.Remote, name)

    def called(self: remotes.Remote, *args: Any, **kwargs: Any) -> Any:
        result = method(self, *args, **kwargs)
        die((first, second)[self.link.number])
        return result

    setattr(remotes.Remote, name, called)


class Gang:
    """Worker processes. One that is killed is replaced."""

    def __init__(self, folder: Path, workers: int, env: dict[str, str], target: Callable[..., None], *args: Any):
        self._folder, self._target, self._args = folder, target, args
        self._env = {"MASTER_PORT": "1", **env, "WORLD_SIZE": str(workers), "MASTER_ADDR": "127.0.0.1"}
        self.incarnations = dict.fromkeys(range(workers), 0)
        self.processes = {rank: self.start(rank) for rank in range(workers)}

    def start(self, rank: int) -> Any:
        self.incarnations[rank] += 1
        env = {**self._env, "RANK": str(rank), "LOCAL_RANK": "0", "OARLOCK_INCARNATION": str(self.incarnations[rank])}
        log = self._folder / f"rank-{rank}.txt"
        process = crew._CONTEXT.Process(target=crew._member, args=(self._target, self._args, env, log))
        process.start()
        return process

    def end(self, timeout_s: float = 240.0) -> list[int]:
        """Replace the killed ones until all have ended. Return their exit codes."""
        deadline = time.monotonic() + timeout_s
        ended = (None, -signal.SIGKILL)
        while any(each.exitcode in ended for each in self.processes.values()) and time.monotonic() < deadline:
            failed = [rank for rank, each in self.processes.items() if (each.exitcode or 0) > 0]
            assert not failed, f"ranks {failed} failed\n" + crew.output(self._folder, len(self.processes))
            for rank, each in self.processes.items():
                if each.exitcode == -signal.SIGKILL:
                    self.processes[rank] = self.start(rank)
            time.sleep(0.01)
        hang = [rank for rank, each in self.processes.items() if each.exitcode is None]
        for each in self.processes.values():
            each.kill()
            each.join()
        assert not hang, f"ranks {hang} hang\n" + crew.output(self._folder, len(self.processes))
        return [each.exitcode for each in self.processes.values()]


@contextmanager
def gang(
    folder: Path,
    workers: int,
    *args: Any,
    hidden: int = SMALL,
    target: Callable[..., None] = learn,
    env: Mapping[str, str] | None = None,
) -> Iterator[Gang]:
    folder.mkdir(exist_ok=True)
    with farm.running(2) as found:
        made = Gang(folder, workers, {**farm.variables(found), **(env or {})}, target, folder, *args, hidden)
        try:
            yield made
        finally:
            for each in made.processes.values():
                each.kill()
                each.join()


def check(
    folder: Path,
    deaths: dict[int, list[tuple[int, str]]],
    *,
    workers: int,
    steps: int,
    save: bool,
    hidden: int = SMALL,
    target: Callable[..., None] = learn,
    env: Callable[[], Mapping[str, str]] = dict,
    unlike: Sequence[str] = (),
) -> None:
    """Train with these deaths, and without any: the results are equal, but for the buffers of the model that are
    `unlike`. `env` gives the variables of each gang.
    """
    args = (workers, deaths, steps, save)
    with gang(folder / "killed", *args, hidden=hidden, target=target, env=env()) as killed:
        codes = killed.end()
        said = crew.output(folder / "killed", workers)
        assert codes == [0] * workers, said
        for rank, mine in deaths.items():
            assert killed.incarnations[rank] == 1 + len(mine), said
    with gang(folder / "calm", workers, {}, steps, save, hidden=hidden, target=target, env=env()) as calm:
        assert calm.end() == [0] * workers
    taken: dict[tuple[int, int], list[int]] = {}
    for rank in range(workers):
        found, expected = (torch.load(folder / each / f"taught-{rank}.pt") for each in ("killed", "calm"))
        for name in unlike:
            del found["model"][name], expected["model"][name]
        torch.testing.assert_close(found, expected, rtol=0, atol=0, msg=lambda text: f"{text}\n{said}")
        for line in (folder / "killed" / f"diary-{rank}.txt").read_text().splitlines():
            step, epoch, which = json.loads(line)
            assert taken.setdefault((step, rank), [epoch, *which]) == [epoch, *which], "a step has other examples again"
    epochs: dict[int, list[int]] = {}
    for epoch, *which in taken.values():
        epochs.setdefault(epoch, []).extend(which)
    for epoch, seen in sorted(epochs.items())[:-1]:
        assert sorted(seen) == list(range(EXAMPLES)), f"epoch {epoch}"


@pytest.mark.parametrize("place", PLACES)
def test_a_worker_is_killed_that_reads_the_weights_in_the_servers_memory(tmp_path: Path, place: str) -> None:
    check(tmp_path, {1: [(3, place), (6, place)]}, workers=2, steps=8, save=False, hidden=SHARED)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("rank", [0, 1])
def test_a_worker_is_killed_at_each_place_of_a_step(tmp_path: Path, rank: int) -> None:
    deaths = [(3 + 4 * number, place) for number, place in enumerate(PLACES)]
    check(tmp_path, {rank: deaths}, workers=2, steps=5 + 4 * len(PLACES), save=False)


def named_by_the_script() -> dict[str, str]:
    """Return the variables of a job file without a strategy: its workers have a process group, too."""
    return {choices.VARIABLE: "", "MASTER_PORT": str(crew.free_port())}


@pytest.mark.parametrize("rank", [0, 1])
def test_a_worker_is_killed_where_the_script_alone_names_the_strategy(tmp_path: Path, rank: int) -> None:
    deaths = [(3, "before"), (7, "between"), (11, "taken")]
    check(tmp_path, {rank: deaths}, workers=2, steps=14, save=False, env=named_by_the_script)


def test_two_of_three_are_killed_at_once_and_again(tmp_path: Path) -> None:
    deaths = {1: [(4, "between"), (9, "before"), (9, "before")], 2: [(4, "between"), (9, "taken")]}
    check(tmp_path, deaths, workers=3, steps=14, save=False)


def test_a_worker_is_killed_while_checkpoints_are_saved(tmp_path: Path) -> None:
    """A save under way may be lost; the next one is whole."""
    deaths = {0: [(3, "settled"), (6, "taken"), (7, "before")], 1: [(9, "settled"), (12, "taken")]}
    check(tmp_path, deaths, workers=2, steps=14, save=True)
    whole = (tmp_path / "killed" / "checkpoints").glob("*/manifest.json")
    assert max(json.loads(each.read_text())["step"] for each in whole) == 14


def test_successors_of_all_workers_fail_so_that_the_gang_restarts(tmp_path: Path) -> None:
    with gang(tmp_path, 2, {0: [(8, "before")], 1: [(8, "before")]}, 12, False) as dead:
        for process in dead.processes.values():
            process.join()
        for rank in dead.processes:
            dead.processes[rank] = dead.start(rank)
            dead.processes[rank].join(60)
        assert [each.exitcode for each in dead.processes.values()] == [1, 1], crew.output(tmp_path)
        for rank in dead.processes:
            assert "all workers are gone" in (tmp_path / f"rank-{rank}.txt").read_text()


def test_successors_that_wait_for_each_other_are_refused() -> None:
    """The last worker with a state dies while the successors of others wait for it."""
    told, there = handover.Handover(), {0, 1, 2}
    with ThreadPoolExecutor(2) as waiting:
        asked = [waiting.submit(told.take, rank, 8, weights=False, there=lambda: there) for rank in (0, 1)]
        while told.wanted(2)["number"] == 0 or len(told._requests) < 2:
            time.sleep(0.001)
        there.remove(2)
        told.look()
        for each in asked:
            with pytest.raises(frames.Refused, match="no worker is left"):
                each.result()


@pytest.mark.parametrize("noticed", [False, True])
def test_a_worker_that_lost_its_exchanges_alone_is_refused(noticed: bool) -> None:
    """The others wait for its successor then. Its own step is not made: it had begun, or begins after the loss."""
    with farm.running() as found:
        opening = openings.Opening((openings.Piece("w", 0, (1,), "float64", 0),), "SGD", openings.Mode(2))
        working = [links.Link(found, 0, handshake.Place(rank, 2, 1, "step")) for rank in range(2)]
        meets = links.Link(found, 0, handshake.Place(1, 2, 1, "meet"))
        for link in working:
            link.open(opening.fields())
        weights, settings = torch.zeros(1, dtype=torch.float64), [{"lr": 1.0}]
        working[0].ask(frames.Kind.LOAD, {"version": 0, "settings": settings}, [memory.view(weights)])
        working[0].ask(frames.Kind.BEGIN, {"step": 0})
        fields = {"base": 0, "number": 0, "absent": [], "settings": settings, "wish": 0}
        if not noticed:
            working[1].start(frames.Kind.STEP, fields, [memory.view(weights)])
        meets.close()
        gives = links.Link(found, 0, handshake.Place(0, 2, 1, "give"))
        while not gives.ask(frames.Kind.WANTED, {})["missing"]:
            time.sleep(0.001)
        if noticed:
            working[0].start(frames.Kind.STEP, fields, [memory.view(weights)])
            working[1].start(frames.Kind.STEP, fields, [memory.view(weights)])
        with pytest.raises(errors.ServerError, match="worker 1 was replaced"):
            working[1].finish(lambda head: [memory.view(weights)])
        for link in (*working, gives):
            link.close()


def test_a_worker_that_waits_for_a_successor_ends_by_sigterm(tmp_path: Path) -> None:
    """The gang may end, and then no successor comes."""
    with gang(tmp_path, 2, {0: [(5, "before")]}, 10, False) as waiting:
        first, second = waiting.processes.values()
        first.join()
        assert first.exitcode == -signal.SIGKILL
        second.terminate()
        second.join(60)
        assert second.exitcode == 128 + signal.SIGTERM, crew.output(tmp_path)


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("rank", [0, 1])
def test_a_worker_is_killed_100_times(tmp_path: Path, rank: int) -> None:
    deaths = [(3 + 2 * number, PLACES[number % len(PLACES)]) for number in range(100)]
    check(tmp_path, {rank: deaths}, workers=2, steps=210, save=True)


def test_a_worker_outlives_a_successor_that_dies_while_it_is_told_the_state() -> None:
    """A state that no one waits for any more is refused, and with it the connection that brought it alone."""
    with farm.running() as found:
        place = handshake.Place(0, 2, 1, "step")
        working = links.Link(found, 0, place)
        opening = openings.Opening((openings.Piece("w", 0, (1,), "float64", 0),), "SGD", openings.Mode(2))
        working.open(opening.fields())
        working.ask(frames.Kind.BEGIN, {"step": 0})
        gives = links.Link(found, 0, dataclasses.replace(place, purpose="give"))
        assert gives.ask(frames.Kind.WANTED, {}) == {"number": 0, "missing": False}
        with pytest.raises(errors.ServerError, match="at most 0 are taken"):
            gives.ask(frames.Kind.GIVE, {"number": 3}, [memoryview(b"state")])
        gives.close()
        again = links.Link(found, 0, dataclasses.replace(place, purpose="give"))
        assert again.ask(frames.Kind.WANTED, {}) == {"number": 0, "missing": False}
        again.close()
        working.close()
