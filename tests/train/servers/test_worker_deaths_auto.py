"""Workers that are killed after strategy `auto` has chosen parameter servers: they are replaced alone."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.train import crew, scripts
from tests.train.servers import test_worker_deaths as deaths
from torch import nn

from oarlock import train
from oarlock.train.checkpointing import contents
from oarlock.train.strategies import automatic, choices

FIRST = automatic.WARM_UP + automatic.MEASURED + 4
"""A step after the choice."""
STATISTICS = ("1.running_mean", "1.running_var")


def net(hidden: int) -> nn.Sequential:
    """A model with buffers, which all ranks get from the first one, whatever was chosen."""
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(6, hidden), scripts.Noting(hidden), nn.Tanh(), nn.Linear(hidden, 3)).double()


def learn(folder: Path, *args: Any) -> None:
    automatic.may_win = lambda *_: True
    automatic.predict = lambda ranks: {"none": 2.0, "ps": 1.0}  # type: ignore[assignment]
    made: list[nn.Sequential] = []
    deaths.net = lambda hidden: made.append(net(hidden)) or made[0]  # type: ignore[func-returns-value]
    deaths.learn(folder, *args)
    noting = made[0][1]
    assert isinstance(noting, scripts.Noting)
    torch.save(noting.means, folder / f"means-{train.rank()}.pt")


def variables() -> dict[str, str]:
    return {choices.VARIABLE: '{"kind": "auto"}', "MASTER_PORT": str(crew.free_port())}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("rank", [0, 1])
def test_a_worker_is_killed_at_each_place_of_a_step_after_the_choice(tmp_path: Path, rank: int) -> None:
    """The running statistics are those of the first one, and its last batch is lost with it: its successor has those of
    another one.
    """
    places = [(FIRST + 4 * number, place) for number, place in enumerate(deaths.PLACES)]
    steps = FIRST + 2 + 4 * len(places)
    options: dict[str, Any] = {"target": learn, "env": variables, "unlike": STATISTICS if rank == 0 else ()}
    deaths.check(tmp_path, {rank: places}, workers=2, steps=steps, save=False, **options)
    assert "parameter servers from now on" in crew.output(tmp_path / "killed")


@pytest.mark.parametrize("place", ["before", "between"])
def test_the_successor_of_the_chief_lacks_only_what_its_last_batch_has_added_to_the_statistics(
    tmp_path: Path, place: str
) -> None:
    """It has what the last batch of another one has added. From then on all have its statistics, as before."""
    options: dict[str, Any] = {"target": learn, "env": variables, "unlike": STATISTICS}
    deaths.check(tmp_path, {0: [(FIRST, place)]}, workers=2, steps=FIRST + 4, save=False, **options)
    killed, calm = (
        [torch.load(tmp_path / name / f"means-{rank}.pt") for rank in (0, 1)] for name in ("killed", "calm")
    )
    assert len(killed[0]) == 5, "the successor begins with the step of the dead one"
    added = calm[1][FIRST - 2] - calm[0][FIRST - 2]
    assert added.abs().max() > 1e-3
    for number in range(5):
        expected = 0.9 ** (number + 1) * added
        for rank in (0, 1):
            found = killed[rank][number - 5] - calm[rank][number - 5]
            late = rank == 1 and number == 0 and place == "between"  # it has made this forward pass before the death
            torch.testing.assert_close(found, 0 * expected if late else expected, rtol=1e-9, atol=1e-12)


def test_the_successor_of_the_chief_saves_the_choice(tmp_path: Path) -> None:
    killed: dict[int, list[tuple[int, str]]] = {0: [(FIRST, "before")]}
    options: dict[str, Any] = {"target": learn, "env": variables, "unlike": STATISTICS}
    deaths.check(tmp_path, killed, workers=2, steps=FIRST + 6, save=True, **options)
    newest = max((tmp_path / "killed" / "checkpoints").glob("*/manifest.json"), key=lambda path: path.stat().st_mtime)
    assert json.loads(newest.read_text())["step"] == FIRST + 6
    kept = torch.load(newest.parent / "rank-0.pt", weights_only=True)["shared"]
    assert kept[contents.CHOICES] == {"strategy of model": {"exchange": "ps"}}


def test_a_worker_that_dies_before_the_choice_ends_the_attempt(tmp_path: Path) -> None:
    """The others are in its process group then, which ends with it."""
    options: dict[str, Any] = {"target": learn, "env": variables()}
    with deaths.gang(tmp_path, 2, {1: [(3, "before")]}, FIRST, False, **options) as gang:
        first, second = gang.processes.values()
        second.join(120)
        assert second.exitcode == -signal.SIGKILL
        first.join(120)
        assert first.exitcode not in (None, 0), crew.output(tmp_path)
