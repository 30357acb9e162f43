"""The place of one gang: all of its tasks, or none.

One type of GPU after the other is tried, and for each one part of the cluster after the other (`Attempt`). A gang with
one ask is a matter of counting: the slots of its shape are known, and which nodes to use is arithmetic (`packing`).
With several asks (workers and parameter servers) one is placed after the other, the largest tasks first, each as if the
ones before it were there. So a place is found nearly always where there is one, and a place that is found is right.
"""

from __future__ import annotations

import bisect
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import NamedTuple

from oarlock.scheduler.placement import freenodes, freespace, gputypes, packing, shapes
from oarlock.spec import holdings, jobfile, plans, roles

Claims = tuple[holdings.Holding, ...]


class Domain(NamedTuple):
    """Of all domains of a level the one that would take most of a gang: how many of its tasks."""

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
) -> Claims | None:
    """The holdings of the gang at `size` (None: as it was asked for), all of them, or None. `space` is left as it was:
    the caller takes them.

    A gang has one type of GPU, the first with which it fits (`gpu_types`); several only where it says so and no single
    one will do. A required domain of the topology is kept; of a preferred one the smallest is tried first, then the
    tightest that holds it, then the next level, then all nodes. Packed, it takes the fewest nodes, of those the
    fullest, and of equal ones the cheapest; spread, as many as there are, evenly. Without need of a GPU it stays off
    nodes that have some, unless it fits nowhere else.

    Nodes named in `keep` are not used; those in `prefer`, where it stood before, come first among equals.
    """
    size = gang.wanted if size is None else size
    for needs in _likely(gang, space, size):
        found = Attempt(gang, size, needs, space, keep=keep, prefer=prefer).claims()
        if found is not None:
            return found
    return None


def fits(gang: plans.Gang, space: freespace.FreeSpace, size: plans.Size) -> bool:
    """Whether `place` would find one."""
    sums = by_sums(gang, size)
    return any(sums or Attempt(gang, size, needs, space).claims() is not None for needs in _likely(gang, space, size))


def by_sums(gang: plans.Gang, size: plans.Size) -> bool:
    """Whether the sums say all: tasks that are all alike, and may lie anywhere. So what fits in a room fits in any that
    has more left.
    """
    return (gang.topology is None or not gang.topology.required) and sum(tasks > 0 for tasks in size) == 1


def most(gang: plans.Gang, space: freespace.FreeSpace) -> int:
    """How many of its tasks would fit now, were it not a gang; within one domain, where it must be in one."""
    if gang.topology is not None and gang.topology.required:
        best = widest(gang, space)
        return 0 if best is None else best.tasks
    attempts = (Attempt(gang, gang.wanted, needs, space) for needs in ways(gang, space))
    return max((attempt.fitting(None) for attempt in attempts), default=0)


def widest(gang: plans.Gang, space: freespace.FreeSpace) -> Domain | None:
    """The domain of the level it asks for that would take most of its tasks; None without such a wish, or domain."""
    if gang.topology is None:
        return None
    level = gang.topology.same
    attempts = (Attempt(gang, gang.wanted, needs, space) for needs in ways(gang, space))
    found = [Domain(level, name, tasks) for attempt in attempts for name, tasks in attempt.widest(level)]
    return max(found, key=lambda domain: (domain.tasks, domain.name), default=None)


def gpu_types(gang: plans.Gang, space: freespace.FreeSpace) -> list[str | None]:
    """The types to try, best first; None where it wants no GPU, or (last) for several types at once.

    In the gang's order of preference; where any will do, older ones first for low priority and newer ones for others.
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
    """The ways that the sums do not rule out: most gangs that do not fit are refused by these."""
    for needs in ways(gang, space):
        if not any(tasks and space.lacks(need, tasks) for need, tasks in zip(needs, size, strict=True)):
            yield needs


def ways(gang: plans.Gang, space: freespace.FreeSpace) -> tuple[tuple[shapes.Shape, ...], ...]:
    """What its tasks may look like, best first, each as one shape for every ask: on this type of GPU or on that one.

    Without need of a GPU: first on nodes that have none, then on any.
    """
    key = gang.asks, gang.mixed, gang.priority < gputypes.ORDINARY_PRIORITY
    ways = space.ways.get(key)
    if ways is None:
        passes: tuple[bool, ...] = (False,)
        if space.types and not any(ask.amount.gpus or ask.amount.gpu_milli for ask in gang.asks):
            passes = (True, False)
        ways = space.ways[key] = tuple(
            tuple(shapes.shape(ask, kind, bare=bare) for ask in gang.asks)
            for kind in gpu_types(gang, space)
            for bare in passes
        )
    return ways


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


class Attempt:
    """`needs`: the shape of a task of each ask."""

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

    def fitting(self, scope: list[freenodes.FreeNode] | None) -> int:
        """How many of the tasks fit within `scope` (None: anywhere): of one ask after the other, as many as do."""
        fitting, here = 0, dict[str, bool]()
        with self.space.trial():
            for want in self.wants:
                count = bisect.bisect_right(
                    range(1, want.tasks + 1),
                    False,
                    key=lambda count: (
                        self._spots(want._replace(tasks=count), scope, here, spreads=self.spreads) is None
                    ),
                )
                if count:
                    spots = self._spots(want._replace(tasks=count), scope, here, spreads=self.spreads)
                    self._take(want, spots or [], here)
                    fitting += count
        return fitting

    def widest(self, level: str) -> list[tuple[str, int]]:
        """For each ask the domain with most slots for it, and how many of all tasks fit there."""
        tables = [self.space.index(want.shape).table(level, self.space.levels(level)) for want in self.wants]
        names = {best[1] for table in tables if (best := table.most()) is not None}
        return [(name, self.fitting(self.space.members(level, name))) for name in sorted(names)]

    # Where to look

    def _scopes(self) -> Iterator[list[freenodes.FreeNode] | None]:
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

    def _nodes(self) -> Iterator[list[freenodes.FreeNode]]:
        """Single nodes that could take all of it, the fullest first. With one ask, it fits on the first or on none."""
        if len(self.wants) == 1:
            index, count = self.space.index(self.wants[0].shape), self.wants[0].tasks
        else:
            index, count = self.space.index(_together(self.wants)), 1
        space, enough = self.space, sorted(size for size in index.sizes if size >= count)
        stood = (name for name in self.prefer if space.nodes[name].slots(index) >= count)
        fullest = chain.from_iterable(index.names(size) if self.keep else index.firsts(size) for size in enough)
        names = (name for name in chain(stood, fullest) if name not in self.keep)
        for name in list(islice(names, 1 if len(self.wants) == 1 else TRIED_NODES)):
            yield [space.nodes[name]]

    def _domains(self, level: str) -> Iterator[list[freenodes.FreeNode]]:
        """The domains that could take all of it: where it stood before, then the tightest first."""
        space = self.space
        tables = [space.index(want.shape).table(level, space.levels(level)) for want in self.wants]
        kept: list[dict[str, int]] = [{} for _ in self.wants]
        for name in self.keep:
            if (node := space.nodes.get(name)) is not None and (domain := node.domain(level)) is not None:
                for want, less in zip(self.wants, kept, strict=True):
                    less[domain] = less.get(domain, 0) + node.slots(space.index(want.shape))

        def holds(domain: str) -> bool:
            return all(
                table.totals.get(domain, 0) - less.get(domain, 0) >= want.tasks
                for want, table, less in zip(self.wants, tables, kept, strict=True)
            )

        before = _by_often(space.nodes[name].domain(level) for name in self.prefer)
        tightest = (domain for domain in tables[0].holding(self.wants[0].tasks) if domain not in before)
        found = filter(holds, chain(before, tightest))
        for domain in _some(list(found)) if len(self.wants) > 1 else found:
            yield space.members(level, domain)

    # In one place

    def _seat(self, scope: list[freenodes.FreeNode] | None) -> tuple[holdings.Holding, ...] | None:
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
        self, wants: Sequence[Want], scope: list[freenodes.FreeNode] | None, *, spreads: bool
    ) -> tuple[holdings.Holding, ...] | None:
        here: dict[str, bool] = {}  # the nodes that have tasks of this gang: whether a worker is among them
        claims: dict[int, list[holdings.Holding]] = {}
        with self.space.trial():
            for want in wants:
                spots = self._spots(want, scope, here, spreads=spreads)
                if spots is None:
                    return None
                claims[want.place] = self._take(want, spots, here)
        return tuple(claim for place in sorted(claims) for claim in claims[place])

    def _take(self, want: Want, spots: packing.Spots, here: dict[str, bool]) -> list[holdings.Holding]:
        claims = self._claims(want, spots)
        self.space.take(claims)
        for node, _ in spots:
            here[node.name] = here.get(node.name, False) or not want.server
        return claims

    def _spots(
        self, want: Want, scope: list[freenodes.FreeNode] | None, here: dict[str, bool], *, spreads: bool
    ) -> packing.Spots | None:
        """Where the tasks of one ask go, beside those of the gang that have their place already."""
        without = self.keep
        if want.server and self.beside:
            near = [self.space.nodes[name] for name in sorted(here) if here[name]]
            return self._fill(want.shape, want.tasks, near, without, spreads=True)
        if self.beside is False:
            without = without.union(name for name, worker in here.items() if worker is want.server)
            here = {name: worker for name, worker in here.items() if worker is not want.server}
        if not here:
            return self._fill(want.shape, want.tasks, scope, without, spreads=spreads)
        if spreads:
            apart = self._fill(want.shape, want.tasks, scope, without.union(here), spreads=True)
            return apart or self._fill(want.shape, want.tasks, scope, without, spreads=True)
        index = self.space.index(want.shape)
        near = [self.space.nodes[name] for name in sorted(here)]
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
        scope: list[freenodes.FreeNode] | None,
        without: Collection[str],
        *,
        spreads: bool,
    ) -> packing.Spots | None:
        """`count` tasks of one shape."""
        if spreads:
            return packing.spread(self._field(shape, scope, without), count)
        spots = packing.packed(self._field(shape, scope, without), count)
        if spots is None:
            return None
        if shape.milli and (cut := packing.packed(self._field(shape._replace(cut=True), scope, without), count)):
            spots = min(cut, spots, key=len)  # devices stay whole, where that takes no more nodes
        if self.prefer:
            before = packing.packed(self._field(shape, self._stood(scope), without), count)
            if before is not None and len(before) <= len(spots):
                return before
        return spots

    def _field(
        self, shape: shapes.Shape, scope: list[freenodes.FreeNode] | None, without: Collection[str]
    ) -> packing.Field:
        index = self.space.index(shape)
        if scope is None:
            return packing.Everywhere(self.space, index, without, self.prefer)
        return packing.Among(index, (node for node in scope if node.name not in without), self.prefer)

    def _stood(self, scope: list[freenodes.FreeNode] | None) -> list[freenodes.FreeNode]:
        within = None if scope is None else {node.name for node in scope}
        return [self.space.nodes[name] for name in self.prefer if within is None or name in within]

    def _claims(self, want: Want, spots: packing.Spots) -> list[holdings.Holding]:
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


def _most_first(spot: tuple[freenodes.FreeNode, int]) -> tuple[int, tuple[str, ...]]:
    return -spot[1], spot[0].path()


def _together(wants: Sequence[Want]) -> shapes.Shape:
    """One task as large as all of them: a node that takes it not takes them not either."""
    amount = sum((want.ask.amount.times(want.tasks) for want in wants), freespace.NOTHING)
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
