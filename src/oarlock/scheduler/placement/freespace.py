"""What is free on the nodes, as a transaction: a gang is tried in it, and kept whole or discarded whole.

Made once, then only ever changed: by what is taken and given back (undone at the end of a `trial`), and from one
snapshot to the next by what differs. Nodes that have the same left are kept together (`shapes.State`), and how many
tasks of a shape would fit is known without looking at the nodes (`indexes.Index`).
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from operator import is_

from oarlock.scheduler import amounts
from oarlock.scheduler.placement import freenodes, indexes, shapes
from oarlock.spec import holdings, nodes, plans

NOTHING = holdings.Resources()

FEW_CHANGES = 16
"""Of no more than so many an index is told at once; else it is asked first whether it has to know."""

MAX_INDEXES = 512
"""Shapes whose slots are kept: of more, those that were asked for longest ago are counted anew."""

MAX_LOG = 10_000
MAX_LAG = 1_000
"""Changes in the log before it is cleared; an index that was not asked for the last `MAX_LAG` of them goes then."""

MAX_WAYS = 20_000
MAX_STATES = 1_000
"""Empty states kept beyond as many as there are others: nodes come back to them."""


class FreeSpace:
    """The free space of all nodes. What is taken and given back within a `trial` is undone at its end.

    `held` is taken from the beginning; so is what the jobs hold that `follow` is told of. A claim on a node that is not
    there counts once it is.
    """

    def __init__(self, of: Sequence[nodes.Node] = (), held: Iterable[holdings.Holding] = ()) -> None:
        self.nodes: dict[str, freenodes.FreeNode] = {}
        self.types: dict[str, int] = {}  # of devices: how many nodes have such
        self._absent: dict[str, freenodes.FreeNode] = {}  # of which something is held
        self._of: tuple[nodes.Node, ...] = ()
        self._running: dict[int, plans.Running] = {}  # by identity
        self._kinds: dict[object, shapes.Kind] = {}
        self._states: dict[object, shapes.State] = {}
        self._indexes: dict[shapes.Shape, indexes.Index] = {}  # the one that was asked last comes last
        self._log: list[indexes.Change] = []
        self.ways: dict[object, tuple[tuple[shapes.Shape, ...], ...]] = {}  # kept for `placing`
        self._ready: list[freenodes.FreeNode] | None = None
        self._levels: dict[str, dict[str, str]] = {}
        self._members: dict[str, dict[str, list[freenodes.FreeNode]]] = {}
        self._done: list[tuple[tuple[holdings.Holding, ...], int]] = []
        self._free = [0, 0, 0, 0]
        self._total = [0, 0, 0, 0]
        self._know(tuple(of))
        self.take(held)

    # What there is

    def ready(self) -> list[freenodes.FreeNode]:
        """Return the nodes that take new tasks, by name. The list is the free space's own: not to be changed."""
        if self._ready is None:
            self._ready = [node for node in self.nodes.values() if node.node.open]
        return self._ready

    def free(self) -> holdings.Resources:
        """Of the ready nodes."""
        return holdings.Resources(*self._free)

    def exceeds(self, amount: amounts.Amount) -> bool:
        """Whether what is asked for is more than what is free, in sum."""
        cpus, memory, gpus, milli = self._free
        return amount[0] > gpus * 1000 + milli or amount[1] > cpus or amount[2] > memory

    def total(self) -> holdings.Resources:
        """The capacity of all nodes, ready or not."""
        return holdings.Resources(*self._total)

    def holds(self, claims: Iterable[holdings.Holding]) -> bool:
        """Whether all of these are free now, together."""
        taken: list[tuple[freenodes.FreeNode, holdings.Holding]] = []
        for claim in claims:
            node = self.nodes.get(claim.node)
            if node is None or not node.node.open or not node.has(claim):
                break
            node.take(claim)
            taken.append((node, claim))
        else:
            claims = ()
        for node, claim in reversed(taken):
            node.take(claim, -1)
        return claims == ()

    def domains(self, level: str) -> list[list[freenodes.FreeNode]]:
        """The ready nodes by their domain of that level, the domain with the least room first."""
        groups = ([node for node in members if node.node.open] for members in self._by_domain(level).values())
        return sorted((group for group in groups if group), key=_total_free)

    def members(self, level: str, domain: str) -> list[freenodes.FreeNode]:
        """The nodes of one domain, ready or not, by name."""
        return self._by_domain(level).get(domain, [])

    def levels(self, level: str) -> dict[str, str]:
        """The nodes' domains of that level, by their names; those that are in none are left out."""
        known = self._levels.get(level)
        if known is None:
            domains = ((name, node.domain(level)) for name, node in self.nodes.items())
            known = self._levels[level] = {name: domain for name, domain in domains if domain is not None}
        return known

    def _by_domain(self, level: str) -> dict[str, list[freenodes.FreeNode]]:
        known = self._members.get(level)
        if known is None:
            known = self._members[level] = {}
            for name, domain in self.levels(level).items():
                known.setdefault(domain, []).append(self.nodes[name])
        return known

    def alike(self) -> Iterator[tuple[freenodes.FreeNode, int]]:
        """Of the ready nodes one for all that have the same left, and how many these are."""
        return ((self.nodes[state.names[0]], len(state.names)) for state in self._states.values() if state.names)

    # How much would fit

    def slots(self, ask: plans.Ask, *, mixed: bool = False) -> int:
        """How many tasks of `ask` would fit now in all, on one type of GPU unless `mixed`.

        Exact for tasks of this ask alone, within no domain; an upper bound where others come along.
        """
        if mixed or not (ask.amount.gpus or ask.amount.gpu_milli):
            return self.index(shapes.shape(ask, None)).total
        kinds = [kind for kind in ask.gpu_types or self.types if kind in self.types]
        return max((self.index(shapes.shape(ask, kind)).total for kind in kinds), default=0)

    def index(self, shape: shapes.Shape) -> indexes.Index:
        """The slots for tasks of that shape, as of now."""
        index = self._indexes.get(shape)
        if index is None or index.seen < len(self._log):
            self._indexes.pop(shape, None)
            if index is None or self._lags(index):
                index = indexes.Index(shape, self._states_for(shape), len(self._log))
                if len(self._indexes) >= MAX_INDEXES:
                    del self._indexes[next(iter(self._indexes))]
            else:
                index.follow(self._log)
            self._indexes[shape] = index
        return index

    def _states_for(self, shape: shapes.Shape) -> Iterable[shapes.State]:
        """Those that may take a task of that shape: of nodes without the devices nothing else needs to be known."""
        coarse = shape.devices_only
        if shape == coarse or not (shape.gpus or shape.milli):
            return self._states.values()
        return self.index(coarse).states()

    def lacks(self, shape: shapes.Shape, count: int) -> bool:
        """Whether fewer than `count` such tasks fit in all. Most often the devices alone say so, for many shapes: then
        the index of none of these has to be brought up to date, where that is much.
        """
        known = self._indexes.get(shape)
        behind = known is None or len(self._log) - known.seen > FEW_CHANGES
        if behind and self.index(shape.devices_only).total < count:
            return True
        return self.index(shape).total < count

    def _lags(self, index: indexes.Index) -> bool:
        """Whether it is so far behind that it is better made anew."""
        return len(self._log) - index.seen > 4 * len(self.nodes if index.tables else self._states) + 100

    # The transaction

    @contextmanager
    def trial(self) -> Iterator[None]:
        """Undo at the end of the block all that was taken and given back in it. Trials may be nested."""
        mark, touched = len(self._done), dict[str, freenodes.FreeNode]()
        try:
            yield
        finally:
            self._undo(mark, touched)
            self._move(touched.values())

    def _undo(self, mark: int, touched: dict[str, freenodes.FreeNode]) -> None:
        while len(self._done) > mark:
            claims, times = self._done.pop()
            self._apply(claims, -times, touched)

    def take(self, claims: Iterable[holdings.Holding]) -> None:
        self._do(tuple(claims), 1)

    def give_back(self, claims: Iterable[holdings.Holding]) -> None:
        self._do(tuple(claims), -1)

    def _do(self, claims: tuple[holdings.Holding, ...], times: int) -> None:
        self._done.append((claims, times))
        touched: dict[str, freenodes.FreeNode] = {}
        self._apply(claims, times, touched)
        self._move(touched.values())
        if self._absent:
            self._absent = {name: node for name, node in self._absent.items() if node.used}
        self._tidy()

    def _apply(self, claims: Iterable[holdings.Holding], times: int, touched: dict[str, freenodes.FreeNode]) -> None:
        """Take claims, or (-1) give them back. The nodes that are `touched` are to be moved to their states then."""
        free = self._free
        for claim in claims:
            name = claim.node
            node = self.nodes.get(name) or self._absent.get(name)
            if node is None:
                node = self._absent[name] = freenodes.FreeNode(*self._nowhere(name))
            node.take(claim, times)
            touched[name] = node
            if node.state is not None:
                amount = claim.amount
                free[0] -= times * amount.cpus_milli
                free[1] -= times * amount.memory_bytes
                free[2] -= times * amount.gpus
                free[3] -= times * amount.gpu_milli

    def _move(self, touched: Iterable[freenodes.FreeNode]) -> None:
        """Put nodes among those that have the same left; nowhere where they take no new tasks."""
        moved: dict[tuple[shapes.State | None, shapes.State | None], list[str]] = {}
        for node in touched:
            old, new = node.state, self._state(node)
            if new is old:
                continue
            if old is not None:
                del old.names[bisect.bisect_left(old.names, node.name)]
            if new is not None:
                bisect.insort(new.names, node.name)
            node.state = new
            moved.setdefault((old, new), []).append(node.name)
        self._log += [indexes.Change(old, new, tuple(names)) for (old, new), names in moved.items()]

    def _state(self, node: freenodes.FreeNode) -> shapes.State | None:
        if not node.node.open:
            return None
        left = node.left()
        state = self._states.get(left)
        if state is None:
            state = self._states[left] = shapes.State(*left)
        return state

    # From one snapshot to the next

    def follow(self, of: Sequence[nodes.Node], running: Sequence[plans.Running]) -> None:
        """Become the room of this snapshot: what a room made of it afresh would be.

        No trial is open meanwhile. An object that was in the last snapshot is not looked at again.
        """
        touched: dict[str, freenodes.FreeNode] = {}
        self._undo(0, touched)
        self._know(tuple(of))
        now = {id(one): one for one in running}
        gone = [self._running[key] for key in self._running.keys() - now.keys()]
        come = {now[key].gang.job: now[key] for key in now.keys() - self._running.keys()}
        self._running = now
        for one in gone:
            same = come.get(one.gang.job)
            if same is not None and same.holdings == one.holdings:
                del come[one.gang.job]
            else:
                self._apply(one.holdings, -1, touched)
        self._apply(chain.from_iterable(one.holdings for one in come.values()), 1, touched)
        self._move(touched.values())
        self._absent = {name: node for name, node in self._absent.items() if node.used}
        self._tidy()

    def _know(self, of: tuple[nodes.Node, ...]) -> None:
        """Nodes that came, went, or changed."""
        if len(of) == len(self._of) and all(map(is_, of, self._of)):
            return
        self._of = of
        there = {node.name: node for node in of}
        for name in [name for name in self.nodes if name not in there]:
            self._leave(self.nodes.pop(name))
        come = sorted(there.keys() - self.nodes.keys())
        for name, node in there.items():
            if name in self.nodes and self.nodes[name].node is not node:
                self._become(self.nodes[name], node)
        for name in come:
            space = self._absent.pop(name, None) or freenodes.FreeNode(*self._nowhere(name))
            self.nodes[name] = space
            self._become(space, there[name])
        if come:
            self.nodes = {name: self.nodes[name] for name in sorted(self.nodes)}
        self.ways.clear()
        self._ready = None
        self._levels.clear()
        self._members.clear()
        for index in self._indexes.values():
            index.tables.clear()

    def _leave(self, node: freenodes.FreeNode) -> None:
        self._become(node, self._nowhere(node.name)[0])
        if node.used:
            self._absent[node.name] = node

    def _become(self, space: freenodes.FreeNode, node: nodes.Node) -> None:
        before, free_before = space.node, space.free if space.state is not None else NOTHING
        space.become(node, self._kind(node))
        self._move([space])
        _add(self._total, node.capacity, before.capacity)
        _add(self._free, space.free if space.state is not None else NOTHING, free_before)
        for device in {device.type for device in before.devices}:
            self.types[device] -= 1
            if not self.types[device]:
                del self.types[device]
        for device in {device.type for device in node.devices}:
            self.types[device] = self.types.get(device, 0) + 1

    def _kind(self, node: nodes.Node) -> shapes.Kind:
        key = shapes.kind_key(node)
        kind = self._kinds.get(key)
        if kind is None:
            kind = self._kinds[key] = shapes.Kind(*key)
        return kind

    def _nowhere(self, name: str) -> tuple[nodes.Node, shapes.Kind]:
        """A node that is not there: it has nothing, and what is held of it is remembered."""
        node = nodes.Node(name=name, capacity=NOTHING, ready=False)
        return node, self._kind(node)

    def _tidy(self) -> None:
        """Now and then, drop what is only kept to save work, so that nothing grows with time."""
        if len(self.ways) > MAX_WAYS:
            self.ways.clear()
        if len(self._log) <= MAX_LOG:
            return
        asked = len(self._log) - MAX_LAG  # an index that lags further behind was not asked for long
        self._indexes = {shape: index for shape, index in self._indexes.items() if index.seen >= asked}
        for index in self._indexes.values():
            index.follow(self._log)
            index.seen = 0
        self._log.clear()
        live = {key: state for key, state in self._states.items() if state.names}
        if len(self._states) > 2 * len(live) + MAX_STATES:
            self._states = live
            for index in self._indexes.values():
                index.forget()


def _add(sums: list[int], plus: holdings.Resources, minus: holdings.Resources) -> None:
    sums[0] += plus.cpus_milli - minus.cpus_milli
    sums[1] += plus.memory_bytes - minus.memory_bytes
    sums[2] += plus.gpus - minus.gpus
    sums[3] += plus.gpu_milli - minus.gpu_milli


def _total_free(rooms: Sequence[freenodes.FreeNode]) -> tuple[int, int, int]:
    return sum(space.gpus for space in rooms), sum(space.cpus for space in rooms), sum(space.memory for space in rooms)
