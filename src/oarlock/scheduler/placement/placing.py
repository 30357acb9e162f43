"""The place of one gang: all of its tasks, or none.

One type of GPU after the other is tried, and for each one part of the cluster after the other (`Attempt`). For a gang
with one ask the number of slots of its shape is known, and the choice of nodes is arithmetic (`packing`). Several asks
(workers and parameter servers) are placed one after the other, the largest tasks first, each as if the earlier ones
were placed. So a place that exists is nearly always found, and a place that is found is valid.
"""

from __future__ import annotations

import bisect
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import NamedTuple

from oarlock.scheduler.placement import freenodes, freespace, gputypes, packing, shapes
from oarlock.spec import holdings, jobfile, plans, roles


class Domain(NamedTuple):
    """The domain of a level that would take most tasks of a gang, and the number of these tasks."""

    level: str
    name: str
    tasks: int


def place(
    gang: plans.Gang,
    space: freespace.FreeSpace,
    size: plans.Size | None = None,
    *,
    keep: frozenset[str] = frozenset(),
    prefer: Sequence[str] = (),
) -> holdings.Claims | None:
    """Return the holdings of the gang at `size` (None: as requested), or None if it does not fit.

    `space` stays as it was. A gang gets one type of GPU, the first one with which it fits (`gpu_types`). It gets
    several types only where it allows that and no single one is enough. A required topology is kept. For a preferred
    one the smallest level is tried first, and on each level the tightest domain that holds the gang; then the next
    level, then all nodes. A packed gang takes the fewest nodes, of those the fullest, and of equal ones the cheapest; a
    spread gang takes as many as possible, evenly. A gang without GPUs avoids nodes with GPUs, unless it fits on no
    others.

    Nodes named in `keep` are not used. Nodes named in `prefer`, where the gang ran before, come first among equals.
    """
    size = gang.wanted if size is None else size
    for needs in _likely(gang, space, size):
        found = Attempt(gang, size, needs, space, keep=keep, prefer=prefer).claims()
        if found is not None:
            return found
    return None


def fits(gang: plans.Gang, space: freespace.FreeSpace, size: plans.Size) -> bool:
    """Return whether there is a place for the gang at `size`."""
    return place(gang, space, size) is not None


def most(gang: plans.Gang, space: freespace.FreeSpace) -> int:
    """Return the number of its tasks that would fit now if it was not a gang; within one domain, if one is required."""
    if gang.topology is not None and gang.topology.required:
        best = widest(gang, space)
        return 0 if best is None else best.tasks
    attempts = (Attempt(gang, gang.wanted, needs, space) for needs in ways(gang, space))
    return max((attempt.fitting(None) for attempt in attempts), default=0)


def widest(gang: plans.Gang, space: freespace.FreeSpace) -> Domain | None:
    """Return the domain of the requested level that would take most of its tasks.

    Return None without a topology or a domain.
    """
    if gang.topology is None:
        return None
    level = gang.topology.same
    attempts = (Attempt(gang, gang.wanted, needs, space) for needs in ways(gang, space))
    found = [Domain(level, name, tasks) for attempt in attempts for name, tasks in attempt.widest(level)]
    return max(found, key=lambda domain: (domain.tasks, domain.name), default=None)


def gpu_types(gang: plans.Gang, space: freespace.FreeSpace) -> list[str | None]:
    """Return the types to try, best first. None stands for no GPU or, as the last one, for several types at once.

    The order is the gang's own preference. If any type will do, low priority tries older types first, and others newer
    ones.
    """
    wanting = [ask for ask in gang.asks if ask.amount.gpus or ask.amount.gpu_milli]
    if not wanting:
        return [None]
    named = next((ask.gpu_types for ask in wanting if ask.gpu_types), None)
    found: list[str | None] = [
        kind
        for kind in (gputypes.in_order(space.types, gang.priority) if named is None else named)
        if kind in space.types and all(not ask.gpu_types or kind in ask.gpu_types for ask in wanting)
    ]
    if gang.mixed and all(not ask.gpu_types or any(kind in space.types for kind in ask.gpu_types) for ask in wanting):
        return [*found, None] if space.types else []
    return found


def _likely(gang: plans.Gang, space: freespace.FreeSpace, size: plans.Size) -> Iterator[tuple[shapes.Shape, ...]]:
    """Yield the ways that the sums do not rule out. Most gangs that do not fit are refused here."""
    for needs in ways(gang, space):
        if not any(tasks and space.index(need).total < tasks for need, tasks in zip(needs, size, strict=True)):
            yield needs


def ways(gang: plans.Gang, space: freespace.FreeSpace) -> Iterator[tuple[shapes.Shape, ...]]:
    """Yield the possible shapes of its tasks, best first, each with one shape for every ask: one for each type of GPU.

    A gang without GPUs tries nodes without GPUs first, then any node.
    """
    off_gpus = space.types and not any(ask.amount.gpus or ask.amount.gpu_milli for ask in gang.asks)
    for kind in gpu_types(gang, space):
        for bare in (True, False) if off_gpus else (False,):
            yield tuple(shapes.shape(ask, kind, bare=bare) for ask in gang.asks)


LEVELS = tuple(jobfile.Domain)
"""From the smallest domain to the largest."""

TRIED_NODES = 16
TRIED_DOMAINS = 32
TRIED_LARGEST = 8
"""Limits for a gang with several asks: the number of tightest domains tried, and of the roomiest."""


class Part(NamedTuple):
    """A number of tasks of one ask. `room` is the shape of one of them with the servers that are to be beside it."""

    place: int  # in the gang
    ask: plans.Ask
    tasks: int
    shape: shapes.Shape
    room: shapes.Shape | None = None

    @property
    def server(self) -> bool:
        return self.ask.role == roles.RoleName.PS


class Attempt:
    """One try to place a gang. `needs` has the shape of a task of each ask."""

    def __init__(
        self,
        gang: plans.Gang,
        size: plans.Size,
        needs: Sequence[shapes.Shape],
        space: freespace.FreeSpace,
        *,
        keep: frozenset[str] = frozenset(),
        prefer: Sequence[str] = (),
    ) -> None:
        self.gang = gang
        self.space = space
        self.keep = keep
        self.prefer = [name for name in dict.fromkeys(prefer) if name in space.nodes]
        parts = [
            Part(place, ask, tasks, need)
            for place, (ask, tasks, need) in enumerate(zip(gang.asks, size, needs, strict=True))
            if tasks
        ]
        self.spreads = gang.placement is jobfile.Placement.SPREAD
        self.beside = gang.beside if any(not part.server for part in parts) else None
        self.parts = sorted(parts, key=self._largest_first) if len(parts) > 1 else parts

    def claims(self) -> tuple[holdings.Holding, ...] | None:
        for scope in self._scopes():
            if (claims := self._place_within(scope)) is not None:
                return claims
        return None

    def fitting(self, scope: list[freenodes.FreeNode] | None) -> int:
        """Return the number of tasks that fit within `scope` (None: anywhere).

        As many as possible of one ask after the other are placed.
        """
        fitting, here = 0, dict[str, bool]()
        with self.space.trial():
            for part in self.parts:
                count = bisect.bisect_right(
                    range(1, part.tasks + 1),
                    False,
                    key=lambda count: (
                        self._choose_nodes(part._replace(tasks=count), scope, here, spreads=self.spreads) is None
                    ),
                )
                if count:
                    chosen = self._choose_nodes(part._replace(tasks=count), scope, here, spreads=self.spreads)
                    self._take(part, chosen or [], here)
                    fitting += count
        return fitting

    def widest(self, level: str) -> list[tuple[str, int]]:
        """Return, for each ask, the domain with most slots for it, and the number of all tasks that fit there."""
        tables = [self.space.index(part.shape).table(level, self.space.levels(level)) for part in self.parts]
        names = {best[1] for table in tables if (best := table.most()) is not None}
        return [(name, self.fitting(self.space.members(level, name))) for name in sorted(names)]

    # Scopes

    def _scopes(self) -> Iterator[list[freenodes.FreeNode] | None]:
        """Yield parts of the cluster, best first; None stands for the whole cluster."""
        topology = self.gang.topology
        if topology is None:
            if len(self.parts) > 1 and not self.spreads:
                yield from self._nodes()
            yield None
            return
        first = LEVELS.index(topology.same)
        for level in LEVELS[first : first + 1] if topology.required else LEVELS[first:]:
            yield from self._nodes() if level is jobfile.Domain.NODE else self._domains(level)
        if not topology.required:
            yield None

    def _nodes(self) -> Iterator[list[freenodes.FreeNode]]:
        """Yield single nodes that could take the whole gang, the fullest first. With one ask the first one decides."""
        if len(self.parts) == 1:
            index, count = self.space.index(self.parts[0].shape), self.parts[0].tasks
        else:
            index, count = self.space.index(_combined_shape(self.parts)), 1
        space, enough = self.space, sorted(size for size in index.sizes if size >= count)
        previous = (name for name in self.prefer if space.nodes[name].slots(index) >= count)
        fullest = chain.from_iterable(index.names(size) if self.keep else index.firsts(size) for size in enough)
        names = (name for name in chain(previous, fullest) if name not in self.keep)
        for name in list(islice(names, 1 if len(self.parts) == 1 else TRIED_NODES)):
            yield [space.nodes[name]]

    def _domains(self, level: str) -> Iterator[list[freenodes.FreeNode]]:
        """Yield the domains that could take the whole gang: previous ones first, then the tightest."""
        space = self.space
        tables = [space.index(part.shape).table(level, space.levels(level)) for part in self.parts]
        kept: list[dict[str, int]] = [{} for _ in self.parts]
        for name in self.keep:
            if (node := space.nodes.get(name)) is not None and (domain := node.domain(level)) is not None:
                for part, less in zip(self.parts, kept, strict=True):
                    less[domain] = less.get(domain, 0) + node.slots(space.index(part.shape))

        def holds(domain: str) -> bool:
            return all(
                table.totals.get(domain, 0) - less.get(domain, 0) >= part.tasks
                for part, table, less in zip(self.parts, tables, kept, strict=True)
            )

        before = _most_frequent_first(space.nodes[name].domain(level) for name in self.prefer)
        tightest = (domain for domain in tables[0].holding(self.parts[0].tasks) if domain not in before)
        found = filter(holds, chain(before, tightest))
        for domain in _tightest_and_largest(list(found)) if len(self.parts) > 1 else found:
            yield space.members(level, domain)

    # Within a scope

    def _place_within(self, scope: list[freenodes.FreeNode] | None) -> tuple[holdings.Holding, ...] | None:
        """Return the holdings of all tasks within `scope`, or None."""
        if len(self.parts) == 1:
            chosen = self._choose_nodes(self.parts[0], scope, {}, spreads=self.spreads)
            return None if chosen is None else tuple(self._claims(self.parts[0], chosen))
        for parts, spreads in self._orders():
            if (claims := self._one_by_one(parts, scope, spreads=spreads)) is not None:
                return claims
        return None

    def _orders(self) -> Iterator[tuple[Sequence[Part], bool]]:
        """Yield the orders in which to place the asks, each with whether tasks are spread.

        An early ask may take the place of a later one. So the reverse order is tried too, and the other placement:
        spread workers leave space for servers beside them, and packed workers leave nodes for servers apart. At last,
        some workers are placed where servers fit beside them, before all other tasks.
        """
        backward = self.parts[::-1]
        if self.beside:
            backward.sort(key=lambda part: part.server)
        for spreads in (self.spreads, not self.spreads):
            yield self.parts, spreads
            yield backward, spreads
        if self.beside:
            yield from ((parts, self.spreads) for parts in self._hosts_first())

    def _hosts_first(self) -> Iterator[Sequence[Part]]:
        """Yield orders that begin with a few workers with room for servers: for all of them, for half of them..."""
        workers = [part for part in self.parts if not part.server]
        for server in (part for part in self.parts if part.server):
            for worker in workers:
                each = server.tasks
                while each and (hosts := -(-server.tasks // each)) <= worker.tasks:
                    cpus, memory = (each * one for one in (server.shape.cpus, server.shape.memory))
                    room = worker.shape._replace(cpus=worker.shape.cpus + cpus, memory=worker.shape.memory + memory)
                    rest = (worker._replace(tasks=worker.tasks - hosts), *(one for one in workers if one is not worker))
                    yield [worker._replace(tasks=hosts, room=room), server, *(part for part in rest if part.tasks)]
                    each //= 2

    def _one_by_one(
        self, parts: Sequence[Part], scope: list[freenodes.FreeNode] | None, *, spreads: bool
    ) -> tuple[holdings.Holding, ...] | None:
        here: dict[str, bool] = {}  # nodes with tasks of this gang: whether one of these is a worker
        claims: dict[int, list[holdings.Holding]] = {}
        with self.space.trial():
            for part in parts:
                chosen = self._choose_nodes(part, scope, here, spreads=spreads)
                if chosen is None:
                    return None
                before = claims.setdefault(part.place, [])
                before += self._take(part, chosen, here, first=len(before))
        return tuple(claim for place in sorted(claims) for claim in claims[place])

    def _take(
        self, part: Part, chosen: packing.NodeTasks, here: dict[str, bool], *, first: int = 0
    ) -> list[holdings.Holding]:
        claims = self._claims(part, chosen, first)
        self.space.take(claims)
        for node, _ in chosen:
            here[node.name] = here.get(node.name, False) or not part.server
        return claims

    def _choose_nodes(
        self, part: Part, scope: list[freenodes.FreeNode] | None, here: dict[str, bool], *, spreads: bool
    ) -> packing.NodeTasks | None:
        """Return the nodes for the tasks of one ask, given the tasks of the gang that are placed already."""
        without = self.keep
        if part.room is not None:
            roomy = self._fill(part.room, part.tasks, scope, without, spreads=spreads) or []
            return self._fill(part.shape, part.tasks, [node for node, _ in roomy], without, spreads=True)
        if part.server and self.beside:
            near = [self.space.nodes[name] for name in sorted(here) if here[name]]
            return self._fill(part.shape, part.tasks, near, without, spreads=True)
        if self.beside is False:
            without = without.union(name for name, worker in here.items() if worker is part.server)
            here = {name: worker for name, worker in here.items() if worker is not part.server}
        if not here:
            return self._fill(part.shape, part.tasks, scope, without, spreads=spreads)
        if spreads:
            apart = self._fill(part.shape, part.tasks, scope, without.union(here), spreads=True)
            return apart or self._fill(part.shape, part.tasks, scope, without, spreads=True)
        index = self.space.index(part.shape)
        near = [self.space.nodes[name] for name in sorted(here)]
        inside = min(part.tasks, sum(node.slots(index) for node in near))
        chosen = self._fill(part.shape, inside, near, without, spreads=False) if inside else []
        rest = part.tasks - inside
        if rest and chosen is not None:
            further = self._fill(part.shape, rest, scope, without.union(here), spreads=False)
            return None if further is None else chosen + further
        return chosen

    def _fill(
        self,
        shape: shapes.Shape,
        count: int,
        scope: list[freenodes.FreeNode] | None,
        without: Collection[str],
        *,
        spreads: bool,
    ) -> packing.NodeTasks | None:
        """Return the nodes for `count` tasks of one shape."""
        if spreads:
            return packing.spread(self._candidates(shape, scope, without), count)
        chosen = packing.packed(self._candidates(shape, scope, without), count)
        if chosen is None:
            return None
        if shape.milli and (cut := packing.packed(self._candidates(shape._replace(cut=True), scope, without), count)):
            chosen = min(cut, chosen, key=len)  # use shared devices, if that takes no more nodes
        if self.prefer:
            before = packing.packed(self._candidates(shape, self._previous_nodes(scope), without), count)
            if before is not None and len(before) <= len(chosen):
                return before
        return chosen

    def _candidates(
        self, shape: shapes.Shape, scope: list[freenodes.FreeNode] | None, without: Collection[str]
    ) -> packing.Candidates:
        index = self.space.index(shape)
        if scope is None:
            return packing.AllNodes(self.space, index, without, self.prefer)
        return packing.SomeNodes(index, (node for node in scope if node.name not in without), self.prefer)

    def _previous_nodes(self, scope: list[freenodes.FreeNode] | None) -> list[freenodes.FreeNode]:
        within = None if scope is None else {node.name for node in scope}
        return [self.space.nodes[name] for name in self.prefer if within is None or name in within]

    def _claims(self, part: Part, chosen: packing.NodeTasks, first: int = 0) -> list[holdings.Holding]:
        """Return the holdings, from rank `first` on. Ranks in sequence are near, most on the nodes that come first."""
        claims: list[holdings.Holding] = []
        for node, tasks in sorted(chosen, key=_most_first):
            start = first + len(claims)
            claims += node.claims(self.gang.job, part.ask, part.shape, range(start, start + tasks))
        return claims

    def _largest_first(self, part: Part) -> tuple[bool, int, int, int, int, int]:
        """Return a sort key: largest tasks first, and workers before servers if servers depend on them."""
        amount = part.ask.amount
        servers_last = part.server and self.beside is not None
        return servers_last, -amount.gpus, -amount.gpu_milli, -amount.cpus_milli, -amount.memory_bytes, part.place


def _most_first(spot: tuple[freenodes.FreeNode, int]) -> tuple[int, tuple[str, ...]]:
    return -spot[1], spot[0].path()


def _combined_shape(parts: Sequence[Part]) -> shapes.Shape:
    """Return one task as large as all of them: a node that cannot hold it cannot hold them."""
    amount = sum((part.ask.amount.times(part.tasks) for part in parts), freespace.NOTHING)
    of_devices = [part.shape for part in parts if part.shape.gpus or part.shape.milli]
    types = {shape.types for shape in of_devices}
    return shapes.Shape(
        cpus=amount.cpus_milli,
        memory=amount.memory_bytes,
        gpus=amount.gpus,
        types=types.pop() if len(types) == 1 else None,
        gpu_memory=min((shape.gpu_memory for shape in of_devices), default=0) if amount.gpus else 0,
        bare=parts[0].shape.bare,
        constraints=parts[0].shape.constraints,
    )


def _most_frequent_first(domains: Iterable[str | None]) -> list[str]:
    """Return the domains, the most frequent first."""
    count: dict[str, int] = {}
    for domain in domains:
        if domain is not None:
            count[domain] = count.get(domain, 0) + 1
    return sorted(count, key=lambda domain: (-count[domain], domain))


def _tightest_and_largest(domains: list[str]) -> list[str]:
    if len(domains) <= TRIED_DOMAINS + TRIED_LARGEST:
        return domains
    return domains[:TRIED_DOMAINS] + domains[-TRIED_LARGEST:]
