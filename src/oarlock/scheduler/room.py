"""What is free on the nodes, as a transaction: a gang is tried in it, and kept whole or discarded whole.

Made once, then only ever changed: by what is taken and given back (undone by `rollback`), and from one snapshot to the
next by what differs. Nodes that have the same left are kept together (`shapes.State`), and how many tasks of a shape
would fit is known without looking at the nodes (`indexed.Index`).
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator, KeysView, Sequence
from functools import lru_cache
from itertools import chain, repeat
from operator import is_

from oarlock.scheduler import shapes
from oarlock.scheduler import slots as indexed
from oarlock.spec import holdings, nodes, plans

NOTHING = holdings.Resources()
MAX_INDEXES = 512
MAX_LOG = 10_000
MAX_LAG = 1_000
MAX_WAYS = 20_000
MAX_STATES = 1000


class NodeRoom:
    """One node: what is free of it, and which devices and ports."""

    __slots__ = (
        "_odd",
        "_ports",
        "_taken",
        "cpus",
        "gpus",
        "kind",
        "memory",
        "milli",
        "name",
        "node",
        "state",
    )

    def __init__(self, node: nodes.Node, kind: shapes.Kind) -> None:
        self.node = node
        self.name = node.name
        self.kind = kind
        self.cpus = node.capacity.cpus_milli  # all four: free
        self.memory = node.capacity.memory_bytes
        self.gpus = node.capacity.gpus
        self.milli = node.capacity.gpu_milli
        self._ports: dict[int, int] = {}  # by how many
        self._taken = 0  # bit i: the device with index i is taken as a whole
        self._odd: dict[int, int] = {}  # of other devices in use: how many thousandths are taken
        self.state: shapes.State | None = None

    def become(self, node: nodes.Node, kind: shapes.Kind) -> None:
        """The same machine, known anew; what is held of it is still held."""
        self.cpus += node.capacity.cpus_milli - self.node.capacity.cpus_milli
        self.memory += node.capacity.memory_bytes - self.node.capacity.memory_bytes
        self.gpus += node.capacity.gpus - self.node.capacity.gpus
        self.milli += node.capacity.gpu_milli - self.node.capacity.gpu_milli
        self.node = node
        self.kind = kind

    @property
    def free(self) -> holdings.Resources:
        """The capacity less what is held: a share of a device is missing from `gpu_milli`."""
        return holdings.Resources(self.cpus, self.memory, self.gpus, self.milli)

    @property
    def ports_taken(self) -> KeysView[int]:
        return self._ports.keys()

    @property
    def used(self) -> bool:
        return self.free != self.node.capacity or bool(self._taken or self._odd or self._ports)

    @property
    def whole(self) -> int:
        """The untouched devices, as a bit mask."""
        mask = self.kind.mask & ~self._taken
        for device in self._odd:
            mask &= ~(1 << device)
        return mask

    @property
    def devices(self) -> dict[int, nodes.Device]:
        """The untouched devices by their index."""
        mask = self.whole
        return {device.index: device for device in self.node.devices if mask >> device.index & 1}

    def shares(self, device: int) -> int:
        """How many thousandths of a device are free."""
        bit = 1 << device
        if not self.kind.mask & bit or self._taken & bit:
            return 0
        return max(0, shapes.DEVICE_MILLI - self._odd.get(device, 0))

    def cuts(self, group: shapes.Group) -> list[tuple[int, int]]:
        """What is left of each shared device of the group, in thousandths, and its index; ascending."""
        return sorted(
            (left, device) for device in self._odd if group.mask >> device & 1 and (left := self.shares(device))
        )

    def domain(self, level: str) -> str | None:
        """The name of its domain of that level, None where it is in none."""
        if level == "node":
            return self.name
        return self.node.domains.get(level) or (self.name if level == "nvlink" else None)

    def path(self) -> tuple[str, ...]:
        """Where it stands: near ones are near each other in this order."""
        domains = self.node.domains
        return domains.get("zone", ""), domains.get("rack", ""), domains.get("nvlink", ""), self.name

    def slots(self, index: indexed.Index) -> int:
        """How many tasks of the index's shape it takes."""
        return 0 if self.state is None else index.count(self.state)

    def has(self, claim: holdings.Holding) -> bool:
        """Whether all of the claim is free."""
        amount = claim.amount
        if amount.cpus_milli > max(self.cpus, 0) or amount.memory_bytes > max(self.memory, 0):
            return False
        if amount.gpu_milli:
            devices = all(self.shares(device) >= amount.gpu_milli for device in claim.devices)
        else:
            devices = len(claim.devices) == amount.gpus and not mask(claim.devices) & ~self.whole
        if not devices or any(port in self._ports for port in claim.ports):
            return False
        ports = self.node.ports
        return not claim.ports or (ports is not None and ports[0] <= min(claim.ports) <= max(claim.ports) <= ports[1])

    def claims(self, job: str, ask: plans.Ask, need: shapes.Shape, places: Iterable[int]) -> list[holdings.Holding]:
        """The holdings that these tasks of `ask` (by their index) would have here. They must fit."""
        devices = self._shared(need) if need.milli else self._untouched(need)
        ports = self._free_blocks(need.ports)
        return [
            holdings.Holding(
                job=job,
                attempt=0,
                role=ask.role,
                index=place,
                node=self.name,
                amount=ask.amount,
                devices=next(devices),
                ports=next(ports),
            )
            for place in places
        ]

    def _untouched(self, need: shapes.Shape) -> Iterator[tuple[int, ...]]:
        """Devices for one task after the other: of those with less memory first, then by their index."""
        if not need.gpus:
            yield from repeat(())
        free: list[int] = []
        for place in self.kind.suiting(need):
            free += indexes(self.whole & self.kind.groups[place].mask)
        for start in range(0, len(free), need.gpus):
            yield tuple(free[start : start + need.gpus])

    def _shared(self, need: shapes.Shape) -> Iterator[tuple[int, ...]]:
        """The device for one share after the other: of one that is shared already, the fullest with room, if any."""
        groups = [self.kind.groups[place] for place in self.kind.suiting(need)]
        for left, device in sorted(cut for group in groups for cut in self.cuts(group)):
            yield from repeat((device,), left // need.milli)
        for group in groups:
            for device in indexes(self.whole & group.mask):
                yield from repeat((device,), shapes.DEVICE_MILLI // need.milli)

    def _free_blocks(self, size: int) -> Iterator[tuple[int, ...]]:
        """Blocks of ports; empty ones where every task has an address of its own."""
        ports = self.node.ports
        if ports is None or size == 0:
            yield from repeat(())
        else:
            for start in range(ports[0], ports[1] - size + 2, size):
                block = range(start, start + size)
                if not any(port in self._ports for port in block):
                    yield tuple(block)

    def take(self, claim: holdings.Holding, times: int = 1) -> None:
        """`times` -1 gives it back."""
        amount = claim.amount
        self.cpus -= times * amount.cpus_milli
        self.memory -= times * amount.memory_bytes
        self.gpus -= times * amount.gpus
        self.milli -= times * amount.gpu_milli
        if claim.devices:
            self._take_devices(claim.devices, times * amount.gpu_milli, times)
        for port in claim.ports:
            holders = self._ports.get(port, 0) + times
            if holders:
                self._ports[port] = holders
            else:
                del self._ports[port]

    def _take_devices(self, devices: tuple[int, ...], milli: int, times: int) -> None:
        if not milli and not self._odd:
            bits = mask(devices)
            if times > 0 and not bits & self._taken:
                self._taken |= bits
                return
            if times < 0 and bits & self._taken == bits:
                self._taken &= ~bits
                return
        for device in devices:
            bit = 1 << device
            used = shapes.DEVICE_MILLI if self._taken & bit else self._odd.pop(device, 0)
            self._taken &= ~bit
            used += milli or times * shapes.DEVICE_MILLI
            if used == shapes.DEVICE_MILLI:
                self._taken |= bit
            elif used:
                self._odd[device] = used

    def left(self) -> tuple[shapes.Kind, int, int, tuple[int, ...], tuple[tuple[int, ...], ...], tuple[int, ...]]:
        """What all nodes in one state have in common."""
        kind, whole = self.kind, self.whole
        counts = tuple([(group.mask & whole).bit_count() for group in kind.groups])
        cuts = kind.uncut
        if self._odd:
            cuts = tuple(tuple(left for left, _ in self.cuts(group)) for group in kind.groups)
        return kind, self.cpus, self.memory, counts, cuts, tuple(sorted(self._ports)) if self._ports else ()


class Room:
    """All nodes' room. What is taken and given back after a `mark` is undone by `rollback`.

    `held` is taken from the beginning; so is what the jobs hold that `follow` is told of. A claim on a node that is not
    there counts once it is.
    """

    def __init__(self, of: Sequence[nodes.Node] = (), held: Iterable[holdings.Holding] = ()) -> None:
        self.nodes: dict[str, NodeRoom] = {}
        self.types: dict[str, int] = {}  # of devices: how many nodes have such
        self._absent: dict[str, NodeRoom] = {}  # of which something is held
        self._of: tuple[nodes.Node, ...] = ()
        self._running: dict[int, plans.Running] = {}  # by identity
        self._kinds: dict[object, shapes.Kind] = {}
        self._states: dict[object, shapes.State] = {}
        self._indexes: dict[shapes.Shape, indexed.Index] = {}  # the one that was asked last comes last
        self._log: list[indexed.Change] = []
        self.ways: dict[object, tuple[tuple[shapes.Shape, ...], ...]] = {}  # kept for `placement`
        self._ready: list[NodeRoom] | None = None
        self._levels: dict[str, dict[str, str]] = {}
        self._members: dict[str, dict[str, list[NodeRoom]]] = {}
        self._done: list[tuple[tuple[holdings.Holding, ...], int]] = []
        self._free = [0, 0, 0, 0]
        self._total = [0, 0, 0, 0]
        self._know(tuple(of))
        self.take(held)

    # What there is

    def ready(self) -> list[NodeRoom]:
        """By name. The list is the room's own: not to be changed."""
        if self._ready is None:
            self._ready = [node for node in self.nodes.values() if node.node.ready]
        return self._ready

    def free(self) -> holdings.Resources:
        """Of the ready nodes."""
        return holdings.Resources(*self._free)

    def total(self) -> holdings.Resources:
        """The capacity of all nodes, ready or not."""
        return holdings.Resources(*self._total)

    def holds(self, claims: Iterable[holdings.Holding]) -> bool:
        """Whether all of these are free now, together."""
        taken: list[tuple[NodeRoom, holdings.Holding]] = []
        for claim in claims:
            node = self.nodes.get(claim.node)
            if node is None or not node.node.ready or not node.has(claim):
                break
            node.take(claim)
            taken.append((node, claim))
        else:
            claims = ()
        for node, claim in reversed(taken):
            node.take(claim, -1)
        return claims == ()

    def domains(self, level: str) -> list[list[NodeRoom]]:
        """The ready nodes by their domain of that level, the domain with the least room first."""
        groups = ([node for node in members if node.node.ready] for members in self._by_domain(level).values())
        return sorted((group for group in groups if group), key=_total_free)

    def members(self, level: str, domain: str) -> list[NodeRoom]:
        """The nodes of one domain, ready or not, by name."""
        return self._by_domain(level).get(domain, [])

    def levels(self, level: str) -> dict[str, str]:
        """The nodes' domains of that level, by their names; those that are in none are left out."""
        known = self._levels.get(level)
        if known is None:
            domains = ((name, node.domain(level)) for name, node in self.nodes.items())
            known = self._levels[level] = {name: domain for name, domain in domains if domain is not None}
        return known

    def _by_domain(self, level: str) -> dict[str, list[NodeRoom]]:
        known = self._members.get(level)
        if known is None:
            known = self._members[level] = {}
            for name, domain in self.levels(level).items():
                known.setdefault(domain, []).append(self.nodes[name])
        return known

    # How much would fit

    def slots(self, ask: plans.Ask, *, mixed: bool = False) -> int:
        """How many tasks of `ask` would fit now in all, on one type of GPU unless `mixed`.

        Exact for tasks of this ask alone, within no domain; an upper bound where others come along.
        """
        if mixed or not (ask.amount.gpus or ask.amount.gpu_milli):
            return self.index(shapes.shape(ask, None)).total
        kinds = [kind for kind in ask.gpu_types or self.types if kind in self.types]
        return max((self.index(shapes.shape(ask, kind)).total for kind in kinds), default=0)

    def index(self, shape: shapes.Shape) -> indexed.Index:
        """The slots for tasks of that shape, as of now."""
        index = self._indexes.get(shape)
        if index is None or index.seen < len(self._log):
            self._indexes.pop(shape, None)
            if index is None or self._lags(index):
                index = indexed.Index(shape, self._states_for(shape), len(self._log))
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
        """Whether fewer than `count` such tasks fit in all. Most often the devices alone say so, for many shapes."""
        if shape not in self._indexes and self.index(shape.devices_only).total < count:
            return True
        return self.index(shape).total < count

    def _lags(self, index: indexed.Index) -> bool:
        """Whether it is so far behind that it is better made anew."""
        return len(self._log) - index.seen > 4 * len(self.nodes if index.tables else self._states) + 100

    # The transaction

    def mark(self) -> int:
        return len(self._done)

    def rollback(self, mark: int) -> None:
        """Undo what was taken and given back since `mark`."""
        touched: dict[str, NodeRoom] = {}
        self._undo(mark, touched)
        self._move(touched.values())

    def _undo(self, mark: int, touched: dict[str, NodeRoom]) -> None:
        while len(self._done) > mark:
            claims, times = self._done.pop()
            self._apply(claims, -times, touched)

    def take(self, claims: Iterable[holdings.Holding]) -> None:
        self._do(tuple(claims), 1)

    def give_back(self, claims: Iterable[holdings.Holding]) -> None:
        self._do(tuple(claims), -1)

    def _do(self, claims: tuple[holdings.Holding, ...], times: int) -> None:
        self._done.append((claims, times))
        touched: dict[str, NodeRoom] = {}
        self._apply(claims, times, touched)
        self._move(touched.values())
        self._absent = {name: node for name, node in self._absent.items() if node.used}
        self._tidy()

    def _apply(self, claims: Iterable[holdings.Holding], times: int, touched: dict[str, NodeRoom]) -> None:
        """Take claims, or (-1) give them back. The nodes that are `touched` are to be moved to their states then."""
        free = self._free
        for claim in claims:
            name = claim.node
            node = self.nodes.get(name) or self._absent.get(name)
            if node is None:
                node = self._absent[name] = NodeRoom(*self._nowhere(name))
            node.take(claim, times)
            touched[name] = node
            if node.state is not None:
                amount = claim.amount
                free[0] -= times * amount.cpus_milli
                free[1] -= times * amount.memory_bytes
                free[2] -= times * amount.gpus
                free[3] -= times * amount.gpu_milli

    def _move(self, touched: Iterable[NodeRoom]) -> None:
        """Put nodes among those that have the same left; nowhere where they are not ready."""
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
        self._log += [indexed.Change(old, new, names) for (old, new), names in moved.items()]

    def _state(self, node: NodeRoom) -> shapes.State | None:
        if not node.node.ready:
            return None
        left = node.left()
        state = self._states.get(left)
        if state is None:
            state = self._states[left] = shapes.State(*left)
        return state

    # From one snapshot to the next

    def follow(self, of: Sequence[nodes.Node], running: Sequence[plans.Running]) -> None:
        """Become the room of this snapshot: what a room made of it afresh would be.

        Earlier marks mean nothing then. What is the same object as in the last snapshot is not looked at.
        """
        touched: dict[str, NodeRoom] = {}
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
            room = self._absent.pop(name, None) or NodeRoom(*self._nowhere(name))
            self.nodes[name] = room
            self._become(room, there[name])
        if come:
            self.nodes = {name: self.nodes[name] for name in sorted(self.nodes)}
        self.ways.clear()
        self._ready = None
        self._levels.clear()
        self._members.clear()
        for index in self._indexes.values():
            index.tables.clear()

    def _leave(self, node: NodeRoom) -> None:
        self._become(node, self._nowhere(node.name)[0])
        if node.used:
            self._absent[node.name] = node

    def _become(self, room: NodeRoom, node: nodes.Node) -> None:
        before, free_before = room.node, room.free if room.state is not None else NOTHING
        room.become(node, self._kind(node))
        self._move([room])
        _add(self._total, node.capacity, before.capacity)
        _add(self._free, room.free if room.state is not None else NOTHING, free_before)
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


@lru_cache(maxsize=4096)
def mask(devices: tuple[int, ...]) -> int:
    """The indexes of devices as bits."""
    bits = 0
    for device in devices:
        bits |= 1 << device
    return bits


def indexes(bits: int) -> Iterator[int]:
    """The other way round, ascending."""
    while bits:
        lowest = bits & -bits
        yield lowest.bit_length() - 1
        bits ^= lowest


def _add(sums: list[int], plus: holdings.Resources, minus: holdings.Resources) -> None:
    sums[0] += plus.cpus_milli - minus.cpus_milli
    sums[1] += plus.memory_bytes - minus.memory_bytes
    sums[2] += plus.gpus - minus.gpus
    sums[3] += plus.gpu_milli - minus.gpu_milli


def _total_free(rooms: Sequence[NodeRoom]) -> tuple[int, int, int]:
    return sum(room.gpus for room in rooms), sum(room.cpus for room in rooms), sum(room.memory for room in rooms)
