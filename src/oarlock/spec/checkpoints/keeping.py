"""The decision which old checkpoints may be deleted, so that a good one always stays.

The decision asks as few questions as it can: reading a large checkpoint takes minutes. It is a generator, so that a
loop that awaits and a loop that blocks can both answer it. `settle` is the blocking loop.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Generic, TypeVar

import msgspec

T = TypeVar("T")

ENOUGH = 2
"""Good checkpoints among those that stay, with which the memory of an earlier reading is believed."""


class Question(msgspec.Struct, Generic[T], frozen=True):
    """Whether every digest of a checkpoint holds. `fresh`: an earlier answer does not count, read it again."""

    checkpoint: T
    fresh: bool


def spare(
    best_first: Sequence[T], keep: int, known: Callable[[T], bool] = lambda _: False
) -> Generator[Question[T], bool, list[T]]:
    """Return the checkpoints that may be deleted, worst first, after questions about those that stay.

    The best `keep` stay. Where none of them holds, the best older one that holds stays too, and everything above it;
    where none holds at all, everything stays. Where only one is known to hold, it is read again before the others go.
    `known` says which ones were read before and have not changed since: they are asked about first, and an answer about
    any other one comes from reading it now.
    """
    kept, rest = best_first[: max(1, keep)], best_first[max(1, keep) :]
    if not rest:
        return []
    good: list[tuple[T, bool]] = []
    for one, remembered in sorted(((one, known(one)) for one in kept), key=lambda pair: not pair[1]):
        if (yield Question(one, fresh=False)):
            good.append((one, remembered))
        if len(good) == ENOUGH:
            return list(reversed(rest))
    for one, remembered in good:
        if not remembered or (yield Question(one, fresh=True)):
            return list(reversed(rest))
    for place, one in enumerate(rest):
        if (yield Question(one, fresh=True)):
            return list(reversed(rest[place + 1 :]))
    return []


def settle(deciding: Generator[Question[T], bool, list[T]], holds: Callable[[Question[T]], bool]) -> list[T]:
    """Answer each question with `holds`; return the decision."""
    try:
        question = next(deciding)
        while True:
            question = deciding.send(holds(question))
    except StopIteration as decided:
        decision: list[T] = decided.value
        return decision
