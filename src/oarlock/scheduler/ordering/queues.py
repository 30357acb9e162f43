"""The turns of one leaf pool, in the order of its policy."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from typing import Protocol

from oarlock.scheduler.ordering import turns
from oarlock.scheduler.policies import contract
from oarlock.scheduler.reuse import waitingorder


class Queue(Protocol):
    """The turns of one leaf, in the order of its policy: of those that wait, or have lost their place; of those that
    run as well, where the policy decides sizes.
    """

    def __iter__(self) -> Iterator[turns.Turn]: ...

    @property
    def first(self) -> turns.Arrival: ...


class Ranked:
    """A leaf whose policy ranks each gang by itself."""

    sizes = False

    def __init__(self, standing: waitingorder.WaitingOrder, returning: Iterable[contract.Candidate]) -> None:
        self._standing = standing
        self._back = [standing.entry(one) for one in returning]
        heapq.heapify(self._back)
        self._turns: dict[str, tuple[turns.Key, turns.Turn]] = {}
        self._levels: dict[str, float] = {}
        heads = sorted((*standing.entries[:1], *self._back[:1]), key=turns.by_key)
        self.first = heads[0][1].candidate.arrival if heads else (0.0, "")

    def __iter__(self) -> Iterator[turns.Turn]:
        back = self._back
        for key, turn in self._standing.entries:
            while back and back[0][0] < key:
                yield heapq.heappop(back)[1]
            yield turn
        while back:
            yield heapq.heappop(back)[1]

    def turn(self, one: contract.Candidate) -> turns.Turn:
        return self._entry(one)[1]

    def level(self, one: contract.Candidate) -> float:
        level = self._levels.get(one.gang.job)
        if level is None:
            level = self._levels[one.gang.job] = self._standing.rank(one).level
        return level

    def back(self, turn: turns.Turn) -> None:
        """Its place was taken in this plan: it has a turn after all."""
        heapq.heappush(self._back, self._entry(turn.candidate))

    def _entry(self, one: contract.Candidate) -> tuple[turns.Key, turns.Turn]:
        entry = self._turns.get(one.gang.job)
        if entry is None:
            entry = self._turns[one.gang.job] = self._standing.entry(one)
        return entry


class Listed:
    """A leaf whose policy looks at all its gangs together."""

    def __init__(self, turns: list[turns.Turn]) -> None:
        self.turns = turns
        self._place = {turn.wish.job: place for place, turn in enumerate(turns)}
        self._lost: set[str] = set()
        self._missed: list[int] = []  # places in the order that were passed before they were lost
        self.first = next((turn.candidate.arrival for turn in turns if turn.sizing or not turn.runs), (0.0, ""))
        self._at = -1
        self.sizes = bool(turns) and turns[0].sizing

    def __iter__(self) -> Iterator[turns.Turn]:
        """Who loses its place when others that rank lower have had their turns has the next."""
        for place, turn in enumerate(self.turns):
            self._at = place
            if self._missed:
                yield from self._passed()
            if turn.sizing or not turn.runs or turn.wish.job in self._lost:
                yield turn
        self._at = len(self.turns)
        yield from self._passed()

    def _passed(self) -> Iterator[turns.Turn]:
        while self._missed:
            yield self.turns[heapq.heappop(self._missed)]

    def turn(self, one: contract.Candidate) -> turns.Turn:
        return self.turns[self._place[one.gang.job]]

    def level(self, one: contract.Candidate) -> float:
        return self.turn(one).wish.level

    def back(self, turn: turns.Turn) -> None:
        """Its place was taken in this plan: it has a turn after all."""
        place = self._place[turn.wish.job]
        self._lost.add(turn.wish.job)
        if place < self._at and not turn.sizing:
            heapq.heappush(self._missed, place)


class Deferred(list[turns.Turn]):
    """Those of a leaf that are looked at again at the end, in the order in which they had their turns."""

    @property
    def first(self) -> turns.Arrival:
        return self[0].candidate.arrival if self else (0.0, "")
