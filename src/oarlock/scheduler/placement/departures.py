"""Were so many gangs gone: how many must it be, at least, for something to be possible?

The room is changed step by step, what was given back last is taken again first, and in the end it is as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from oarlock.scheduler import amounts
from oarlock.scheduler.placement import freespace
from oarlock.spec import holdings

T = TypeVar("T")
Claims = tuple[holdings.Holding, ...]


class Departures(Generic[T]):
    """`order` says who would go, one after the other; `claims` and `amount` what one of them gives back."""

    def __init__(
        self,
        space: freespace.FreeSpace,
        order: Sequence[T],
        claims: Callable[[T], Claims],
        amount: Callable[[T], amounts.Amount],
    ) -> None:
        self._space = space
        self._order = order
        self._claims = claims
        self._amount = amount
        self._marks = [space.mark()]

    def go(self, count: int) -> None:
        """The first `count` of them are gone, the others there."""
        if count < len(self._marks) - 1:
            self._space.rollback(self._marks[count])
            del self._marks[count + 1 :]
        for one in self._order[len(self._marks) - 1 : count]:
            self._space.give_back(self._claims(one))
            self._marks.append(self._space.mark())

    def first(self, test: Callable[[int], bool], short: amounts.Amount) -> int | None:
        """The least number with which `test` passes, doubled until it does and halved into; None where it does not with
        all. `short` is what is missing in sum: with fewer than make up for that it is not asked.
        """
        low = self._enough(short)
        if low is None:
            return None
        high = low
        while not self._passes(high, test):
            if high == len(self._order):
                return None
            low, high = high + 1, min(max(2 * high, 1), len(self._order))
        while low < high:
            middle = (low + high) // 2
            if self._passes(middle, test):
                high = middle
            else:
                low = middle + 1
        self.go(high)
        return high

    def end(self) -> None:
        """All of them are there, and what was done since is undone."""
        self._space.rollback(self._marks[0])
        del self._marks[1:]

    def _passes(self, count: int, test: Callable[[int], bool]) -> bool:
        self.go(count)
        return test(count)

    def _enough(self, short: amounts.Amount) -> int | None:
        """With how many the sums would do."""
        left = list(short)
        for count in range(len(self._order) + 1):
            if all(one <= 0 for one in left):
                return count
            if count < len(self._order):
                amount = self._amount(self._order[count])
                for place in range(3):
                    left[place] -= amount[place]
        return None
