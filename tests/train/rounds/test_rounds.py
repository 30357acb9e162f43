"""Elastic membership: processes are killed, join and leave, and the others go on with exact weights."""

from __future__ import annotations

import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
import torch
from tests.train.rounds import counting as counts
from tests.train.rounds import gang
from torch import nn

from oarlock import train
from oarlock.train import agreement, membership, rounds
from oarlock.train.strategies import strategy


@pytest.fixture
def counting(tmp_path: Path) -> Iterator[gang.Gang]:
    made = gang.Gang(tmp_path, counts.count, 0.002)
    try:
        yield made
    finally:
        made.close()


@pytest.mark.parametrize("kills", [5, pytest.param(100, marks=[pytest.mark.soak, pytest.mark.timeout(3600)])])
def test_survivors_go_on_and_newcomers_join(counting: gang.Gang, kills: int) -> None:
    counts.kill_and_replace(counting, kills)


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("changes", [4, pytest.param(50, marks=pytest.mark.long)])
def test_another_membership_every_20_steps(counting: gang.Gang, changes: int) -> None:
    """Members leave and join in turn, and no step is repeated."""
    counts.change_every_20_steps(counting, changes)


def test_a_member_leaves_without_a_loss(counting: gang.Gang) -> None:
    counting.start(["a", "b", "c"])
    counting.wait(lambda: all(map(counting.ready, ["a", "b", "c"])))
    counting.round(["a", "b"], tell=["a", "b", "c"])
    counting.wait(lambda: counting.rounds("b") == [2])
    counting.round(["b"], tell=["a", "b"])
    counting.wait(lambda: counting.rounds("b") == [2, 3])
    counts.end(counting, ["b"], losses=0)


def test_two_lost_at_once_and_one_while_the_others_meet(counting: gang.Gang) -> None:
    names = ["a", "b", "c", "d"]
    counting.start(names)
    counting.wait(lambda: all(map(counting.ready, names)))
    counting.kill("b")
    counting.processes["c"].kill()
    counting.round(["a", "c", "d"], tell=["a", "d"])  # c is gone too, but the server does not know it yet
    time.sleep(0.2)
    counting.processes.pop("c").join()
    counts.change(counting, ["a", "d"])
    counts.end(counting, ["a", "d"], losses=2)


def test_a_stopped_rank_holds_the_others_up_only_until_it_is_out(counting: gang.Gang) -> None:
    names = ["a", "b", "c"]
    counting.start(names)
    counting.wait(lambda: all(map(counting.ready, names)))
    counting.signal("b", signal.SIGSTOP)
    threading.Timer(0.3, lambda: counting.kill("b")).start()
    counting.wait(lambda: "b" not in counting.processes)
    counts.change(counting, ["a", "c"])
    counts.end(counting, ["a", "c"], losses=1)


def exchange(folder: Path) -> None:
    """Train without a session."""
    train.init()
    model = train.data_parallel(nn.Linear(1, 1))
    for step in range(1_000_000):
        model(torch.ones(1, 1)).sum().backward()
        counts.tell(folder, step)


def test_a_script_without_a_session_fails_where_a_process_is_lost(tmp_path: Path) -> None:
    """It would train on with gradients that are never exchanged."""
    made = gang.Gang(tmp_path, exchange)
    try:
        made.start(["a", "b"])
        made.wait(lambda: all((tmp_path / name / "step").exists() for name in ("a", "b")))
        made.kill("b")
        left = made.processes["a"]
        made.wait(lambda: not left.is_alive())
        assert left.exitcode != 0, made.output()
        assert "PeersLost" in made.output()
    finally:
        made.close()


def test_a_death_in_the_midst_of_a_large_exchange(tmp_path: Path) -> None:
    """Its bytes are half sent and half received then."""
    made = gang.Gang(tmp_path, counts.count, 0.0, 1_000_000)
    try:
        names = ["a", "b", "c"]
        made.start(names)
        for victim in ("b", "a"):
            made.wait(lambda: all(made.ready(name) and counts.reached(made, name) for name in names))
            made.signal(victim, signal.SIGSTOP)
            names.remove(victim)
            counts.stands_still(made, names)
            made.kill(victim)
            counts.change(made, names)
        counts.end(made, names, losses=2)
    finally:
        made.close()


def test_an_exchange_that_gloo_forgets_ends_once_its_connection_is_broken() -> None:
    here, there = socket.socketpair()
    with here, there:
        known = rounds.Rounds({}, 60.0)
        known._sockets, known._whole = {(here.fileno(), str(Path(f"/proc/self/fd/{here.fileno()}").readlink()))}, 1
        slow = Forgotten(waits=3)
        known.finish(slow)
        assert slow.waits == 0, "its connections are well: it is waited for"
        here.close()
        with pytest.raises(RuntimeError, match="in time"):
            known.finish(Forgotten(waits=100))


class Forgotten:
    """An exchange that is over after so many waits. torch raises the same error at the end of each."""

    def __init__(self, waits: int) -> None:
        self.waits = waits

    def is_completed(self) -> bool:
        return self.waits == 0

    def wait(self, timeout: object = None) -> None:
        if self.waits:
            self.waits -= 1
            raise RuntimeError("not over in time")


def test_a_planned_round_waits_for_the_agreement_under_way() -> None:
    """To cut an exchange off that all ranks have begun is needless, and gloo may forget it then."""
    ended = []

    class Two:
        world_size, rank, is_chief = 2, 0, True

        def start_largest(self, numbers: Sequence[int]) -> Callable[[], list[int]]:
            def wait() -> list[int]:
                ended.append(numbers)
                return [*numbers[:2], 2, *numbers[3:]]  # the next exchange begins after two steps

            return wait

    agreeing = agreement.Agreement(Two())  # type: ignore[arg-type]  # a world without processes
    for _ in range(3):
        agreeing.settle(stop=0, save=False)
    assert len(ended) == 1
    agreeing.finish()
    assert len(ended) == 2


class Exchanged(strategy.Strategy):
    """A strategy with an exchange that has not ended."""

    def __init__(self, model: nn.Module) -> None:
        self.figures = strategy.Figures(train.init())
        self.parameters = list(model.parameters())


def test_a_step_that_is_repeated_counts_its_batch_once_in_running_statistics() -> None:
    """The forward pass of the lost step has changed the buffers already. Weights change after an exchange only."""
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    batch = torch.randn(4, 2)
    kept = membership.Membership(None, {"model": model}, [Exchanged(model)])  # type: ignore[arg-type]
    try:
        kept.mark(5)
        model(batch)
        once = {name: value.clone() for name, value in model.named_buffers()}
        assert kept.take_back(6) == (5, 0)
        model(batch)
    finally:
        kept.close()
    for name, value in model.named_buffers():
        assert torch.equal(value, once[name]), name
