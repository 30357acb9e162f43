"""The order in which the workers of a run take the tests.

pytest-xdist gives each worker an equal share of the tests, one share behind the other, and a worker that has run all of
its share takes over the last tests of another's. The first tests of a share are therefore run by one worker.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")

COSTLY = ("train", "e2e", "cli", "agent", "store", "backends")
"""Rooms whose tests mostly wait for processes, or share what is made once in each worker (forks of torch, a server,
PostgreSQL). One worker begins with none of them: its tests compute, so that no core is idle while all others wait.
"""

EARLY = ("documentation", "promises", "simulator")
"""Rooms with single tests of many seconds. At the end of a run, such a test would leave the other workers idle."""


def dealt(
    tests: Sequence[T],
    room: Callable[[T], str],
    workers: int,
    costly: Sequence[str] = COSTLY,
    early: Sequence[str] = EARLY,
) -> list[T]:
    """Return the tests so that all workers but one begin with costly rooms, with those of cheap rooms behind them.

    The tests of the early rooms come before all others, in equal parts. The tests of a room keep their order. `room`
    gives the room of a test.
    """
    beginners = workers - 1
    first = [test for test in tests if room(test) in early]
    rest = [test for test in tests if room(test) not in (*early, *(costly if beginners else ()))]
    order: list[T] = []
    for number in range(workers):
        share = (len(tests) - len(order)) // (workers - number)
        part = first[number::workers]
        for begun in costly[number::beginners] if number < beginners else ():
            part += [test for test in tests if room(test) == begun]
        filled = max(0, share - len(part))
        order += part + rest[:filled]
        del rest[:filled]
    return order + rest
