"""Who is looked at first: every leaf's policy orders its gangs, and the leaf that is furthest below its entitlement
goes next.

A policy is asked about all gangs of its leaf. One that ranks each gang by itself (`port.ranking`) is asked about those
that have come since the last plan; the others that wait stand where they stood.
"""

from __future__ import annotations

import bisect
import heapq
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple, Protocol, Self

import msgspec

from oarlock.scheduler import curves as speeds
from oarlock.scheduler import profiles, rolls
from oarlock.scheduler import usage as usages
from oarlock.scheduler.policies import known, port
from oarlock.spec import curves, holdings, nodes, plans, pools

Key = tuple[float | str, ...]
Arrival = tuple[float, str]


class Turn(msgspec.Struct, frozen=True, gc=False):
    """One wish, its candidate, and of its policy whether it has decided the size, and whether places are kept for its
    gangs. `alike`: what holds for another one of its kin holds for it.
    """

    wish: port.Wish
    candidate: port.Candidate
    profile: profiles.Profile
    sizing: bool = False
    reserves: bool = True
    alike: bool = False

    @classmethod
    def new(
        cls, wish: port.Wish, candidate: port.Candidate, profile: profiles.Profile, *, sizing: bool, reserves: bool
    ) -> Self:
        alike = profile.plain and candidate.running is None and not wish.beside
        return cls(wish, candidate, profile, sizing, reserves, alike)

    @property
    def runs(self) -> bool:
        """Whether it has a place that it may keep."""
        running = self.candidate.running
        return running is not None and not running.stopping

    def batch(self, size: plans.Size) -> curves.Batch | None:
        """The batch size that was decided for it, if it gets the size for which it was decided."""
        return self.wish.batch if self.wish.size == size else None


class Queue(Protocol):
    """The turns of one leaf, in the order of its policy: of those that wait, or have lost their place; of those that
    run as well, where the policy decides sizes.
    """

    def __iter__(self) -> Iterator[Turn]: ...

    @property
    def first(self) -> Arrival: ...


class Ranking(NamedTuple):
    """How a leaf's policy ranks its gangs, and whether places are kept for them."""

    rank: port.Ranking
    reserves: bool


class Standing:
    """The waiting gangs of one leaf whose policy ranks them, kept in order from one snapshot to the next."""

    def __init__(self, rank: port.Ranking, profiled: profiles.Profiles, *, reserves: bool) -> None:
        self.rank = rank
        self._reserves = reserves
        self.entries: list[tuple[Key, Turn]] = []
        self._profiled = profiled
        self._keys: dict[int, Key] = {}

    def entry(self, one: port.Candidate) -> tuple[Key, Turn]:
        standing = self.rank(one)
        profile = self._profiled.of(one.gang)
        wish = port.wish(one, standing)
        return standing.key, Turn.new(wish, one, profile, sizing=False, reserves=self._reserves)

    def remove(self, gang: plans.Gang) -> None:
        key = self._keys.pop(id(gang))
        del self.entries[bisect.bisect_left(self.entries, (key,))]

    def add(self, gang: plans.Gang) -> None:
        entry = self.entry(port.Candidate(gang=gang, served_s=gang.served_s))
        self._keys[id(gang)] = entry[0]
        bisect.insort(self.entries, entry, key=_key)


class Standings:
    """By leaf. They are made anew when what the gangs are ranked by has changed."""

    def __init__(self, profiled: profiles.Profiles) -> None:
        self._profiled = profiled
        self._by_leaf: dict[str, Standing] = {}
        self._ranked_by: object = None

    def follow(self, snapshot: plans.Snapshot, roll: rolls.Roll, rankings: Mapping[str, Ranking], by: object) -> None:
        """`rankings` by leaf; `by` says what they are, in values that can be compared."""
        if by == self._ranked_by:
            for gang in roll.waiting_went:
                if (standing := self._by_leaf.get(_leaf(gang, rankings))) is not None:
                    standing.remove(gang)
            came: Iterable[plans.Gang] = roll.waiting_came
        else:
            self._by_leaf, self._ranked_by, came = {}, by, snapshot.waiting
        for gang in came:
            leaf = _leaf(gang, rankings)
            if leaf in rankings:
                if leaf not in self._by_leaf:
                    self._by_leaf[leaf] = self.new(rankings[leaf])
                self._by_leaf[leaf].add(gang)

    def of(self, leaf: str, ranking: Ranking) -> Standing:
        standing = self._by_leaf.get(leaf)
        return self.new(ranking) if standing is None else standing

    def new(self, ranking: Ranking) -> Standing:
        return Standing(ranking.rank, self._profiled, reserves=ranking.reserves)


class Ranked:
    """A leaf whose policy ranks each gang by itself."""

    sizes = False

    def __init__(self, standing: Standing, returning: Iterable[port.Candidate]) -> None:
        self._standing = standing
        self._back = [standing.entry(one) for one in returning]
        heapq.heapify(self._back)
        self._turns: dict[str, tuple[Key, Turn]] = {}
        self._levels: dict[str, float] = {}
        heads = sorted((*standing.entries[:1], *self._back[:1]), key=_key)
        self.first = heads[0][1].candidate.arrival if heads else (0.0, "")

    def __iter__(self) -> Iterator[Turn]:
        back = self._back
        for key, turn in self._standing.entries:
            while back and back[0][0] < key:
                yield heapq.heappop(back)[1]
            yield turn
        while back:
            yield heapq.heappop(back)[1]

    def turn(self, one: port.Candidate) -> Turn:
        return self._entry(one)[1]

    def level(self, one: port.Candidate) -> float:
        level = self._levels.get(one.gang.job)
        if level is None:
            level = self._levels[one.gang.job] = self._standing.rank(one).level
        return level

    def back(self, turn: Turn) -> None:
        """Its place was taken in this plan: it has a turn after all."""
        heapq.heappush(self._back, self._entry(turn.candidate))

    def _entry(self, one: port.Candidate) -> tuple[Key, Turn]:
        entry = self._turns.get(one.gang.job)
        if entry is None:
            entry = self._turns[one.gang.job] = self._standing.entry(one)
        return entry


class Listed:
    """A leaf whose policy looks at all its gangs together."""

    def __init__(self, turns: list[Turn]) -> None:
        self.turns = turns
        self._place = {turn.wish.job: place for place, turn in enumerate(turns)}
        self._lost: set[str] = set()
        self._missed: list[int] = []  # places in the order that were passed before they were lost
        self.first = next((turn.candidate.arrival for turn in turns if turn.sizing or not turn.runs), (0.0, ""))
        self._at = -1
        self.sizes = bool(turns) and turns[0].sizing

    def __iter__(self) -> Iterator[Turn]:
        """Who loses its place when others that rank lower have had their turns has the next."""
        for place, turn in enumerate(self.turns):
            self._at = place
            if self._missed:
                yield from self._passed()
            if turn.sizing or not turn.runs or turn.wish.job in self._lost:
                yield turn
        self._at = len(self.turns)
        yield from self._passed()

    def _passed(self) -> Iterator[Turn]:
        while self._missed:
            yield self.turns[heapq.heappop(self._missed)]

    def turn(self, one: port.Candidate) -> Turn:
        return self.turns[self._place[one.gang.job]]

    def level(self, one: port.Candidate) -> float:
        return self.turn(one).wish.level

    def back(self, turn: Turn) -> None:
        """Its place was taken in this plan: it has a turn after all."""
        place = self._place[turn.wish.job]
        self._lost.add(turn.wish.job)
        if place < self._at and not turn.sizing:
            heapq.heappush(self._missed, place)


class Deferred(list[Turn]):
    """Those of a leaf that are looked at again at the end, in the order in which they had their turns."""

    @property
    def first(self) -> Arrival:
        return self[0].candidate.arrival if self else (0.0, "")


class Order:
    """The queues of all leaves; of the one leaf "" where nothing bounds the only pool."""

    def __init__(
        self,
        snapshot: plans.Snapshot,
        now: float,
        usage: usages.Usage,
        budget: port.Budget,
        profiled: profiles.Profiles,
        roll: rolls.Roll,
        standings: Standings,
    ) -> None:
        self._snapshot = snapshot
        self._now = now
        self._usage = usage
        self._profiled = profiled
        self._roll = roll
        self._candidates: dict[str, port.Candidate] = {}
        self._rules = snapshot.rules
        leaves = self._leaves()
        policies = {leaf: self._policy(leaf) for leaf in leaves}
        found = {leaf: port.ranking(policy, self._given(policy)) for leaf, policy in policies.items()}
        rankings = {leaf: Ranking(rank, policies[leaf].reserves) for leaf, rank in found.items() if rank is not None}
        by = [(leaf, policies[leaf].name, self._given(policies[leaf])) for leaf in rankings]
        standings.follow(snapshot, roll, rankings, by)
        listed = self._listed(leaves - rankings.keys())
        returning: dict[str, list[port.Candidate]] = {}
        for job in roll.stopping:
            if job.returns:
                returning.setdefault(self.leaf(job.gang), []).append(self.candidate(job))
        self.queues: dict[str, Ranked | Listed] = {}
        for leaf in sorted(leaves):
            if leaf in rankings:
                self.queues[leaf] = Ranked(standings.of(leaf, rankings[leaf]), returning.get(leaf, ()))
            else:
                share = _budget(budget, leaf, usage)
                self.queues[leaf] = Listed(self._turns(policies[leaf], listed[leaf], share))

    def leaf(self, gang: plans.Gang) -> str:
        return "" if self._usage.single else gang.pool

    def turn(self, running: plans.Running) -> Turn:
        """What its policy says of one that runs, or is being stopped."""
        return self.queues[self.leaf(running.gang)].turn(self.candidate(running))

    def level(self, running: plans.Running) -> float:
        return self.queues[self.leaf(running.gang)].level(self.candidate(running))

    def extras_level(self, running: plans.Running) -> float:
        """Of what it has above its least."""
        level = self.turn(running).wish.extras_level
        return self.level(running) if level is None else level

    def sizes(self, leaf: str) -> bool:
        """Whether the leaf's policy decides sizes."""
        queue = self.queues.get(leaf)
        return queue is not None and queue.sizes

    def back(self, running: plans.Running) -> None:
        """Its place was taken in this plan."""
        self.queues[self.leaf(running.gang)].back(self.turn(running))

    def noted(self) -> list[Turn]:
        """Of those for whom a place was found in an earlier plan, the first to come first: those too that are being
        stopped.
        """
        waiting = [self._roll.candidate(gang) for gang in self._roll.noted.values()]
        stopping = [self.candidate(job) for job in self._roll.stopping if job.returns]
        found = [self.queues[self.leaf(one.gang)].turn(one) for one in (*waiting, *stopping)]
        return sorted(found, key=lambda turn: turn.candidate.arrival)

    def listed(self) -> Iterator[Turn]:
        """Of the policies that look at all their gangs together."""
        return (turn for queue in self.queues.values() if isinstance(queue, Listed) for turn in queue.turns)

    def candidate(self, job: plans.Running) -> port.Candidate:
        one = self._candidates.get(job.gang.job)
        if one is None:
            held_s = max(0.0, self._now - job.started_at) * self._profiled.held(job).weight
            one = self._candidates[job.gang.job] = port.Candidate(
                gang=job.gang, running=job, served_s=job.gang.served_s + held_s
            )
        return one

    def _leaves(self) -> set[str]:
        if self._usage.single:
            return {""}
        waiting = {pool for pool, gangs in self._roll.pools.items() if gangs}
        return waiting | {job.gang.pool for job in self._snapshot.running}

    def _policy(self, leaf: str) -> port.Policy:
        pool = self._usage.pools.get(leaf or pools.DEFAULT)
        return known.named((pool.policy if pool else None) or self._rules.policy)

    def _given(self, policy: port.Policy) -> Mapping[str, float]:
        return self._rules.policies.get(policy.name, {})

    def _listed(self, leaves: set[str]) -> dict[str, list[port.Candidate]]:
        """All of these leaves' gangs; but who is being stopped for good wants nothing more."""
        found: dict[str, list[port.Candidate]] = {leaf: [] for leaf in leaves}
        for pool, gangs in self._roll.pools.items():
            if (leaf := "" if self._usage.single else pool) in leaves:
                found[leaf] += [self._roll.candidate(gang) for gang in gangs.values()]
        for job in self._snapshot.running if leaves else ():
            if (leaf := self.leaf(job.gang)) in leaves and (job.returns or not job.stopping):
                found[leaf].append(self.candidate(job))
        return found

    def _turns(self, policy: port.Policy, ones: list[port.Candidate], budget: port.Budget) -> list[Turn]:
        by_job = {one.gang.job: one for one in ones}
        wishes = policy.wishes(ones, budget, self._now, self._rules, self._given(policy))
        of, sizing, reserves = self._profiled.of, policy.sizing, policy.reserves
        return [
            Turn.new(wish, one, of(one.gang), sizing=sizing, reserves=reserves)
            for wish in wishes
            for one in (_narrowed(by_job[wish.job], wish.on),)
        ]


def _narrowed(one: port.Candidate, gpu_type: str) -> port.Candidate:
    """Return one that waits as if it asked for that type alone, where its policy has decided on a type."""
    if not gpu_type or one.running is not None:
        return one
    return msgspec.structs.replace(one, gang=plans.on(one.gang, gpu_type))


def by_need(queues: Mapping[str, Queue], usage: usages.Usage) -> Iterator[Turn]:
    """The leaf with the least of its entitlement first; of equal ones the one whose first gang came first. Whoever
    takes from it counts in `usage` what it grants, so that the next turn is the right leaf's.
    """
    turns = {leaf: iter(queue) for leaf, queue in queues.items()}
    heap = [(usage.ratio(leaf), queue.first, leaf) for leaf, queue in queues.items()]
    heapq.heapify(heap)
    given_up = usage.given_up
    while heap:
        _, first, leaf = heap[0]
        changes = usage.changes
        for turn in turns[leaf]:
            yield turn
            if usage.changes != changes:
                break
        else:
            heapq.heappop(heap)
            continue
        if usage.given_up != given_up:  # other leaves may have it
            given_up = usage.given_up
            heap = [(usage.ratio(other), first, other) for _, first, other in heap]
            heapq.heapify(heap)
        else:
            heapq.heapreplace(heap, (usage.ratio(leaf), first, leaf))


def budget(ready: Iterable[nodes.Node], ended: tuple[plans.Ended, ...] = ()) -> port.Budget:
    """Return all that these nodes have, and who has ended so far."""
    devices, amount, by_type = [], holdings.Resources(), dict[str, list[nodes.Node]]()
    for node in ready:
        devices.append(len(node.devices))
        amount += node.capacity
        for name in {device.type for device in node.devices}:
            by_type.setdefault(name, []).append(node)
    several = len(by_type) > 1
    return port.Budget(
        amount=amount,
        node_devices=tuple(sorted(devices, reverse=True)),
        ended=ended,
        types=tuple(_share(name, by_type[name]) for name in sorted(by_type)) if several else (),
        type_of=_types_by_place(by_type) if several else {},
    )


def _types_by_place(by_type: Mapping[str, Iterable[nodes.Node]]) -> dict[str, str]:
    """Return the type of each node, and of each device (`node/index`) of a node that has several types."""
    found: dict[str, str] = {}
    mixed: dict[str, nodes.Node] = {}
    for name, of in by_type.items():
        for node in of:
            if node.name in found:
                mixed[node.name] = node
            found[node.name] = name
    for node in mixed.values():
        del found[node.name]
        found |= {f"{node.name}/{device.index}": device.type for device in node.devices}
    return found


def _share(name: str, of: Iterable[nodes.Node]) -> port.TypeShare:
    alike = [[device for device in node.devices if device.type == name] for node in of]
    return port.TypeShare(
        gpu_type=name,
        devices=sum(map(len, alike)),
        per_node=speeds.node_size([len(devices) for devices in alike]),
        memory_bytes=min(device.memory_bytes for devices in alike for device in devices),
    )


def _budget(whole: port.Budget, leaf: str, usage: usages.Usage) -> port.Budget:
    """What a leaf may divide: its entitlement, or all there is where nothing bounds it."""
    if usage.single:
        return whole
    entitled, amount = usage.entitled.get(leaf, {}), whole.amount
    return port.Budget(
        amount=holdings.Resources(
            cpus_milli=min(amount.cpus_milli, int(entitled.get("cpus", amount.cpus_milli / 1000) * 1000 + 0.5)),
            memory_bytes=min(amount.memory_bytes, int(entitled.get("memory", amount.memory_bytes))),
            gpus=min(amount.gpus, int(entitled.get("gpus", amount.gpus) + usages.SLACK)),
        ),
        node_devices=whole.node_devices,
        ended=whole.ended,
        types=_types(whole, entitled.get("gpus")),
        type_of=whole.type_of,
    )


def _types(whole: port.Budget, entitled: float | None) -> tuple[port.TypeShare, ...]:
    """Return the same part of each type as the leaf is entitled to of all GPUs."""
    if entitled is None or not whole.amount.gpus:
        return whole.types
    part = min(1.0, (entitled + usages.SLACK) / whole.amount.gpus)
    return tuple(msgspec.structs.replace(one, devices=int(one.devices * part + 0.5)) for one in whole.types)


def _leaf(gang: plans.Gang, rankings: Mapping[str, Ranking]) -> str:
    return "" if "" in rankings else gang.pool


def _key(entry: tuple[Key, Turn]) -> Key:
    return entry[0]
