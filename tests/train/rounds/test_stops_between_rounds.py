"""A gang that is asked to stop while it waits for another round: it saves what its members hold."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.train.rounds import counting as counts
from tests.train.rounds import gang
from tests.train.rounds import test_rounds_of_fixed_size as fixed

calm = fixed.calm
ENDED = 128 + signal.SIGTERM


@pytest.fixture
def waiting(tmp_path: Path) -> Iterator[gang.Gang]:
    """A gang of a fixed size after some steps, with an older checkpoint than these."""
    made = gang.Gang(tmp_path, fixed.learn, tmp_path / "checkpoints")
    made.least = len(fixed.NAMES)
    try:
        fixed.begun(made)
        yield made
    finally:
        made.close()


def lose(made: gang.Gang, victim: str) -> list[str]:
    """Kill a member, and let the others wait for its successor."""
    names = [name for name in fixed.NAMES if name != victim]
    made.kill(victim)
    made.round(names)
    made.wait(lambda: f"round {made.number}: 2 of 3 ranks wait" in made.output())
    return names


def stopped(made: gang.Gang, names: Sequence[str]) -> dict[str, Any]:
    """Ask these members to stop. Return the manifest of the newest checkpoint once they have ended as asked."""
    for name in names:
        made.signal(name, signal.SIGTERM)
    for name in names:
        made.processes[name].join()
        assert made.processes[name].exitcode == ENDED, f"{name}\n{made.output()}"
    manifests = [json.loads(path.read_text()) for path in (made.folder / "checkpoints").glob("*/manifest.json")]
    newest: dict[str, Any] = max(manifests, key=lambda manifest: int(manifest["step"]))
    return newest


def goes_on(made: gang.Gang, calm: dict[str, torch.Tensor], step: int) -> None:
    """The next attempt begins with the next step, and ends as an undisturbed run does."""
    resumed = gang.Gang(made.folder / "again", fixed.learn, made.folder / "checkpoints")
    resumed.least, resumed.attempt = len(fixed.NAMES), 2
    resumed.folder.mkdir()
    try:
        resumed.start(fixed.NAMES)
        fixed.ended(resumed, list(fixed.NAMES), calm, losses=0)
    finally:
        resumed.close()
    assert fixed.steps_of(resumed, "a")[0] == (step + 1, len(fixed.NAMES))


def reached(made: gang.Gang) -> int:
    return max(counts.reached(made, name) for name in fixed.NAMES)


@pytest.mark.parametrize("victim", ["a", "b"])
def test_those_that_wait_for_a_successor_save_their_step_together(
    waiting: gang.Gang, calm: dict[str, torch.Tensor], victim: str
) -> None:
    """Without the chief, too: another one writes."""
    names = lose(waiting, victim)
    manifest = stopped(waiting, names)
    assert manifest["step"] in (reached(waiting) - 1, reached(waiting)), waiting.output()
    assert len(manifest["shards"]) == len(names), "each has its part"
    goes_on(waiting, calm, manifest["step"])


def test_those_that_meet_in_vain_leave_it_to_the_first_of_them_to_save(
    waiting: gang.Gang, calm: dict[str, torch.Tensor]
) -> None:
    """They know of a round with the successor, which has ended meanwhile."""
    names = lose(waiting, "a")
    waiting.ports["n"] = waiting.ports["a"]
    waiting.round(["n", *names], tell=names)
    counts.stands_still(waiting, names)
    manifest = stopped(waiting, names)
    assert manifest["step"] in (reached(waiting) - 1, reached(waiting)), waiting.output()
    assert len(manifest["shards"]) == 1
    assert [event["ranks"] for name in names for event in waiting.events(name, "round")] == [1], "one of them alone"
    goes_on(waiting, calm, manifest["step"])


def test_the_chief_saves_where_no_round_comes(waiting: gang.Gang, calm: dict[str, torch.Tensor]) -> None:
    """The server has heard of the wish before the loss."""
    waiting.kill("c")
    counts.stands_still(waiting, ["a", "b"])
    manifest = stopped(waiting, ["a", "b"])
    assert manifest["step"] in (reached(waiting) - 1, reached(waiting)), waiting.output()
    assert len(manifest["shards"]) == 1
    goes_on(waiting, calm, manifest["step"])
