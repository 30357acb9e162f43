"""Workers of parameter servers that do not wait for each other: asynchronous, with bounded staleness, with backups."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent import futures
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.train import crew
from tests.train.servers import farm
from torch import nn

from oarlock import train
from oarlock.train.servers.model import openings
from oarlock.train.servers.process import pushes, service, shard
from oarlock.train.servers.wire import frames

CURVATURES = torch.tensor([1.0, 0.7, 0.4, 0.2, 0.1], dtype=torch.float64)
SETTINGS = [{"lr": 0.01}]


class Watched(shard.Shard):
    """A shard that notes by how many updates each gradient was late."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.delays: list[int] = []

    def _apply(self, given: Sequence[pushes.Push]) -> None:
        self.delays += [self.version - push.base for push in given]
        super()._apply(given)


def opened(workers: int, lr: float = 0.01, **mode: Any) -> Watched:
    """A shard with weights 1, stepped by SGD."""
    pieces = (openings.Piece("w", 0, (len(CURVATURES),), "float64", 0),)
    made = Watched(openings.Opening(pieces, "SGD", openings.Mode(workers, **mode)), torch.device("cpu"))
    made.load([torch.ones(len(CURVATURES), dtype=torch.float64)], 0, [{"lr": lr}])
    return made


def push(
    served: shard.Shard, rank: int, base: int, gradient: torch.Tensor | float, lr: float = 0.01, number: int = 0
) -> tuple[int, Any]:
    """Push one gradient; return the version and the weights after it."""
    buffers = served.layout.buffers()
    buffers[0].copy_(torch.as_tensor(gradient, dtype=torch.float64).expand(len(CURVATURES)))
    version, *_ = served.push(rank, pushes.Push(base, buffers, frozenset(), [{"lr": lr}], number), buffers)
    return version, buffers[0]


def started(*work: Callable[[], Any]) -> list[threading.Thread]:
    threads = [threading.Thread(target=each, daemon=True) for each in work]
    for thread in threads:
        thread.start()
    return threads


def test_an_update_does_not_wait_for_the_backup_workers() -> None:
    """The first two of three gradients make the update; the third is dropped, and its worker goes on from there."""
    served = opened(3, sync=True, backup=1)
    threads = started(lambda: push(served, 2, 0, 1.0))
    assert push(served, 0, 0, 3.0)[0] == 1
    for thread in threads:
        thread.join()
    expected = torch.full((5,), 1 - 0.01 * 2.0, dtype=torch.float64)
    torch.testing.assert_close(served.weights[0], expected)
    version, weights = push(served, 1, 0, 1000.0)
    assert version == 1
    torch.testing.assert_close(weights, expected)
    torch.testing.assert_close(served.weights[0], expected)


def test_a_synchronous_update_is_the_mean_in_the_order_of_the_ranks() -> None:
    served = opened(3, lr=1.0)
    gradients = [torch.tensor([0.1, 1e16, -1e16, 0.3, 7.0], dtype=torch.float64) * (rank + 1) for rank in range(3)]
    threads = started(*(lambda rank=rank: push(served, rank, 0, gradients[rank], 1.0) for rank in (2, 0, 1)))
    for thread in threads:
        thread.join()
    mean = gradients[0] / 3 + gradients[1] / 3 + gradients[2] / 3
    assert torch.equal(served.weights[0], 1 - mean)


def test_no_worker_is_more_steps_ahead_than_allowed() -> None:
    served = opened(2, sync=False, staleness=2)
    leads: list[int] = []

    def fast() -> None:
        for _ in range(12):
            push(served, 0, 0, 0.0)
            with served.changed:
                leads.append(served.clocks[0] - served.clocks[1])

    threads = started(fast)
    with served.changed:
        served.changed.wait_for(lambda: served.clocks[0] == 3)
        assert len(leads) <= 2, "the third step waits for the slow worker"
    for _ in range(4):
        push(served, 1, 0, 0.0)
    served.leave(1)  # a worker that is done is not waited for
    for thread in threads:
        thread.join()
    assert served.clocks[0] == 12
    assert max(leads[:6]) <= 2


def test_a_gradient_that_comes_again_changes_nothing() -> None:
    """A worker whose connection broke sends it again, and does not know whether it was taken."""
    served = opened(2, lr=1.0, sync=False)
    assert push(served, 0, 0, 0.25, 1.0, number=1)[0] == 1
    version, weights = push(served, 0, 0, 0.25, 1.0, number=1)
    assert version == 1
    assert weights.tolist() == [0.75] * 5
    assert push(served, 0, 1, 0.25, 1.0, number=2)[0] == 2


def test_a_restored_server_knows_the_gradients_that_the_weights_hold() -> None:
    """The weights come back from one worker, and hold a gradient of another one, which has not seen the answer."""
    served = opened(2, lr=1.0, sync=False)
    saved = served.saved()
    push(served, 1, 0, 0.25, 1.0, number=1)
    version, weights = push(served, 0, 0, 0.5, 1.0, number=1)
    restored = opened(2, lr=1.0, sync=False)
    restored.restore(saved)
    restored.resume([weights], version, [{"lr": 1.0}], served.taken())
    for rank in range(2):
        restored.is_back(rank)
    assert push(restored, 1, 0, 0.25, 1.0, number=1)[0] == 2
    assert restored.weights[0].tolist() == [0.25] * 5
    assert push(restored, 1, 2, 0.25, 1.0, number=2)[0] == 3


@pytest.mark.parametrize(("momentum", "said"), [(0.9, "the optimizer's state is that of version 0"), (0.0, "")])
def test_a_server_says_that_its_optimizers_state_is_older_than_the_weights(
    capsys: pytest.CaptureFixture[str], momentum: float, said: str
) -> None:
    served = opened(1)
    settings = [{"lr": 0.01, "momentum": momentum}]
    served.load(served.layout.buffers(), 0, settings)
    served.resume(served.layout.buffers(), 7, settings)
    assert said in capsys.readouterr().err
    assert served.version == 7
    fresh = Watched(served.opening, torch.device("cpu"))
    fresh.resume(served.layout.buffers(), 7, settings)
    assert ("state begins anew" in capsys.readouterr().err) == bool(momentum)


def test_asynchronous_training_converges_within_the_bound() -> None:
    """Delayed gradient descent on a quadratic with curvatures c, where each gradient is at most D updates old.

    For one coordinate e' = (1 - rc) e + rc (e - e_delayed), and |e - e_delayed| <= D rc M, with M the largest |e| of
    the last 2 D + 1 updates. Where r c D <= 1/2, |e'| <= (1 - rc/2) M. So after T updates
    |e| <= (1 - rc/2) ** (T // (2 D + 1)) |e_0|. With n workers and staleness s, D = (n - 1) (2 s + 1): while one worker
    computes, each other one can go from s steps behind to s + 1 ahead.
    """
    workers, staleness, steps = 3, 1, 400
    oldest = (workers - 1) * (2 * staleness + 1)
    rate = 0.5 / (oldest * float(CURVATURES.max()))
    served = opened(workers, lr=rate, sync=False, staleness=staleness)

    def work(rank: int) -> None:
        chance = torch.Generator().manual_seed(rank)
        base, weights = 0, torch.ones(len(CURVATURES), dtype=torch.float64)
        for _ in range(steps):
            if torch.rand(1, generator=chance) < 0.1:
                time.sleep(0.001 * rank)  # they drift apart
            base, weights = push(served, rank, base, CURVATURES * weights, rate)
        served.leave(rank)

    threads = started(*(lambda rank=rank: work(rank) for rank in range(workers)))
    for thread in threads:
        thread.join()
    assert served.version == workers * steps
    assert 0 < max(served.delays) <= oldest
    bound = (1 - rate * CURVATURES / 2) ** (workers * steps // (2 * oldest + 1))
    assert (served.weights[0].abs() <= bound).all(), (served.weights[0], bound)


SPEEDS = (0.2, 1.0, 1.0)
"""The steps of each worker in a unit of time."""


def order(updates: int) -> list[int]:
    """Return which worker pushes each of so many updates, where each computes for a random time at its own speed."""
    chance = torch.Generator().manual_seed(7)

    def took(worker: int) -> float:
        return (0.5 + float(torch.rand(1, generator=chance))) / SPEEDS[worker]

    ready, found = [took(worker) for worker in range(len(SPEEDS))], []
    for _ in range(updates):
        worker = ready.index(min(ready))
        found.append(worker)
        ready[worker] += took(worker)
    return found


def pushed_in(order_of: Sequence[int], rate: float) -> Watched:
    """Descend on the quadratic without any bound of staleness, the workers in this order."""
    served = opened(len(SPEEDS), lr=rate, sync=False, staleness=None)
    known = [(0, torch.ones(len(CURVATURES), dtype=torch.float64)) for _ in SPEEDS]
    for worker in order_of:
        base, weights = known[worker]
        version, after = push(served, worker, base, CURVATURES * weights, rate)
        known[worker] = version, after.clone()
    return served


def test_asynchronous_training_without_a_bound_of_staleness_converges_within_that_of_its_delays() -> None:
    """The same bound, with the longest delay of the same order of pushes as D."""
    updates = order(6000)
    oldest = max(pushed_in(updates, 0.0).delays)
    assert oldest > 2 * (len(SPEEDS) - 1), "one of the workers is slow"
    rate = 0.5 / (oldest * float(CURVATURES.max()))
    served = pushed_in(updates, rate)
    assert max(served.delays) == oldest
    bound = (1 - rate * CURVATURES / 2) ** (len(updates) // (2 * oldest + 1))
    assert float(bound[0]) < 0.5
    assert (served.weights[0].abs() <= bound).all(), (served.weights[0], bound)


def wait_for(path: Path) -> None:
    while not path.exists():
        time.sleep(0.01)


def trained(
    folder: Path, strategy: train.Strategy, total_steps: int | None, before: Callable[[train.Session], None]
) -> None:
    """Train this rank; `before` is called in each step. Saves what it ended with."""
    world = train.init()
    torch.manual_seed(world.rank)
    model = nn.Linear(6, 3).double()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    train.data_parallel(model, optimizer, strategy=strategy)
    generator = torch.Generator().manual_seed(5)
    x, y = torch.randn(96, 6, generator=generator).double(), torch.randint(0, 3, (96,), generator=generator)
    batches = train.Batches((x, y), 4, seed=3)
    steps = []
    options: dict[str, Any] = {"checkpoints": folder / "checkpoints", "total_steps": total_steps}
    with train.Session(model=model, optimizer=optimizer, batches=batches, **options) as session:
        for a, b in session.steps(batches):
            before(session)
            steps.append(session.step)
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(a), b).backward()
            optimizer.step()
    kept = {"model": model.state_dict(), "steps": steps, "end": session.step, "batches": batches.state_dict()}
    torch.save(kept, folder / f"apart-{world.rank}.pt")


def asynchronous(folder: Path) -> None:
    """The last rank makes its third step only when the first has made all of its own."""

    def before(session: train.Session) -> None:
        if session.world.rank == 1 and session.step == 3:
            wait_for(folder / "first-is-done")
        if session.world.rank == 0 and session.step == 8:
            (folder / "first-is-done").touch()

    trained(folder, train.ParameterServers(sync=False), 8, before)


def with_backup(folder: Path) -> None:
    """The last of three ranks ends its first step when the others are far beyond it."""

    def before(session: train.Session) -> None:
        if session.world.rank == 2 and session.step == 1:
            wait_for(folder / "others-are-far")
        if session.world.rank == 0 and session.step == 8:
            (folder / "others-are-far").touch()

    trained(folder, train.ParameterServers(backup=1), 12, before)


class Late(train.ParameterServers):
    """Servers from which the last rank takes the first weights late."""

    folder = Path()
    pulls = 0

    def _pull(self) -> None:
        self.pulls += 1
        if self._world.rank == 1 and self.pulls == 2:  # the first one is that of `data_parallel`
            wait_for(self.folder / "others-are-far")
        super()._pull()


def late(folder: Path) -> None:
    def before(session: train.Session) -> None:
        if session.world.rank == 0 and session.step == 5:
            (folder / "others-are-far").touch()

    strategy = Late(backup=1)
    strategy.folder = folder
    trained(folder, strategy, 12, before)


def stopped(folder: Path) -> None:
    """One rank asks for the end; the other one would train for ever."""

    def before(session: train.Session) -> None:
        if session.world.rank == 1 and session.step == 3:
            session.request_stop()
        if session.world.rank == 0 and session.step > 3:
            time.sleep(0.01)

    trained(folder, train.ParameterServers(sync=False), None, before)


def ended(folder: Path, target: Callable[..., None], workers: int) -> list[dict[str, Any]]:
    with farm.running(2) as servers:
        codes = crew.run(target, folder, folder=folder, world_size=workers, env=farm.variables(servers))
    assert codes == [0] * workers, crew.output(folder, workers)
    found = [torch.load(folder / f"apart-{rank}.pt", weights_only=True) for rank in range(workers)]
    for each in found[1:]:
        assert torch.equal(each["model"]["weight"], found[0]["model"]["weight"]), "all end with the last weights"
    (path,) = (folder / "checkpoints").glob("*/rank-0.pt")
    saved = torch.load(path, weights_only=True)["shared"]
    assert torch.equal(saved["model"]["weight"], found[0]["model"]["weight"])
    assert saved["optimizer"]["state"][0]["exp_avg"].shape == (3, 6)
    return found


def test_asynchronous_workers_do_not_wait_for_each_other(tmp_path: Path) -> None:
    first, last = ended(tmp_path, asynchronous, 2)
    assert first["steps"] == last["steps"] == list(range(1, 9))


def test_a_slow_worker_passes_over_the_steps_that_were_made_without_it(tmp_path: Path) -> None:
    first, second, slow = ended(tmp_path, with_backup, 3)
    assert first["end"] == second["end"] == slow["end"] == 12
    assert slow["steps"][0] == 1
    assert len(slow["steps"]) < 12
    assert slow["steps"] == sorted(set(slow["steps"]))
    assert slow["batches"] == first["batches"], "it has passed over the data of those steps too"


def test_a_worker_that_begins_late_counts_the_steps_of_the_others(tmp_path: Path) -> None:
    first, slow = ended(tmp_path, late, 2)
    assert first["end"] == slow["end"] == 12
    assert min(slow["steps"], default=12) > 4
    assert slow["batches"] == first["batches"]


def test_a_wish_to_stop_reaches_the_others(tmp_path: Path) -> None:
    first, last = ended(tmp_path, stopped, 2)
    assert last["end"] == 3
    assert first["end"] >= 1


def test_no_wish_is_lost_where_two_come_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    served = service.Service()
    within, over = threading.Event(), threading.Event()

    def slowly(known: int, told: int) -> int:
        if told == 1:
            within.set()
            over.wait(0.3)  # the other one is held meanwhile
        return max(known, told)

    monkeypatch.setattr(service, "max", slowly, raising=False)
    weaker = farm.aside(served.wished, 1)
    assert within.wait(60)
    stronger = farm.aside(served.wished, 2)
    stronger.add_done_callback(lambda _: over.set())
    assert (weaker.result(60), stronger.result(60), served.wished(0)) == (1, 2, 2)


def test_a_worker_that_leaves_after_a_step_fails_no_other_in_this_step() -> None:
    served = opened(2)
    with futures.ThreadPoolExecutor(1) as pool, served.changed:
        other = pool.submit(push, served, 1, 0, 1.0)
        for _ in range(600):  # nothing tells of a gradient that waits
            if served.changed.wait_for(lambda: bool(served._pending), timeout=0.1):
                break
        push(served, 0, 0, 1.0)
        served.leave(0, failed="worker 0 is gone")  # before the other one has read the weights of this step
        served.changed.release()
        try:
            assert other.result(timeout=60)[0] == 1
        finally:
            served.changed.acquire()
    with pytest.raises(frames.Refused, match="worker 0 is gone"):
        push(served, 1, 1, 1.0)
