"""The free resources of all nodes, as a transaction: a gang is tried in it, and then kept or discarded as a whole.

A free space is made once and then only changed: by amounts taken and given back (a `trial` undoes them at its end), and
by the differences between one snapshot and the next. Nodes with the same free resources are kept together
(`shapes.State`), and the number of tasks of a shape that would fit is known without a look at the nodes
(`indexes.Index`).
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from operator import is_

from oarlock.scheduler import amounts
from oarlock.scheduler.placement import freenodes, indexes, shapes
from oarlock.spec import holdings, plans
from oarlock.spec.cluster import nodes

NOTHING = holdings.Resources()

MAX_INDEXES = 512
"""Shapes whose index is kept. The one that was least recently used is dropped first."""

MAX_LOG = 10_000
MAX_LAG = 1_000
"""Changes in the log before it is cleared. An index that was not used during the last `MAX_LAG` of them is dropped
then.
"""

MAX_STATES = 1_000
"""States without nodes that are kept, in addition to as many as have nodes: nodes come back to them."""


class FreeSpace:
    """The free resources of all nodes. Changes within a `trial` are undone at its end.

    `held` is taken from the beginning, and so are the holdings of the jobs that `follow` is given. A claim on a node
    that is not declared counts once it is.
    """

    def __init__(self, of: Sequence[nodes.Node] = (), held: Iterable[holdings.Holding] = ()) -> None:
        self.nodes: dict[str, freenodes.FreeNode] = {}
        self.types: dict[str, int] = {}  # number of nodes by type of device
        self._absent: dict[str, freenodes.FreeNode] = {}  # nodes with holdings that are not declared
        self._of: tuple[nodes.Node, ...] = ()
        self._running: dict[int, plans.Running] = {}  # by identity
        self._kinds: dict[object, shapes.Kind] = {}
        self._states: dict[object, shapes.State] = {}
        self._indexes: dict[shapes.Shape, indexes.Index] = {}  # the one used last comes last
        self._log: list[indexes.Change] = []
        self._ready: list[freenodes.FreeNode] | None = None
        self._levels: dict[str, dict[str, str]] = {}
        self._members: dict[str, dict[str, list[freenodes.FreeNode]]] = {}
        self._done: list[tuple[tuple[holdings.Holding, ...], int]] = []
        self._free = [0, 0, 0, 0]
        self._total = [0, 0, 0, 0]
        self._know(tuple(of))
        self.take(held)

    # Contents

    def ready(self) -> list[freenodes.FreeNode]:
        """Return the nodes that take new tasks of some gang, by name. Do not change the list."""
        if self._ready is None:
            self._ready = [node for node in self.nodes.values() if node.node.open]
        return self._ready

    def free(self) -> holdings.Resources:
        """Return the free amount of the ready nodes."""
        return holdings.Resources(*self._free)

    def exceeds(self, amount: amounts.Amount) -> bool:
        """Return whether `amount` is more than the free amount, in sum."""
        cpus, memory, gpus, milli = self._free
        return amount[0] > gpus * 1000 + milli or amount[1] > cpus or amount[2] > memory

    def total(self) -> holdings.Resources:
        """Return the capacity of all nodes, ready or not."""
        return holdings.Resources(*self._total)

    def holds(self, claims: Iterable[holdings.Holding], constraints: nodes.Constraints | None = None) -> bool:
        """Return whether all these claims of a gang with these constraints are free now, together."""
        taken: list[tuple[freenodes.FreeNode, holdings.Holding]] = []
        for claim in claims:
            node = self.nodes.get(claim.node)
            if node is None or not node.node.open or not node.kind.admits(constraints) or not node.has(claim):
                break
            node.take(claim)
            taken.append((node, claim))
        else:
            claims = ()
        for node, claim in reversed(taken):
            node.take(claim, -1)
        return claims == ()

    def domains(self, level: str) -> list[list[freenodes.FreeNode]]:
        """Return the nodes that take new tasks by domain, the domain with the least free resources first."""
        groups = ([node for node in members if node.node.open] for members in self._by_domain(level).values())
        return sorted((group for group in groups if group), key=_total_free)

    def members(self, level: str, domain: str) -> list[freenodes.FreeNode]:
        """Return the nodes of one domain by name, ready or not."""
        return self._by_domain(level).get(domain, [])

    def levels(self, level: str) -> dict[str, str]:
        """Return the domain of each node by its name; nodes in no domain of that level are left out."""
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
        """Yield, for each set of ready nodes with the same free resources, one of them and their number."""
        return ((self.nodes[state.names[0]], len(state.names)) for state in self._states.values() if state.names)

    # Number of tasks that fit

    def slots(self, ask: plans.Ask, *, mixed: bool = False) -> int:
        """Return the number of tasks of `ask` that would fit now in all, on one type of GPU unless `mixed`.

        It is exact for tasks of this ask alone, without a topology; otherwise it is an upper bound.
        """
        if mixed or not (ask.amount.gpus or ask.amount.gpu_milli):
            return self.index(shapes.shape(ask, None)).total
        kinds = [kind for kind in ask.gpu_types or self.types if kind in self.types]
        return max((self.index(shapes.shape(ask, kind)).total for kind in kinds), default=0)

    def index(self, shape: shapes.Shape) -> indexes.Index:
        """Return the index for tasks of that shape, up to date."""
        index = self._indexes.get(shape)
        if index is None or index.seen < len(self._log):
            self._indexes.pop(shape, None)
            if index is None or self._lags(index):
                index = indexes.Index(shape, self._states.values(), len(self._log))
                if len(self._indexes) >= MAX_INDEXES:
                    del self._indexes[next(iter(self._indexes))]
            else:
                index.follow(self._log)
            self._indexes[shape] = index
        return index

    def _lags(self, index: indexes.Index) -> bool:
        """Return whether the index is so far behind that a new one costs less."""
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
        """Take claims, or (-1) give them back. The caller moves the nodes in `touched` to their states."""
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
        """Put nodes among those with the same free resources; nodes that take no new tasks among none."""
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
        """Become the free space of this snapshot, equal to a new one made from it.

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
        """Take in nodes that came, went, or changed."""
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
        """Return a node that is not declared: it has no capacity, and its holdings are remembered."""
        node = nodes.Node(name=name, capacity=NOTHING, ready=False)
        return node, self._kind(node)

    def _tidy(self) -> None:
        """Drop cached values now and then, so that memory does not grow with time."""
        if len(self._log) <= MAX_LOG:
            return
        asked = len(self._log) - MAX_LAG  # an index that lags further behind was not used for long
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


def _total_free(nodes: Sequence[freenodes.FreeNode]) -> tuple[int, int, int]:
    return sum(space.gpus for space in nodes), sum(space.cpus for space in nodes), sum(space.memory for space in nodes)
