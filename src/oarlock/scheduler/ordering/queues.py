"""The turns of one leaf pool, in the order of its policy."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from typing import Protocol

from oarlock.scheduler.ordering import turns
from oarlock.scheduler.policies import contract
from oarlock.scheduler.reuse import waitingorder


class Queue(Protocol):
    """The turns of one leaf pool, in the order of its policy.

    It has the gangs that wait or have lost their place. Where the policy decides sizes it has the running gangs too.
    """

    def __iter__(self) -> Iterator[turns.Turn]: ...

    @property
    def first(self) -> turns.Arrival: ...


class Ranked:
    """The queue of a leaf with a policy that ranks each gang by itself."""

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
        """Give a turn to a gang that lost its place in this plan."""
        heapq.heappush(self._back, self._entry(turn.candidate))

    def _entry(self, one: contract.Candidate) -> tuple[turns.Key, turns.Turn]:
        entry = self._turns.get(one.gang.job)
        if entry is None:
            entry = self._turns[one.gang.job] = self._standing.entry(one)
        return entry


class Listed:
    """The queue of a leaf with a policy that looks at all its gangs together."""

    def __init__(self, turns: list[turns.Turn]) -> None:
        self.turns = turns
        self._place = {turn.wish.job: place for place, turn in enumerate(turns)}
        self._lost: set[str] = set()
        self._missed: list[int] = []  # positions of gangs that lost their place after the queue had passed them
        self.first = next((turn.candidate.arrival for turn in turns if turn.sizing or not turn.runs), (0.0, ""))
        self._at = -1
        self.sizes = bool(turns) and turns[0].sizing

    def __iter__(self) -> Iterator[turns.Turn]:
        """Yield the turns. A gang that loses its place after the queue has passed it comes next."""
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
        """Give a turn to a gang that lost its place in this plan."""
        place = self._place[turn.wish.job]
        self._lost.add(turn.wish.job)
        if place < self._at and not turn.sizing:
            heapq.heappush(self._missed, place)


class Deferred(list[turns.Turn]):
    """The turns of a leaf that are looked at again at the end, in the order of their first look."""

    @property
    def first(self) -> turns.Arrival:
        return self[0].candidate.arrival if self else (0.0, "")
