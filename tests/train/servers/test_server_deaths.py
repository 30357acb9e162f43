"""Parameter servers and workers that are killed: the others go on, and nothing that they know is lost."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from tests import marks
from tests.train import crew
from tests.train.servers import farm
from torch import nn

from oarlock import train
from oarlock.train.servers import __main__ as program
from oarlock.train.servers import addresses
from oarlock.train.servers.process import snapshots, standby

APART: dict[str, dict[str, Any]] = {
    "async": {"sync": False},
    "staleness": {"sync": False, "staleness": 2},
    "backup": {"sync": True, "backup": 1},
}
"""The modes that are not in lockstep."""
BETWEEN = 12
"""The steps from one kill to the next."""
WIDE = 2500
"""With such a layer the weights on each of two servers are large enough to be seen by the workers."""


def serve(environ: dict[str, str], log: Path) -> None:
    """A parameter server in a process of its own, as the role `ps` runs it."""
    os.environ.update(environ)
    torch.set_num_threads(1)
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(descriptor, 2)
    program.main([])


class House:
    """Server processes that can be killed and started again."""

    def __init__(self, folder: Path, count: int, environ: dict[str, str]) -> None:
        servers = tuple(f"127.0.0.1:{crew.free_port()}" for _ in range(count))
        self.addresses = addresses.Addresses(servers, f"{farm.TOKEN} {folder}")
        self.log = folder / "servers.txt"
        self._checkpoints = folder / "checkpoints"
        self._environ = {
            "OARLOCK_CHECKPOINTS": str(self._checkpoints),
            **farm.variables(self.addresses),
            **environ,
        }
        self._processes = [self._start(number) for number in range(count)]

    def kill(self, number: int) -> None:
        """Kill a server, and start another one in its place."""
        os.kill(self._processes[number].pid or 0, signal.SIGKILL)
        self._processes[number].join()
        self._processes[number] = self._start(number)

    def saved(self, number: int) -> int:
        """Return the version of a server's checkpoint, -1 while there is none."""
        saved = [snapshots.read(path) for path in self._checkpoints.glob(f".servers-*/server-{number}.pt")]
        return max((int(each["version"]) for each in saved if each is not None), default=-1)

    def pid(self, number: int) -> int:
        return self._processes[number].pid or 0

    def left(self) -> list[Path]:
        """Return the files that the servers have in shared memory."""
        kept = [standby.place(self.addresses.token, number) for number in range(len(self._processes))]
        return [left for path in kept if path is not None for left in path.parent.glob(f"{path.name}*")]

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.join()

    def _start(self, number: int) -> Any:
        environ = {**self._environ, "OARLOCK_SERVER": self.addresses.servers[number]}
        process = crew._CONTEXT.Process(target=serve, args=(environ, self.log))
        process.start()
        return process


@contextmanager
def house(folder: Path, count: int, environ: dict[str, str] | None = None) -> Iterator[House]:
    made = House(folder, count, environ or {})
    try:
        yield made
    finally:
        made.close()


def net(width: int = 20) -> nn.Sequential:
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(6, width), nn.Tanh(), nn.Linear(width, 3)).double()


def pestered(folder: Path, kills: int, how: str, mode: dict[str, Any]) -> None:
    """A run that waits for each kill. Out of step, every gradient of the last bias is 1, so that all can be counted."""
    world = train.init()
    (folder / f"pid-{world.rank}").write_text(str(os.getpid()))
    model = net(WIDE if how == "wide" else 20)
    momentum = 0.9 if how in ("momentum", "wide", "elsewhere") else 0.0
    optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=momentum)
    if how == "Adam":
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    train.data_parallel(model, optimizer, strategy=train.ParameterServers(**mode))
    generator = torch.Generator().manual_seed(5)
    x, y = torch.randn(96, 6, generator=generator).double(), torch.randint(0, 3, (96,), generator=generator)
    batches = train.Batches((x, y), 4, seed=3)
    told = waited = 0
    with train.Session(model=model, optimizer=optimizer, batches=batches, total_steps=BETWEEN * kills) as session:
        for a, b in session.steps(batches):
            if world.is_chief:
                for step in range(told + 1, session.step + 1):  # some are passed over, with a backup worker
                    (folder / f"step-{step}").touch()
                told = session.step
            while (world.is_chief or "backup" in mode) and session.step >= BETWEEN * waited + 8:
                wait_for(folder / f"killed-{waited}")  # in one of the last steps
                waited += 1
            optimizer.zero_grad()
            (model(a).sum(1).mean() if mode else nn.functional.cross_entropy(model(a), b)).backward()
            time.sleep(0.01)
            optimizer.step()
    torch.save(model.state_dict(), folder / f"taught-{world.rank}.pt")


def wait_for(path: Path, unless: Callable[[], bool] = lambda: False) -> None:
    while not path.exists() and not unless():
        time.sleep(0.002)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kills", [5, pytest.param(100, marks=pytest.mark.soak)])
@pytest.mark.parametrize("mode", ["sync", "momentum", "Adam", "wide", "elsewhere", *APART])
def test_servers_are_killed_at_any_step(tmp_path: Path, mode: str, kills: int) -> None:
    """One of two servers is killed every dozen steps. In lockstep the weights are those of an undisturbed run; out of
    it each gradient is applied once. The optimizer's state is the newest one, which the successor finds in shared
    memory, also where the workers see the weights (`wide`). On another host (`elsewhere`) it is that of the server's
    checkpoint: so there a kill waits for the checkpoint of the last update, while the workers wait in their step.
    """
    settings = APART.get(mode, {})
    over = threading.Event()
    elsewhere = mode == "elsewhere"
    with house(tmp_path, 2, {"OARLOCK_SHARED_MEMORY": "0"} if elsewhere else {}) as servers:

        def pester() -> None:
            for kill in range(kills):
                wait_for(tmp_path / f"step-{BETWEEN * kill + (8 if elsewhere else 5)}", over.is_set)
                while elsewhere and not over.is_set() and servers.saved(kill % 2) < BETWEEN * kill + 7:
                    time.sleep(0.01)
                servers.kill(kill % 2)
                (tmp_path / f"killed-{kill}").touch()

        thread = threading.Thread(target=pester)
        thread.start()
        env = farm.variables(servers.addresses)
        try:
            codes = crew.run(
                pestered, tmp_path, kills, mode, settings, folder=tmp_path, env=env, timeout_s=80.0 * kills
            )
        finally:
            over.set()
            thread.join()
    said = crew.output(tmp_path) + servers.log.read_text()
    assert codes == [0, 0], said
    assert said.count("parameter server at") == 2 + kills
    assert not servers.left(), "memory is left behind"
    first, second = (torch.load(tmp_path / f"taught-{rank}.pt", weights_only=True) for rank in range(2))
    for name in first:
        assert torch.equal(first[name], second[name])
    if settings:
        steps = BETWEEN * kills
        check_updates(first, range(steps, 2 * steps) if mode == "backup" else {2 * steps})
        return
    undisturbed = tmp_path / "undisturbed"
    undisturbed.mkdir()
    for kill in range(kills):
        (undisturbed / f"killed-{kill}").touch()
    with farm.running(2) as calm:
        env = farm.variables(calm)
        assert crew.run(pestered, undisturbed, kills, mode, {}, folder=undisturbed, env=env) == [0, 0]
    expected = torch.load(undisturbed / "taught-0.pt", weights_only=True)
    for name in first:
        assert torch.equal(first[name], expected[name]), "a step was lost, or the optimizer's state"
    assert "optimizer's state" not in said


@pytest.mark.timeout(600)
@pytest.mark.parametrize("stops", [5, pytest.param(100, marks=pytest.mark.soak)])
@pytest.mark.parametrize("who", marks.long_except(["worker", "server"], ["worker", "chief", "server"]))
@pytest.mark.parametrize("mode", ["sync", *APART])
def test_a_process_that_is_stopped_and_goes_on_loses_nothing(tmp_path: Path, mode: str, who: str, stops: int) -> None:
    """SIGSTOP, and SIGCONT while the others wait or went on: no one takes the stopped process for dead."""
    settings = APART.get(mode, {})
    over = threading.Event()
    with house(tmp_path, 2) as servers:

        def pester() -> None:
            for stop in range(stops):
                wait_for(tmp_path / f"step-{BETWEEN * stop + 5}", over.is_set)
                if over.is_set():
                    return
                pids = [int((tmp_path / f"pid-{rank}").read_text()) for rank in range(2)]
                victim = servers.pid(stop % 2) if who == "server" else pids[who == "worker"]
                os.kill(victim, signal.SIGSTOP)
                time.sleep(0.3)
                os.kill(victim, signal.SIGCONT)
                (tmp_path / f"killed-{stop}").touch()

        thread = threading.Thread(target=pester)
        thread.start()
        env = farm.variables(servers.addresses)
        try:
            codes = crew.run(
                pestered, tmp_path, stops, mode, settings, folder=tmp_path, env=env, timeout_s=80.0 * stops
            )
        finally:
            over.set()
            thread.join()
    said = crew.output(tmp_path) + servers.log.read_text()
    assert codes == [0, 0], said
    assert "broke" not in said
    assert said.count("parameter server at") == 2, "a server was started anew"
    first, second = (torch.load(tmp_path / f"taught-{rank}.pt", weights_only=True) for rank in range(2))
    for name in first:
        assert torch.equal(first[name], second[name])
    steps = BETWEEN * stops
    if settings:
        check_updates(first, range(steps, 2 * steps) if mode == "backup" else {2 * steps})
        return
    undisturbed = tmp_path / "undisturbed"
    undisturbed.mkdir()
    for stop in range(stops):
        (undisturbed / f"killed-{stop}").touch()
    with farm.running(2) as calm:
        env = farm.variables(calm)
        assert crew.run(pestered, undisturbed, stops, mode, {}, folder=undisturbed, env=env) == [0, 0]
    expected = torch.load(undisturbed / "taught-0.pt", weights_only=True)
    for name in first:
        assert torch.equal(first[name], expected[name])


def check_updates(taught: dict[str, torch.Tensor], numbers: Collection[int]) -> None:
    """The weights have one of these numbers of gradients in them: that of the last bias is 1 everywhere.

    With a backup worker the first gradient of a step makes its update, and one that was on its way at the end makes
    another. One of several servers may make more updates than there are steps: each drops gradients by itself.
    """
    updates = (net().state_dict()["2.bias"] - taught["2.bias"]) / 0.1
    torch.testing.assert_close(updates, updates[0].round().expand(3))
    assert round(updates[0].item()) in numbers, updates


def orphaned(folder: Path, kills: int, mode: dict[str, Any]) -> None:
    """A run out of lockstep whose last rank is killed in every fourth step; the first waits for each successor."""
    world = train.init()
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train.data_parallel(model, optimizer, strategy=train.ParameterServers(**mode))
    incarnation = int(os.environ.get("OARLOCK_INCARNATION") or 1)
    steps = []
    waited = 0

    def die(place: int) -> None:
        """Die in one of three places of the step: before its gradient, with it, and after its update."""
        if world.rank == 1 and incarnation <= kills and steps[-1] >= 4 * incarnation and incarnation % 3 == place:
            (folder / f"dying-{incarnation}").touch()
            os.kill(os.getpid(), signal.SIGKILL)

    with train.Session(model=model, optimizer=optimizer, total_steps=4 * kills + 4) as session:
        for step in session.steps():
            steps.append(step)
            if (
                world.rank == 0 and (step - 2) // 4 > waited
            ):  # steps of which another one made the update are passed over
                waited += 1
                wait_for(folder / f"begun-{waited + 1}")
            elif world.rank == 1:
                (folder / f"begun-{incarnation}").touch()
            die(1)
            optimizer.zero_grad()
            model(torch.ones(1, 6, dtype=torch.double)).sum().backward()
            die(2)
            optimizer.step()
            with (folder / "pushed.txt").open("a") as diary:
                diary.write(f"{world.rank}\n")
            die(0)
    torch.save({"model": model.state_dict(), "steps": steps}, folder / f"taught-{world.rank}.pt")


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kills", [5, pytest.param(100, marks=[pytest.mark.soak, pytest.mark.timeout(3600)])])
@pytest.mark.parametrize("mode", APART)
def test_killed_workers_are_replaced_while_the_others_go_on(tmp_path: Path, mode: str, kills: int) -> None:
    """Each successor continues at the step in which its predecessor died, with the present weights."""
    settings = APART[mode]
    with farm.running() as servers:
        env = farm.variables(servers)
        codes: list[int] = []
        first = threading.Thread(
            target=lambda: codes.extend(
                crew.run(orphaned, tmp_path, kills, settings, folder=tmp_path, env=env, timeout_s=80.0 * kills)
            )
        )
        first.start()
        for kill in range(1, kills + 1):
            again = {**env, "OARLOCK_INCARNATION": str(kill + 1), "RANK": "1", "WORLD_SIZE": "2"}
            again |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}  # not used
            own = tmp_path / f"again-{kill}"
            own.mkdir()
            wait_for(tmp_path / f"dying-{kill}", lambda: not first.is_alive())
            ended = crew.run(orphaned, tmp_path, kills, settings, folder=own, world_size=1, env=again, timeout_s=300)
            assert ended == [-signal.SIGKILL if kill < kills else 0], crew.output(own) + crew.output(tmp_path)
        first.join()
    assert codes == [0, -signal.SIGKILL], crew.output(tmp_path)
    kept, back = (torch.load(tmp_path / f"taught-{rank}.pt", weights_only=True) for rank in range(2))
    steps = 4 * kills + 4
    for name in kept["model"]:
        assert torch.equal(kept["model"][name], back["model"][name])
    pushed = len((tmp_path / "pushed.txt").read_text().split())
    check_updates(kept["model"], {steps, steps + 1} if mode == "backup" else {pushed})
    if mode == "backup":
        assert kept["steps"] == sorted(set(kept["steps"])), "the survivor kept its process and its steps"
        return
    assert kept["steps"] == list(range(1, steps + 1)), "the survivor kept its process and its steps"
    if mode == "async":  # under bounded staleness a successor passes over steps, so that no other waits for it
        assert pushed == 2 * steps
        assert back["steps"] == list(range(4 * kills + (kills % 3 == 0), steps + 1))


def test_a_torn_checkpoint_of_a_server_is_not_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = snapshots.place(str(tmp_path), 1, 0)
    assert snapshots.read(path) is None
    snapshots.write(path, {"version": 3, "weights": [torch.ones(2)]})
    found = snapshots.read(path)
    assert found is not None
    assert found["version"] == 3
    path.write_bytes(path.read_bytes()[:-40])
    assert snapshots.read(path) is None
    assert "cannot be read" in capsys.readouterr().err
    snapshots.remove(path)
    assert not path.parent.exists()


def bereft(folder: Path, settings: dict[str, Any]) -> None:
    """Train until the test has ended the servers, and then wait for others."""
    world = train.init()
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    train.data_parallel(model, optimizer, strategy=train.ParameterServers(**settings))
    with train.Session(model=model, optimizer=optimizer, total_steps=1_000_000) as session:
        for step in session.steps():
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            if step == 3:
                (folder / f"trains-{world.rank}").touch()


@pytest.mark.parametrize("settings", [{}, {"sync": False}], ids=["lockstep", "asynchronous"])
def test_a_worker_that_waits_for_a_server_ends_at_sigterm(tmp_path: Path, settings: dict[str, Any]) -> None:
    """The server may never come: the whole gang is being stopped. It would be killed after the grace."""
    workers: list[Any] = []
    try:
        with farm.running() as servers:
            for rank in range(2):
                env = {
                    "RANK": str(rank),
                    "WORLD_SIZE": "2",
                    "LOCAL_RANK": str(rank),
                    "MASTER_ADDR": "x",
                    "MASTER_PORT": "1",
                }
                args = (bereft, (tmp_path, settings), {**env, **farm.variables(servers)}, tmp_path / f"rank-{rank}.txt")
                workers.append(crew._CONTEXT.Process(target=crew._member, args=args))
                workers[-1].start()
            while not all((tmp_path / f"trains-{rank}").exists() for rank in range(2)):
                assert all(worker.is_alive() for worker in workers), crew.output(tmp_path)
                time.sleep(0.01)
        for worker in workers:
            os.kill(worker.pid, signal.SIGTERM)
        for worker in workers:
            worker.join(120)
        assert [worker.exitcode for worker in workers] == [143, 143], crew.output(tmp_path)
    finally:
        for worker in workers:
            worker.kill()
