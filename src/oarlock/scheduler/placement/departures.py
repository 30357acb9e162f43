"""The search for the least number of gangs whose end makes something possible."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from oarlock.scheduler import amounts
from oarlock.scheduler.placement import freespace
from oarlock.spec import holdings

T = TypeVar("T")


class Departures(Generic[T]):
    """Gangs that leave a free space one after the other, in the order of `order`.

    `claims` and `amount` say what one of them gives back. Use it within a trial of the free space: it puts nothing back
    at the end.
    """

    def __init__(
        self,
        space: freespace.FreeSpace,
        order: Sequence[T],
        claims: Callable[[T], holdings.Claims],
        amount: Callable[[T], amounts.Amount],
    ) -> None:
        self._space = space
        self._order = order
        self._claims = claims
        self._amount = amount
        self._gone = 0

    def first(self, test: Callable[[int], bool], short: amounts.Amount) -> int | None:
        """Return the least number of departures with which `test` passes, and leave the free space in that state.

        Return None where `test` does not pass with all of them. `short` is the amount that is missing in sum: `test` is
        not called with fewer departures than make up for it. The number is doubled until `test` passes, then halved.
        """
        low = self._enough(short)
        if low is None:
            return None
        high = low
        while not self._passes(high, test):
            if high == len(self._order):
                return None
            low, high = high + 1, min(max(2 * high, 1), len(self._order))
        high = low + bisect.bisect_left(range(low, high), True, key=lambda count: self._passes(count, test))
        self._go(high)
        return high

    def _go(self, count: int) -> None:
        """Let the first `count` be gone, and the others be there."""
        order, claims = self._order, self._claims
        self._space.give_back(claim for one in order[self._gone : count] for claim in claims(one))
        self._space.take(claim for one in order[count : self._gone] for claim in claims(one))
        self._gone = count

    def _passes(self, count: int, test: Callable[[int], bool]) -> bool:
        self._go(count)
        return test(count)

    def _enough(self, short: amounts.Amount) -> int | None:
        """Return the number of departures with which the sums suffice; None where all of them do not."""
        left = list(short)
        for count in range(len(self._order) + 1):
            if all(one <= 0 for one in left):
                return count
            if count < len(self._order):
                amount = self._amount(self._order[count])
                for place in range(3):
                    left[place] -= amount[place]
        return None
