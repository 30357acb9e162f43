"""One gang on one type of GPU, tried in one part of the cluster after the other until all of it has a place.

A gang with one ask is a matter of counting: the slots of its shape are known, and which nodes to use is arithmetic.
With several asks (workers and parameter servers) one is placed after the other, the largest tasks first, each as if the
ones before it were there; so a place is found nearly always where there is one, and what is found is right always.
"""

from __future__ import annotations

import bisect
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import NamedTuple

from oarlock.scheduler import fields, shapes
from oarlock.scheduler import room as rooms
from oarlock.spec import holdings, jobfile, plans, roles

LEVELS = tuple(jobfile.Domain)
"""From the smallest domain to the largest."""

TRIED_NODES = 16
TRIED_DOMAINS = 32
TRIED_LARGEST = 8
"""Of a gang with several asks: how many of the tightest domains that could hold it are tried, and of the roomiest."""


class Want(NamedTuple):
    """So many tasks of one ask."""

    place: int  # in the gang
    ask: plans.Ask
    tasks: int
    shape: shapes.Shape

    @property
    def server(self) -> bool:
        return self.ask.role == roles.RoleName.PS


class Seating:
    """`needs`: the shape of a task of each ask."""

    def __init__(
        self,
        gang: plans.Gang,
        size: plans.Size,
        needs: Sequence[shapes.Shape],
        room: rooms.Room,
        *,
        keep: frozenset[str] = frozenset(),
        prefer: Sequence[str] = (),
    ) -> None:
        self.gang = gang
        self.room = room
        self.keep = keep
        self.prefer = [name for name in dict.fromkeys(prefer) if name in room.nodes]
        wants = [
            Want(place, ask, tasks, need)
            for place, (ask, tasks, need) in enumerate(zip(gang.asks, size, needs, strict=True))
            if tasks
        ]
        self.spreads = gang.placement is jobfile.Placement.SPREAD
        self.beside = gang.beside if any(not want.server for want in wants) else None
        self.wants = sorted(wants, key=self._largest_first) if len(wants) > 1 else wants

    def claims(self) -> tuple[holdings.Holding, ...] | None:
        for scope in self._scopes():
            if (claims := self._seat(scope)) is not None:
                return claims
        return None

    def fitting(self, scope: list[rooms.NodeRoom] | None) -> int:
        """How many of the tasks fit within `scope` (None: anywhere): of one ask after the other, as many as do."""
        mark, fitting = self.room.mark(), 0
        here: dict[str, bool] = {}
        for want in self.wants:
            count = bisect.bisect_right(
                range(1, want.tasks + 1),
                False,
                key=lambda count: self._spots(want._replace(tasks=count), scope, here, spreads=self.spreads) is None,
            )
            if count:
                spots = self._spots(want._replace(tasks=count), scope, here, spreads=self.spreads)
                self._take(want, spots or [], here)
                fitting += count
        self.room.rollback(mark)
        return fitting

    def widest(self, level: str) -> list[tuple[str, int]]:
        """For each ask the domain with most slots for it, and how many of all tasks fit there."""
        tables = [self.room.index(want.shape).table(level, self.room.levels(level)) for want in self.wants]
        names = {best[1] for table in tables if (best := table.most()) is not None}
        return [(name, self.fitting(self.room.members(level, name))) for name in sorted(names)]

    # Where to look

    def _scopes(self) -> Iterator[list[rooms.NodeRoom] | None]:
        """Parts of the cluster, best first; None: all of it."""
        topology = self.gang.topology
        if topology is None:
            if len(self.wants) > 1 and not self.spreads:
                yield from self._nodes()
            yield None
            return
        first = LEVELS.index(topology.same)
        for level in LEVELS[first : first + 1] if topology.required else LEVELS[first:]:
            yield from self._nodes() if level is jobfile.Domain.NODE else self._domains(level)
        if not topology.required:
            yield None

    def _nodes(self) -> Iterator[list[rooms.NodeRoom]]:
        """Single nodes that could take all of it, the fullest first. With one ask, it fits on the first or on none."""
        if len(self.wants) == 1:
            index, count = self.room.index(self.wants[0].shape), self.wants[0].tasks
        else:
            index, count = self.room.index(_together(self.wants)), 1
        room, enough = self.room, sorted(size for size in index.sizes if size >= count)
        stood = (name for name in self.prefer if room.nodes[name].slots(index) >= count)
        fullest = chain.from_iterable(index.names(size) if self.keep else index.firsts(size) for size in enough)
        names = (name for name in chain(stood, fullest) if name not in self.keep)
        for name in list(islice(names, 1 if len(self.wants) == 1 else TRIED_NODES)):
            yield [room.nodes[name]]

    def _domains(self, level: str) -> Iterator[list[rooms.NodeRoom]]:
        """The domains that could take all of it: where it stood before, then the tightest first."""
        room = self.room
        tables = [room.index(want.shape).table(level, room.levels(level)) for want in self.wants]
        kept: list[dict[str, int]] = [{} for _ in self.wants]
        for name in self.keep:
            if (node := room.nodes.get(name)) is not None and (domain := node.domain(level)) is not None:
                for want, less in zip(self.wants, kept, strict=True):
                    less[domain] = less.get(domain, 0) + node.slots(room.index(want.shape))

        def holds(domain: str) -> bool:
            return all(
                table.totals.get(domain, 0) - less.get(domain, 0) >= want.tasks
                for want, table, less in zip(self.wants, tables, kept, strict=True)
            )

        before = _by_often(room.nodes[name].domain(level) for name in self.prefer)
        tightest = (domain for domain in tables[0].holding(self.wants[0].tasks) if domain not in before)
        found = filter(holds, chain(before, tightest))
        for domain in _some(list(found)) if len(self.wants) > 1 else found:
            yield room.members(level, domain)

    # In one place

    def _seat(self, scope: list[rooms.NodeRoom] | None) -> tuple[holdings.Holding, ...] | None:
        """All tasks within `scope`, or None."""
        if len(self.wants) == 1:
            spots = self._spots(self.wants[0], scope, {}, spreads=self.spreads)
            return None if spots is None else tuple(self._claims(self.wants[0], spots))
        for wants, spreads in self._orders():
            if (claims := self._one_by_one(wants, scope, spreads=spreads)) is not None:
                return claims
        return None

    def _orders(self) -> Iterator[tuple[Sequence[Want], bool]]:
        """What comes first may stand in the way of what comes after: then the other way round, and the other placement.

        Workers that are spread leave room for servers beside them, and packed ones leave nodes for those apart.
        """
        backward = self.wants[::-1]
        if self.beside:
            backward.sort(key=lambda want: want.server)
        for spreads in (self.spreads, not self.spreads):
            yield self.wants, spreads
            yield backward, spreads

    def _one_by_one(
        self, wants: Sequence[Want], scope: list[rooms.NodeRoom] | None, *, spreads: bool
    ) -> tuple[holdings.Holding, ...] | None:
        mark = self.room.mark()
        here: dict[str, bool] = {}  # the nodes that have tasks of this gang: whether a worker is among them
        claims: dict[int, list[holdings.Holding]] = {}
        for want in wants:
            spots = self._spots(want, scope, here, spreads=spreads)
            if spots is None:
                break
            claims[want.place] = self._take(want, spots, here)
        self.room.rollback(mark)
        if len(claims) < len(wants):
            return None
        return tuple(claim for place in sorted(claims) for claim in claims[place])

    def _take(self, want: Want, spots: fields.Spots, here: dict[str, bool]) -> list[holdings.Holding]:
        claims = self._claims(want, spots)
        self.room.take(claims)
        for node, _ in spots:
            here[node.name] = here.get(node.name, False) or not want.server
        return claims

    def _spots(
        self, want: Want, scope: list[rooms.NodeRoom] | None, here: dict[str, bool], *, spreads: bool
    ) -> fields.Spots | None:
        """Where the tasks of one ask go, beside those of the gang that have their place already."""
        without = self.keep
        if want.server and self.beside:
            near = [self.room.nodes[name] for name in sorted(here) if here[name]]
            return self._fill(want.shape, want.tasks, near, without, spreads=True)
        if self.beside is False:
            without = without.union(name for name, worker in here.items() if worker is want.server)
            here = {name: worker for name, worker in here.items() if worker is not want.server}
        if not here:
            return self._fill(want.shape, want.tasks, scope, without, spreads=spreads)
        if spreads:
            apart = self._fill(want.shape, want.tasks, scope, without.union(here), spreads=True)
            return apart or self._fill(want.shape, want.tasks, scope, without, spreads=True)
        index = self.room.index(want.shape)
        near = [self.room.nodes[name] for name in sorted(here)]
        inside = min(want.tasks, sum(node.slots(index) for node in near))
        spots = self._fill(want.shape, inside, near, without, spreads=False) if inside else []
        rest = want.tasks - inside
        if rest and spots is not None:
            further = self._fill(want.shape, rest, scope, without.union(here), spreads=False)
            return None if further is None else spots + further
        return spots

    def _fill(
        self,
        shape: shapes.Shape,
        count: int,
        scope: list[rooms.NodeRoom] | None,
        without: Collection[str],
        *,
        spreads: bool,
    ) -> fields.Spots | None:
        """`count` tasks of one shape."""
        if spreads:
            return fields.spread(self._field(shape, scope, without), count)
        spots = fields.packed(self._field(shape, scope, without), count)
        if spots is None:
            return None
        if shape.milli and (cut := fields.packed(self._field(shape._replace(cut=True), scope, without), count)):
            spots = min(cut, spots, key=len)  # devices stay whole, where that takes no more nodes
        if self.prefer:
            before = fields.packed(self._field(shape, self._stood(scope), without), count)
            if before is not None and len(before) <= len(spots):
                return before
        return spots

    def _field(self, shape: shapes.Shape, scope: list[rooms.NodeRoom] | None, without: Collection[str]) -> fields.Field:
        index = self.room.index(shape)
        if scope is None:
            return fields.Everywhere(self.room, index, without, self.prefer)
        return fields.Among(index, (node for node in scope if node.name not in without), self.prefer)

    def _stood(self, scope: list[rooms.NodeRoom] | None) -> list[rooms.NodeRoom]:
        within = None if scope is None else {node.name for node in scope}
        return [self.room.nodes[name] for name in self.prefer if within is None or name in within]

    def _claims(self, want: Want, spots: fields.Spots) -> list[holdings.Holding]:
        """Ranks that follow each other are near each other, and the nodes with most of them come first."""
        claims: list[holdings.Holding] = []
        for node, tasks in sorted(spots, key=_most_first):
            claims += node.claims(self.gang.job, want.ask, want.shape, range(len(claims), len(claims) + tasks))
        return claims

    def _largest_first(self, want: Want) -> tuple[bool, int, int, int, int, int]:
        """Where servers stand may depend on the workers: these come first then."""
        amount = want.ask.amount
        servers_last = want.server and self.beside is not None
        return servers_last, -amount.gpus, -amount.gpu_milli, -amount.cpus_milli, -amount.memory_bytes, want.place


def _most_first(spot: tuple[rooms.NodeRoom, int]) -> tuple[int, tuple[str, ...]]:
    return -spot[1], spot[0].path()


def _together(wants: Sequence[Want]) -> shapes.Shape:
    """One task as large as all of them: a node that takes it not takes them not either."""
    amount = sum((want.ask.amount.times(want.tasks) for want in wants), rooms.NOTHING)
    of_devices = [want.shape for want in wants if want.shape.gpus or want.shape.milli]
    types = {shape.types for shape in of_devices}
    return shapes.Shape(
        cpus=amount.cpus_milli,
        memory=amount.memory_bytes,
        gpus=amount.gpus,
        types=types.pop() if len(types) == 1 else None,
        gpu_memory=min((shape.gpu_memory for shape in of_devices), default=0) if amount.gpus else 0,
        bare=wants[0].shape.bare,
    )


def _by_often(domains: Iterable[str | None]) -> list[str]:
    """The one that is named most often first."""
    count: dict[str, int] = {}
    for domain in domains:
        if domain is not None:
            count[domain] = count.get(domain, 0) + 1
    return sorted(count, key=lambda domain: (-count[domain], domain))


def _some(domains: list[str]) -> list[str]:
    if len(domains) <= TRIED_DOMAINS + TRIED_LARGEST:
        return domains
    return domains[:TRIED_DOMAINS] + domains[-TRIED_LARGEST:]
