"""The number of tasks of one shape that fit, by node and domain, kept up to date from changes.

An index is used far more often than nodes change: by every waiting gang, in every round. So it keeps the sums. At its
next use it follows the free space's log of nodes that went from one state to another.
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
    """Nodes, by name, that went from one state to another; a state is None where they are not ready."""

    old: shapes.State | None
    new: shapes.State | None
    names: tuple[str, ...]


class Table:
    """The slots in each domain of one level of the topology. `domains` has each node's domain by its name."""

    def __init__(self, domains: Mapping[str, str]) -> None:
        self.totals: dict[str, int] = {}
        self._domains = domains
        self._order: list[tuple[int, str]] = []
        self._changed: dict[str, int] = {}  # slots of a domain when it was last sorted

    def add(self, names: Iterable[str], slots: int) -> None:
        """Add `slots`, which may be negative, for each of these nodes."""
        domains, totals, changed = self._domains, self.totals, self._changed
        for name in names:
            domain = domains.get(name)
            if domain is not None:
                before = totals.get(domain, 0)
                totals[domain] = before + slots
                if domain not in changed:
                    changed[domain] = before

    def holding(self, count: int) -> Iterator[str]:
        """Yield the domains with at least `count` slots, the tightest first."""
        self._sort()
        for place in range(bisect.bisect_left(self._order, (count, "")), len(self._order)):
            yield self._order[place][1]

    def most(self) -> tuple[int, str] | None:
        """Return the slots and the name of the domain with most slots."""
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
    """The slots for one shape.

    `total` is their number, and `sizes` has the number of nodes by slots, without nodes that have none.
    """

    def __init__(self, shape: shapes.Shape, states: Iterable[shapes.State], seen: int) -> None:
        self.shape = shape
        self.seen = seen  # entries of the log that are taken in
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
        """Return the slots of a node in that state."""
        slots = self._counts.get(state)
        if slots is None:
            slots = self._counts[state] = shapes.fit(self.shape, state)
        return slots

    def names(self, slots: int) -> Iterator[str]:
        """Yield the nodes with exactly so many slots, in the order in which they are to be used."""
        for state in self._buckets.get(slots, ()):
            yield from state.names

    def firsts(self, slots: int) -> Iterator[str]:
        """Yield one node for each state with exactly so many slots: the other nodes of the state are equivalent."""
        for state in self._buckets.get(slots, ()):
            yield state.names[0]

    def table(self, level: str, domains: Mapping[str, str]) -> Table:
        """Return the slots by domain of that level. `domains` has each node's domain by its name."""
        table = self.tables.get(level)
        if table is None:
            table = self.tables[level] = Table(domains)
            for slots, bucket in self._buckets.items():
                for state in bucket:
                    table.add(state.names, slots)
        return table

    def follow(self, log: Sequence[Change]) -> None:
        """Take in the new entries of the log."""
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
        """Drop cached counts of states without nodes."""
        self._counts = {state: slots for state, slots in self._counts.items() if state.names}

    def _list(self, state: shapes.State) -> None:
        """Add a state to its bucket when nodes enter it, and remove it when the last one has left."""
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
