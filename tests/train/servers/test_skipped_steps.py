"""Workers in lockstep of which one alone passes over optimizer.step(): an error on all, and no endless waiting."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.train import crew
from tests.train.servers import farm
from torch import nn

from oarlock import train
from oarlock.train import errors
from oarlock.train.servers.process import skips
from oarlock.train.servers.wire import frames
from oarlock.train.servers.workers import remotes
from oarlock.train.strategies import automatic, choices, dataparallel

STEPS = 12
Decides = Callable[[int, int], bool]
"""Whether this rank calls optimizer.step() in this step."""


def learn(steps: int, strategy: Any, decides: Decides) -> list[float]:
    world = train.init()
    torch.manual_seed(3)
    model = nn.Linear(6, 3).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train.data_parallel(model, optimizer, strategy=strategy)
    with train.Session(model=model, optimizer=optimizer, total_steps=steps) as session:
        for step in session.steps():
            generator = torch.Generator().manual_seed(10 * step + world.rank)
            model(torch.randn(4, 6, generator=generator).double()).square().sum().backward()
            if decides(step, world.rank):
                optimizer.step()
                optimizer.zero_grad()
    if isinstance(used := dataparallel.strategy_of(model), automatic.Automatic):
        assert used.choice()["exchange"] == "ps"
    return torch.cat([each.detach().view(-1) for each in model.parameters()]).tolist()


def but(skipped: int, rank: int) -> Decides:
    return lambda step, here: (step, here) != (skipped, rank)


def one_passes_over(strategy: str, skipped: int, rank: int) -> None:
    steps = STEPS
    if strategy == "auto":
        os.environ[choices.VARIABLE] = '{"kind": "auto"}'
        automatic.choose = lambda steps: "ps"  # type: ignore[assignment]
        automatic.may_win = lambda *args: True  # type: ignore[assignment]
        steps, skipped = steps + 20, skipped + 20
    with pytest.raises(errors.ServerError, match=f"worker {rank} has passed over") as raised:
        learn(steps, strategy, but(skipped, rank))
    assert "world.gather" in str(raised.value), "it names the next step"


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("skipped", [1, 5], ids=["first", "later"])
@pytest.mark.parametrize("strategy", ["ps", "auto"])
def test_a_worker_that_passes_over_a_step_alone_is_named(
    strategy: str, skipped: int, rank: int, tmp_path: Path
) -> None:
    with farm.running(2) as servers:
        args = (one_passes_over, strategy, skipped, rank)
        codes = crew.run(*args, folder=tmp_path, env=farm.variables(servers), timeout_s=120)
    assert codes == [0, 0], crew.output(tmp_path)


def one_passes_over_the_last() -> None:
    if train.init().rank == 1:
        learn(STEPS, "ps", but(STEPS, 1))
    else:
        with pytest.raises(errors.ServerError, match="worker 1 has passed over"):
            learn(STEPS, "ps", but(STEPS, 1))


def test_the_last_step_is_no_exception(tmp_path: Path) -> None:
    """The worker that passes over it may have ended when the other one sends its gradient."""
    with farm.running() as servers:
        codes = crew.run(one_passes_over_the_last, folder=tmp_path, env=farm.variables(servers), timeout_s=120)
    assert codes[0] == 0, crew.output(tmp_path)
    assert "worker 1 has passed over" in crew.output(tmp_path) or codes[1] == 0, crew.output(tmp_path)


def accumulating() -> None:
    """All step in every third step: the gradients of three, and no error."""

    def thirds(step: int, rank: int) -> bool:
        return step % 3 == 0

    served = learn(STEPS, "ps", thirds)
    model = nn.Linear(6, 3).double()
    torch.manual_seed(3)
    model = nn.Linear(6, 3).double()
    for step in range(1, STEPS + 1):
        for rank in range(2):
            generator = torch.Generator().manual_seed(10 * step + rank)
            (model(torch.randn(4, 6, generator=generator).double()).square().sum() / 2).backward()
        if thirds(step, 0):
            for parameter in model.parameters():
                parameter.data -= 0.1 * parameter.grad
                parameter.grad = None
    expected = torch.cat([each.detach().view(-1) for each in model.parameters()])
    torch.testing.assert_close(torch.tensor(served).double(), expected)


def that_waits() -> None:
    """The answer to a step without an update is waited for, and counts as waiting."""
    heed = remotes.Remote.heed
    strategy = train.ParameterServers()
    measured = []

    def heeding(server: remotes.Remote) -> None:
        measured.append(strategy.figures.waiting._began is not None)
        heed(server)

    remotes.Remote.heed = heeding  # type: ignore[method-assign]
    learn(STEPS, strategy, lambda step, rank: step % 3 == 0)
    assert measured.count(True) == 2 * 2 * STEPS / 3, "two servers, and two of three steps"


def with_a_scaler() -> None:
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train.data_parallel(model, optimizer, strategy="ps")
    with pytest.raises(errors.StateError, match="scaler is a GradScaler, which ParameterServers does not know"):
        train.Session(model=model, optimizer=optimizer, scaler=torch.amp.GradScaler("cpu"))
    train.Session(model=model, optimizer=optimizer, scaler=torch.amp.GradScaler("cpu", enabled=False))


@pytest.mark.parametrize("scenario", [accumulating, that_waits, with_a_scaler])
def test_two_workers(scenario: Callable[[], None], tmp_path: Path) -> None:
    with farm.running(2) as servers:
        codes = crew.run(scenario, folder=tmp_path, env=farm.variables(servers))
    assert codes == [0, 0], crew.output(tmp_path)


@pytest.mark.parametrize(
    ("told", "skipper"),
    [
        ([(0, 5, 0, True), (1, 5, 0, True), (2, 5, 0, True)], None),
        ([(0, 5, 2, True), (1, 5, 1, False), (1, 5, 2, False), (1, 5, 2, True)], None),
        ([(0, 5, 1, False), (1, 5, 1, False), (0, 5, 2, False), (1, 5, 1, True)], 0),
        ([(0, 5, 1, False), (1, 5, 0, True)], 0),
        ([(0, 5, 0, True), (1, 5, 1, False)], 1),
        ([(0, 5, 0, True), (1, 5, 1, True)], 1),
        ([(0, 5, 1, True), (1, 5, 0, True)], 0),
        ([(0, 5, 0, True), (1, 6, 3, False)], None),
    ],
)
def test_the_worker_that_passed_over_a_step_is_found(
    told: list[tuple[int, int, int, bool]], skipper: int | None
) -> None:
    found = skips.Skips()
    for rank, version, skipped, steps in told[:-1]:
        assert not found.compare(rank, version, skipped, steps=steps)
    rank, version, skipped, steps = told[-1]
    why = found.compare(rank, version, skipped, steps=steps)
    assert why.startswith(f"worker {skipper} has passed over") if skipper is not None else not why


def test_a_word_that_is_no_number_of_steps_is_refused() -> None:
    for wrong in (-1, 0.5, "1", True):
        with pytest.raises(frames.Refused, match="is not a number of steps"):
            skips.Skips().compare(0, 0, wrong, steps=True)
