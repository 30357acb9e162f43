"""The ranks of a job as a grid: a row for each role, a cell for each index, coloured by phase. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from oarlock.display import durations, marks
from oarlock.display.jobs import stragglers
from oarlock.spec import attempts, phases

LIKE = {
    phases.TaskPhase.PENDING: phases.Phase.QUEUED,
    phases.TaskPhase.REGISTERED: phases.Phase.DOWNLOADING,
    phases.TaskPhase.SUCCEEDED: phases.Phase.COMPLETED,
    phases.TaskPhase.STOPPED: phases.Phase.HALTED,
}
"""The phase of a job that lends a task its mark. The other phases have the same name."""


class Cell(msgspec.Struct, frozen=True):
    """A rank. `words` tell all that is known of it."""

    task: str
    index: int
    colour: str
    glyph: str
    words: str
    slow: bool


class Row(msgspec.Struct, frozen=True):
    role: str
    cells: tuple[Cell, ...]


def rows(tasks: Sequence[attempts.Task], straggler: str) -> list[Row]:
    """Return the roles in the order of the tasks, each with its ranks in the order of their index."""
    by_role: dict[str, list[attempts.Task]] = {}
    for task in tasks:
        by_role.setdefault(str(task.role), []).append(task)
    return [
        Row(role, tuple(_cell(task, straggler) for task in sorted(several, key=lambda one: one.index)))
        for role, several in by_role.items()
    ]


def _cell(task: attempts.Task, straggler: str) -> Cell:
    mark = marks.PHASES[LIKE.get(task.phase, str(task.phase))]
    slow = task.name == straggler
    return Cell(
        task.name,
        task.index,
        mark.colour,
        mark.glyph,
        ", ".join(_words(task, slow)),
        slow,
    )


def _words(task: attempts.Task, slow: bool) -> Iterator[str]:
    yield f"{task.name}: {task.phase}"
    if task.node:
        yield f"on {task.node}" + (f", devices {' '.join(map(str, task.devices))}" if task.devices else "")
    if task.progress is not None:
        yield f"step {task.progress.step}"
        if task.progress.step_s:
            yield f"{durations.text(task.progress.step_s)} a step"
    if part := stragglers.share_text(task):
        yield f"{part} of it synchronising"
    if slow:
        yield "the slowest rank"
    if task.exit is not None:
        yield f"exit {task.exit.code} {task.exit.cause}"
