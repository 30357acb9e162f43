"""The order in which the workers of a run take the tests.

pytest-xdist gives each worker an equal share of the tests, one share behind the other, and a worker that has run all of
its share takes over the last tests of another's. The first tests of a share are therefore run by one worker.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")

COSTLY = ("train", "e2e", "store", "cli")
"""Rooms whose tests share what is made once in each worker (forks of torch, a server, PostgreSQL), or take long."""

EARLY = ("documentation", "promises", "simulator")
"""Rooms with single tests of many seconds. At the end of a run, such a test would leave the other workers idle."""


def dealt(
    tests: Sequence[T],
    room: Callable[[T], str],
    workers: int,
    costly: Sequence[str] = COSTLY,
    early: Sequence[str] = EARLY,
) -> list[T]:
    """Return the tests so that each costly room begins the share of a worker, with those of cheap rooms behind it.

    The tests of the early rooms come before all others, in equal parts. The tests of a room keep their order. `room`
    gives the room of a test.
    """
    begin = costly[:workers]
    first = [test for test in tests if room(test) in early]
    rest = [test for test in tests if room(test) not in (*begin, *early)]
    order: list[T] = []
    for number in range(workers):
        share = (len(tests) - len(order)) // (workers - number)
        part = first[number::workers]
        part += [test for test in tests if number < len(begin) and room(test) == begin[number]]
        filled = max(0, share - len(part))
        order += part + rest[:filled]
        del rest[:filled]
    return order + rest
