"""The waiting gangs of each leaf pool in the order of its policy, carried from one snapshot to the next."""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from oarlock.scheduler.ordering import turns
from oarlock.scheduler.policies import contract
from oarlock.scheduler.reuse import differences, gangfacts
from oarlock.spec import plans


class LeafRanking(NamedTuple):
    """The ranking of a leaf's policy, and whether places are kept for its gangs."""

    rank: contract.Ranking
    reserves: bool


class WaitingOrder:
    """The waiting gangs of one leaf, kept in the order of its policy from one snapshot to the next."""

    def __init__(self, rank: contract.Ranking, facts: gangfacts.Facts, *, reserves: bool) -> None:
        self.rank = rank
        self._reserves = reserves
        self.entries: list[tuple[turns.Key, turns.Turn]] = []
        self._facts = facts
        self._keys: dict[int, turns.Key] = {}

    def entry(self, one: contract.Candidate) -> tuple[turns.Key, turns.Turn]:
        standing = self.rank(one)
        profile = self._facts.of(one.gang)
        wish = contract.wish(one, standing)
        return standing.key, turns.Turn.new(wish, one, profile, sizing=False, reserves=self._reserves)

    def remove(self, gang: plans.Gang) -> None:
        key = self._keys.pop(id(gang))
        del self.entries[bisect.bisect_left(self.entries, (key,))]

    def add(self, gang: plans.Gang) -> None:
        entry = self.entry(contract.waiting(gang))
        self._keys[id(gang)] = entry[0]
        bisect.insort(self.entries, entry, key=turns.by_key)


class WaitingOrders:
    """The orders of all leaves. They are made anew when the rankings have changed."""

    def __init__(self, facts: gangfacts.Facts) -> None:
        self._facts = facts
        self._by_leaf: dict[str, WaitingOrder] = {}
        self._ranked_by: object = None

    def follow(
        self,
        snapshot: plans.Snapshot,
        changed: differences.Differences,
        rankings: Mapping[str, LeafRanking],
        by: object,
    ) -> None:
        """Take in the changes since the last snapshot. `by` describes `rankings` in values that can be compared."""
        if by == self._ranked_by:
            for gang in changed.waiting_went:
                if (standing := self._by_leaf.get(_leaf(gang, rankings))) is not None:
                    standing.remove(gang)
            came: Iterable[plans.Gang] = changed.waiting_came
        else:
            self._by_leaf, self._ranked_by, came = {}, by, snapshot.waiting
        for gang in came:
            leaf = _leaf(gang, rankings)
            if leaf in rankings:
                if leaf not in self._by_leaf:
                    self._by_leaf[leaf] = self.new(rankings[leaf])
                self._by_leaf[leaf].add(gang)

    def of(self, leaf: str, ranking: LeafRanking) -> WaitingOrder:
        standing = self._by_leaf.get(leaf)
        return self.new(ranking) if standing is None else standing

    def new(self, ranking: LeafRanking) -> WaitingOrder:
        return WaitingOrder(ranking.rank, self._facts, reserves=ranking.reserves)


def _leaf(gang: plans.Gang, rankings: Mapping[str, LeafRanking]) -> str:
    return "" if "" in rankings else gang.pool
