"""How many tasks of one shape would go where, kept up to date by what changed.

An index is asked far more often than nodes change: by every gang that waits, in every round. So it keeps the sums, and
follows the room's log of nodes that went from one state to another when it is asked next.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from operator import attrgetter

import msgspec

from oarlock.scheduler.placement import shapes

_KEY = attrgetter("key")


class Change(msgspec.Struct, frozen=True, gc=False):
    """Nodes by their names that went from one state to another; None where they are not ready."""

    old: shapes.State | None
    new: shapes.State | None
    names: tuple[str, ...]


class Table:
    """The slots in each domain of one level of the topology. `domains` gives each node's by its name."""

    def __init__(self, domains: Mapping[str, str]) -> None:
        self.totals: dict[str, int] = {}
        self._domains = domains
        self._order: list[tuple[int, str]] = []
        self._changed: dict[str, int] = {}  # what a domain had when it was put in order

    def add(self, names: Iterable[str], slots: int) -> None:
        """Each of these nodes has so many more (or less)."""
        domains, totals, changed = self._domains, self.totals, self._changed
        for name in names:
            domain = domains.get(name)
            if domain is not None:
                before = totals.get(domain, 0)
                totals[domain] = before + slots
                if domain not in changed:
                    changed[domain] = before

    def holding(self, count: int) -> Iterator[str]:
        """The domains with at least `count` slots, the tightest first."""
        self._sort()
        for place in range(bisect.bisect_left(self._order, (count, "")), len(self._order)):
            yield self._order[place][1]

    def most(self) -> tuple[int, str] | None:
        """The slots and the name of the domain that has most."""
        self._sort()
        return self._order[-1] if self._order else None

    def _sort(self) -> None:
        if len(self._changed) > len(self._order) // 8:
            self._order = sorted((slots, domain) for domain, slots in self.totals.items() if slots)
        else:
            for domain, before in self._changed.items():
                if before:
                    del self._order[bisect.bisect_left(self._order, (before, domain))]
                if now := self.totals[domain]:
                    bisect.insort(self._order, (now, domain))
        self._changed.clear()


class Index:
    """The slots for one shape. `total` in all; `sizes` says how many nodes have how many (those with none left out)."""

    def __init__(self, shape: shapes.Shape, states: Iterable[shapes.State], seen: int) -> None:
        self.shape = shape
        self.seen = seen  # how much of the log is in it
        self.total = 0
        self.sizes: dict[int, int] = {}
        self.tables: dict[str, Table] = {}
        self._counts: dict[shapes.State, int] = {}
        self._buckets: dict[int, list[shapes.State]] = {}  # by slots, in the order of their keys
        self._listed: set[shapes.State] = set()
        for state in states:
            if state.names and (slots := self.count(state)):
                self.total += slots * len(state.names)
                self.sizes[slots] = self.sizes.get(slots, 0) + len(state.names)
                self._buckets.setdefault(slots, []).append(state)
                self._listed.add(state)
        for bucket in self._buckets.values():
            bucket.sort(key=_KEY)

    def count(self, state: shapes.State) -> int:
        """Slots of a node in that state."""
        slots = self._counts.get(state)
        if slots is None:
            slots = self._counts[state] = shapes.fit(self.shape, state)
        return slots

    def names(self, slots: int) -> Iterator[str]:
        """The nodes with just so many slots, in the order in which they are to be used."""
        for state in self._buckets.get(slots, ()):
            yield from state.names

    def firsts(self, slots: int) -> Iterator[str]:
        """Of those, one for each state: the others of that state would do as well, or as badly."""
        for state in self._buckets.get(slots, ()):
            yield state.names[0]

    def states(self) -> Iterable[shapes.State]:
        """Those of whose nodes each takes one at least."""
        return self._listed

    def table(self, level: str, domains: Mapping[str, str]) -> Table:
        """The slots by domain of that level. `domains` gives each node's by its name."""
        table = self.tables.get(level)
        if table is None:
            table = self.tables[level] = Table(domains)
            for slots, bucket in self._buckets.items():
                for state in bucket:
                    table.add(state.names, slots)
        return table

    def follow(self, log: Sequence[Change]) -> None:
        """Take in what the log has to say since the last time."""
        touched: set[shapes.State] = set()
        sizes, tables = self.sizes, list(self.tables.values())
        for change in islice(log, self.seen, None):
            old, new, names = change.old, change.new, change.names
            was = 0 if old is None else self.count(old)
            now = 0 if new is None else self.count(new)
            if was and old is not None:
                touched.add(old)
            if now and new is not None:
                touched.add(new)
            if was != now:
                self.total += (now - was) * len(names)
                if was:
                    sizes[was] -= len(names)
                if now:
                    sizes[now] = sizes.get(now, 0) + len(names)
                for table in tables:
                    table.add(names, now - was)
        self.seen = len(log)
        for state in touched:
            self._list(state)

    def forget(self) -> None:
        """Drop what is known of states in which no node is."""
        self._counts = {state: slots for state, slots in self._counts.items() if state.names}

    def _list(self, state: shapes.State) -> None:
        """Put a state into its bucket when nodes came into it, and take it out when the last has left."""
        slots = self._counts[state]
        if not self.sizes.get(slots):
            self.sizes.pop(slots, None)
        if state.names and state not in self._listed:
            bisect.insort(self._buckets.setdefault(slots, []), state, key=_KEY)
            self._listed.add(state)
        elif not state.names and state in self._listed:
            bucket = self._buckets[slots]
            del bucket[bisect.bisect_left(bucket, state.key, key=_KEY)]
            self._listed.discard(state)
