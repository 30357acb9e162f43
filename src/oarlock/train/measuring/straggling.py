"""The rank that all others wait for.

Each exchange at a step boundary gives the longest step of any rank, without its waiting for others, and the shortest
one (agreement.py). A rank is named a straggler when it was the slowest by far in many exchanges in a row: a single slow
step is no reason.
"""

from __future__ import annotations

from dataclasses import dataclass

RATIO = 1.3
LEAST_S = 0.002
IN_A_ROW = 10


@dataclass(frozen=True)
class Slowest:
    """The rank with the longest step of its own, without waiting for others, and the shortest one of any rank."""

    rank: int
    own_s: float
    least_s: float

    @property
    def words(self) -> str:
        return (
            f"rank {self.rank} is slow: a step takes it {self.own_s:.3g} s without waiting for others, and the fastest "
            f"rank {self.least_s:.3g} s"
        )


class Straggler:
    """The straggler of a gang, if there is one: `present`."""

    def __init__(self) -> None:
        self.present: Slowest | None = None
        self._rank: int | None = None
        self._times = 0
        self._named: set[int] = set()

    def note(self, slowest: Slowest) -> bool:
        """Take the result of an exchange. Return True when a rank becomes the straggler for the first time."""
        far = slowest.own_s > RATIO * slowest.least_s and slowest.own_s - slowest.least_s > LEAST_S
        if not far or slowest.rank != self._rank:
            self._rank, self._times, self.present = slowest.rank if far else None, 0, None
        if not far:
            return False
        self._times += 1
        if self._times < IN_A_ROW:
            return False
        self.present = slowest
        new = slowest.rank not in self._named
        self._named.add(slowest.rank)
        return new
