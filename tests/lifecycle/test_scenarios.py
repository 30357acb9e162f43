"""The life of a job, told as scenarios: `scenarios/*.txt` in the language of `script.py`."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest
from tests.lifecycle import script

from oarlock.lifecycle import orders, stepping
from oarlock.spec import events
from oarlock.spec.protocol import assignments

FILES = sorted((Path(__file__).parent / "scenarios").glob("*.txt"))


def replay(text: str, play: script.Play | None = None) -> str:
    """The file with what is seen now in place of what was expected."""
    play, out = play or script.Play(), []
    for block in text.strip("\n").split("\n\n"):
        commands = block.split("\n----", 1)[0].split("\n")
        seen: list[str] = []
        for line in commands:
            if line and not line.startswith("#"):
                try:
                    seen += play.run(line)
                except Exception as error:
                    raise AssertionError(f"in the block {commands}: {line}") from error
        out.append("\n".join([*commands, *(["----", *seen] if seen else [])]))
    return "\n\n".join(out) + "\n"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_scenario(path: Path) -> None:
    text = path.read_text()
    seen = replay(text)
    if os.environ.get("REWRITE_SCENARIOS"):
        path.write_text(seen)
    assert seen.split("\n") == text.split("\n") or os.environ.get("REWRITE_SCENARIOS")


class Stepped(script.Play):
    """A play with a wall clock that is set before each command; its job is told of it."""

    def __init__(self, by_s: float) -> None:
        super().__init__()
        self.now = 1e9
        self.by_s = by_s

    def run(self, line: str) -> list[str]:
        self.now += self.by_s
        self.job = stepping.step(self.job, events.ClockStepped(by_s=self.by_s), self.now)
        for key, one in self.shown.items():
            bound_at = one.bound_at + self.by_s if one.bound_at else one.bound_at
            exit_ = msgspec.structs.replace(one.exit, at=one.exit.at + self.by_s) if one.exit is not None else None
            self.shown[key] = msgspec.structs.replace(one, exit=exit_, bound_at=bound_at)
        return super().run(line)


@pytest.mark.parametrize("by_s", [1e6, -1e6], ids=["forward", "back"])
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_step_of_the_clock_changes_nothing_in_any_scenario(path: Path, by_s: float) -> None:
    """No deadline comes sooner or later, whenever the wall clock is set."""
    assert replay(path.read_text(), Stepped(by_s)).split("\n") == path.read_text().split("\n")


def test_there_are_scenarios() -> None:
    assert len(FILES) >= 8


class Ordered(script.Play):
    """A play that notes the orders of every task after each command, by their version."""

    def __init__(self) -> None:
        super().__init__()
        self.versions: dict[str, set[assignments.Orders]] = {}

    def run(self, line: str) -> list[str]:
        said = super().run(line)
        live = self.job.live if hasattr(self, "job") else None
        for task in live.tasks if live is not None else ():
            told = orders.orders(self.job, task.key(self.job.id, live.number), self.now)
            self.versions.setdefault(told.version, set()).add(told)
        return said


def test_other_orders_have_another_version_in_every_scenario() -> None:
    """An agent asks with the version that it has seen, and is answered only when there is another."""
    play = Ordered()
    for path in FILES:
        replay(path.read_text(), play)
    assert len(play.versions) > 20
    assert [found for found in play.versions.values() if len(found) > 1] == []
