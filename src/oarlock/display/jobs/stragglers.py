"""The rank that the others of a job wait for: in a synchronous step every rank lasts as long as the slowest one.

The training library names the straggler itself, where it can (`slowest_rank`). Else the time of a step without the wait
for the exchange is a rank's own, and the straggler is the rank with the most of it.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import msgspec

from oarlock.display import amounts
from oarlock.spec import attempts, roles

LEAST_RANKS = 2
MUCH = 1.25
"""A straggler needs so many times as long for its own part of a step as the median rank."""


class Straggler(msgspec.Struct, frozen=True):
    """`own_s` is the time of its own work in a step, `other_s` the one of another rank, which `other` names."""

    task: str
    own_s: float
    other_s: float
    other: str = "the median rank"

    @property
    def sentence(self) -> str:
        own, usual = (f"{amounts.number(one)} s" for one in (self.own_s, self.other_s))
        return f"{self.task} is the slowest rank: its own part of a step takes {own}, that of {self.other} {usual}."


def share(task: attempts.Task) -> float | None:
    """Return the part of a step that the rank spends waiting for the exchange of gradients, from 0 to 1."""
    told = task.progress
    if told is None or not told.step_s or told.sync_s is None:
        return None
    return min(1.0, max(0.0, told.sync_s / told.step_s))


def own_s(task: attempts.Task) -> float | None:
    told = task.progress
    if told is None or not told.step_s:
        return None
    return max(0.0, told.step_s - (told.sync_s or 0.0))


def find(tasks: Sequence[attempts.Task]) -> Straggler | None:
    """Return the straggler of the role with the most ranks that tell the time of a step, None where no rank is one."""
    if (named := _named(tasks)) is not None:
        return named
    by_role: dict[str, list[tuple[float, str]]] = {}
    for task in tasks:
        if (own := own_s(task)) is not None:
            by_role.setdefault(str(task.role), []).append((own, task.name))
    told = max(by_role.values(), key=len, default=[])
    if len(told) < LEAST_RANKS:
        return None
    slowest, name = max(told)
    usual = statistics.median_low(own for own, _ in told)
    return Straggler(name, slowest, usual) if slowest > MUCH * usual else None


def _named(tasks: Sequence[attempts.Task]) -> Straggler | None:
    """Return the straggler that the chief has named. Its ranks are the processes of the workers, in their order."""
    for told in (task.progress for task in tasks if task.progress is not None):
        if told.slowest_rank is None or told.slowest_s is None or told.fastest_s is None:
            continue
        workers = sorted((task for task in tasks if task.role is roles.RoleName.WORKER), key=lambda one: one.index)
        place = told.slowest_rank * len(workers) // max(1, told.ranks or len(workers))
        if place < len(workers):
            return Straggler(workers[place].name, told.slowest_s, told.fastest_s, "the fastest rank")
    return None


def share_text(task: attempts.Task) -> str:
    """Return `12%`, empty where the rank does not tell it."""
    part = share(task)
    return f"{part:.0%}" if part is not None else ""
