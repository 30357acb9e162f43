"""Refusals: why a gang does not run now, in numbers and in one plain sentence.

There is one function for each code of `oarlock.spec.refusals`. A round may refuse ten thousand gangs, and hardly any of
them for another reason than the round before; so each function compares code and numbers with the gang's last refusal
first, and hands that one back where nothing has materially changed. Words are made of what remains. Deep in the queue
(behind `REFRESHED` others) numbers that drift are no news: only another reason is. Whoever asks for one job (`oarlock
why`) gets all of it afresh, with the smallest change tried out (`oarlock.scheduler.remedies`).
"""

from __future__ import annotations

import functools
import heapq
from collections.abc import Callable, Iterable, Sequence

import msgspec

from oarlock.scheduler import placement, wording
from oarlock.scheduler import room as rooms
from oarlock.scheduler import usage as usages
from oarlock.spec import holdings, nodes, plans, quantities, refusals

Code = refusals.Code
Numbers = dict[str, float]

SHOWN_HOLDERS = 5
REFRESHED = 256
"""Gangs behind so many others keep the refusal that they have for as long as its reason holds."""

_SCATTERED = ", but not where its tasks fit"

DETAILED = 32
"""For so many gangs of one plan it is tried how many of their tasks would fit: that walks over all nodes."""


class Scene:
    """What the refusals of one plan have in common, worked out once and only where asked for.

    `room` is the plan's own, in which what was granted so far is taken; without one, what runs is. A `terse` one has no
    words for what lacks room: for plans of which nobody reads the refusals.
    """

    terse = False

    def __init__(self, snapshot: plans.Snapshot, room: rooms.Room | None = None) -> None:
        self.snapshot = snapshot
        self.room = rooms.Room(snapshot.nodes, _held(snapshot)) if room is None else room
        self._ready: list[rooms.NodeRoom] | None = None
        self._totals: dict[tuple[str, ...], Numbers] = {}
        self._free: dict[tuple[str, ...], tuple[holdings.Resources, Numbers, float]] = {}
        self._holders: dict[tuple[str, tuple[str, ...]], tuple[refusals.Holder, ...]] = {}
        self._never: dict[object, refusals.Refusal | None] = {}
        self._empty: rooms.Room | None = None
        self._detailed = 0

    @property
    def empty(self) -> rooms.Room:
        """The declared nodes as if all of them were ready and nothing ran."""
        if self._empty is None:
            self._empty = rooms.Room([msgspec.structs.replace(node, ready=True) for node in self.snapshot.nodes])
        return self._empty

    @property
    def ready(self) -> list[rooms.NodeRoom]:
        if self._ready is None:
            self._ready = self.room.ready()
        return self._ready

    def free(self, kinds: tuple[str, ...] = ()) -> Numbers:
        """On nodes that are ready; `gpus` of these types alone, where any are given."""
        return self._looked(kinds)[1]

    def most_on_one_node(self, kinds: tuple[str, ...] = ()) -> float:
        """Free GPUs."""
        return self._looked(kinds)[2]

    def _looked(self, kinds: tuple[str, ...]) -> tuple[holdings.Resources, Numbers, float]:
        """All nodes are looked at once, and again when something was taken since."""
        free = self.room.free()
        found = self._free.get(kinds)
        if found is None or found[0] != free:
            each = [_devices(one.node, one.free.devices, kinds) for one in self.ready]
            numbers = usages.numbers(free) | ({"gpus": sum(each)} if kinds else {})
            found = self._free[kinds] = free, numbers, max(each, default=0.0)
        return found

    def total(self, kinds: tuple[str, ...] = ()) -> Numbers:
        """Of the nodes that are ready."""
        if kinds not in self._totals:
            self._totals[kinds] = _total([one.node for one in self.ready], kinds)
        return self._totals[kinds]

    def holders(self, resource: str, kinds: tuple[str, ...] = ()) -> tuple[refusals.Holder, ...]:
        """Who holds most of a resource (of GPUs of these types), most first."""
        key = (resource, kinds)
        if key not in self._holders:
            self._holders[key] = _holders(self.snapshot, resource, kinds)
        return self._holders[key]

    def detailed(self) -> bool:
        """Whether there is still time to try things out for one more gang."""
        self._detailed += 1
        return self._detailed <= DETAILED

    def never(self, gang: plans.Gang) -> refusals.Refusal | None:
        """As `never`, asked once for all gangs of one shape."""
        shape = (gang.pool, gang.asks, gang.topology, gang.mixed, gang.beside, gang.placement)
        if shape not in self._never:
            self._never[shape] = _never(gang, self)
        return self._never[shape]


def never(gang: plans.Gang, scene: Scene) -> refusals.Refusal | None:
    """The refusal of a gang that no state of the declared nodes and pools could hold, else None."""
    found = scene.never(gang)
    return found if found is None else _known(gang, found.code, found.needed, found.free, 0) or found


def newly_impossible(gang: plans.Gang, scene: Scene) -> refusals.Refusal | None:
    """As `never`, of a gang that has been refused for another reason before: that it is possible is known."""
    return never(gang, scene) if gang.refusal is None or gang.refusal.code in refusals.NEVER else None


def no_capacity(gang: plans.Gang, scene: Scene, ahead: int = 0) -> refusals.Refusal:
    """It would fit an emptier cluster: what it needs, what is free, and who holds the rest."""
    needed, kinds = _needed(gang), wording.kinds(gang)
    if not scene.ready:
        return _no_nodes(gang, needed, scene, ahead)
    if scene.terse:
        return refusals.Refusal(code=Code.NO_CAPACITY, message="", needed=needed, ahead=ahead)
    known = _deep(gang, Code.NO_CAPACITY, needed, ahead)
    if known is not None:
        return known
    free = scene.free(kinds)
    short = [name for name in needed if needed[name] > free.get(name, 0.0)]
    worst = min(short or needed or ["cpus"], key=lambda name: free.get(name, 0.0) / needed.get(name, 1.0))
    holders = scene.holders(worst, kinds)
    known = _known(gang, Code.NO_CAPACITY, needed, free, ahead, holders)
    if known is not None:
        return known
    fewer = _fewer(gang, scene) if scene.detailed() else ""
    waited_for = f"It fits once {holders[0].name} ends." if len(holders) == 1 else ""
    return refusals.Refusal(
        code=Code.NO_CAPACITY,
        message=f"It needs {wording.wanted(gang, needed)}; {_free_text(gang, scene, needed, free, short)}.",
        needed=needed,
        free=free,
        total=scene.total(kinds),
        holders=holders,
        ahead=ahead,
        change=fewer or waited_for,
    )


def behind(gang: plans.Gang, first: plans.Gang, ahead: int = 0) -> refusals.Refusal:
    """It waits its turn: what is free is kept for those before it. Not said anew when another one is first."""
    needed = _needed(gang)
    return _known(gang, Code.BEHIND, needed, {}, ahead) or refusals.Refusal(
        code=Code.BEHIND,
        message=f"{first.name} came first and waits for {wording.wanted(first, _needed(first))}.",
        needed=needed,
        ahead=ahead,
        change="A higher priority would take it past.",
    )


def reserved(
    gang: plans.Gang, head: plans.Gang, until: float | None = None, ahead: int = 0, kept: tuple[str, ...] = ()
) -> refusals.Refusal:
    """It would fit now, but then `head` could not start at `until` (Unix seconds; None: not known)."""
    needed, others = _needed(gang), (_holder(head),)
    known = _known(gang, Code.RESERVED, needed, {}, ahead, others)
    if known is not None:
        return known if known.until == until else msgspec.structs.replace(known, until=until)
    shorter = "With a `timeout` that ends before that it would start now." if until is not None else ""
    return refusals.Refusal(
        code=Code.RESERVED,
        message=f"There is room for its {wording.wanted(gang, needed)}, kept for {head.name}, which came first and "
        f"needs {wording.wanted(head, _needed(head))}.",
        needed=needed,
        holders=others,
        ahead=ahead,
        change=shorter,
        until=until,
        kept=kept,
    )


def outranked(gang: plans.Gang, reason: str = "", ahead: int = 0, by: Sequence[plans.Gang] = ()) -> refusals.Refusal:
    """The policy gives what there is to others for now; `reason` is its own word for why, with the numbers."""
    needed = _needed(gang)
    others = tuple(_holder(other) for other in by[:SHOWN_HOLDERS])
    known = _deep(gang, Code.OUTRANKED, needed, ahead) or _known(gang, Code.OUTRANKED, needed, {}, ahead, others)
    if known is not None:
        return known
    whom = wording.named([other.name for other in by]) or "others"
    because = f": {reason.rstrip('.')}" if reason else ""
    return refusals.Refusal(
        code=Code.OUTRANKED,
        message=f"It needs {wording.wanted(gang, needed)}, and what there is goes to {whom} for now{because}.",
        needed=needed,
        holders=others,
        ahead=ahead,
    )


def stopping(gang: plans.Gang, victims: Sequence[plans.Gang], ahead: int = 0) -> refusals.Refusal:
    """Its place is being cleared: it starts once these have saved a checkpoint and are gone."""
    needed = _needed(gang)
    others = tuple(_holder(one) for one in victims[:SHOWN_HOLDERS])
    return _known(gang, Code.STOPPING, needed, {}, ahead, others) or refusals.Refusal(
        code=Code.STOPPING,
        message=f"Its place is being cleared: {wording.named([one.name for one in victims]) or 'a job'} "
        f"{'is' if len(victims) < 2 else 'are'} being stopped.",
        needed=needed,
        holders=others,
        ahead=ahead,
    )


def pool_limit(gang: plans.Gang, over: usages.Over, ahead: int = 0) -> refusals.Refusal:
    """The limit of its pool, or of one above, is used up."""
    return _over(
        gang,
        Code.POOL_LIMIT,
        over,
        ahead,
        lambda asked, used, most: f"It needs {asked}; the pool {over.pool} uses {used} of its limit of {most}.",
        "Another pool, or a higher limit, would let it in.",
    )


def pool_share(gang: plans.Gang, over: usages.Over, ahead: int = 0, wants: Sequence[str] = ()) -> refusals.Refusal:
    """Its pool has what it is entitled to, and `wants` (pools) have a right to the rest."""
    whom = f"; the rest belongs to {wording.named(wants)}" if wants else ""
    return _over(
        gang,
        Code.POOL_SHARE,
        over,
        ahead,
        lambda asked, used, most: (
            f"It needs {asked}; the pool {over.pool} has {used} of the {most} that it is entitled to{whom}."
        ),
        "" if gang.preemptible else "`preemptible: true` lets it borrow what others leave idle.",
    )


def not_reserved(gang: plans.Gang, over: usages.Over, ahead: int = 0) -> refusals.Refusal:
    """It must not be preempted, so it needs room within what is reserved for its pool."""
    return _over(
        gang,
        Code.NOT_RESERVED,
        over,
        ahead,
        lambda asked, used, most: (
            f"It must not be preempted, and needs {asked} within the {most} reserved for the "
            f"pool {over.pool}, of which jobs like it hold {used}."
        ),
        "With `preemptible: true` it need not be within the reservation.",
    )


def backing_off(gang: plans.Gang, ahead: int = 0) -> refusals.Refusal:
    needed = _needed(gang)
    known = _known(gang, Code.BACKING_OFF, needed, {}, ahead)
    if known is not None and known.not_before == gang.not_before:
        return known
    return refusals.Refusal(
        code=Code.BACKING_OFF,
        message="The platform failed it a moment ago; it is tried again soon.",
        needed=needed,
        ahead=ahead,
        not_before=gang.not_before,
    )


def needed(gang: plans.Gang) -> holdings.Resources:
    """What it cannot do without: all that its smallest size holds."""
    return gang.amount(gang.smallest)


def held_by(refusal: refusals.Refusal, now: float) -> str:
    """Who has what it needs, or is to have it, in one sentence; empty where nobody is named."""
    if refusal.code is Code.RESERVED and refusal.until is not None and refusal.holders:
        return f"{refusal.holders[0].name} should start in about {wording.about(max(0.0, refusal.until - now))}."
    if refusal.code is not Code.NO_CAPACITY or not refusal.holders:
        return ""
    short = [name for name, value in refusal.needed.items() if value > refusal.free.get(name, 0.0)]
    name = next((name for name in ("gpus", "cpus", "memory") if name in (short or refusal.needed)), "cpus")
    told = [
        f"{one.name} holds {wording.shown(name, one.amount[name])}" for one in refusal.holders if name in one.amount
    ]
    return f"{wording.listed(told[: wording.NAMED])}." if told else ""


# What is as it was


def _known(
    gang: plans.Gang,
    code: refusals.Code,
    needed: Numbers,
    free: Numbers,
    ahead: int,
    holders: tuple[refusals.Holder, ...] = (),
) -> refusals.Refusal | None:
    """The gang's last refusal, where it says the same; with its place in the queue as it is now."""
    known = gang.refusal
    if known is None or (known.code, known.needed, known.free) != (code, needed, free):
        return None
    if [one.job for one in known.holders] != [one.job for one in holders]:
        return None
    return known if known.ahead == ahead else msgspec.structs.replace(known, ahead=ahead)


def _deep(gang: plans.Gang, code: refusals.Code, needed: Numbers, ahead: int) -> refusals.Refusal | None:
    """The same for a gang deep in the queue, whatever its numbers have become."""
    known = gang.refusal
    if ahead < REFRESHED or known is None or (known.code, known.needed) != (code, needed):
        return None
    return known if known.ahead == ahead else msgspec.structs.replace(known, ahead=ahead)


# The parts of the sentences


def _needed(gang: plans.Gang) -> Numbers:
    return _numbers(gang.asks)


@functools.lru_cache(maxsize=1 << 14)
def _numbers(asks: tuple[plans.Ask, ...]) -> Numbers:
    """Of all asks at their least. Asked for each gang in each round: nobody changes what it gets."""
    return usages.numbers(sum((ask.amount.times(ask.min) for ask in asks), rooms.NOTHING))


def _over(
    gang: plans.Gang,
    code: refusals.Code,
    over: usages.Over,
    ahead: int,
    sentence: Callable[[str, str, str], str],
    change: str,
) -> refusals.Refusal:
    """A bound of a pool. `sentence` is made of what is asked for, what is used, and the bound."""
    asked, free = _needed(gang), {over.resource: round(over.bound - over.used, 6)}
    known = _deep(gang, code, asked, ahead) or _known(gang, code, asked, free, ahead)
    if known is not None:
        return known
    name = over.resource
    used = wording.plain(round(over.used, 3)) if name != "memory" else wording.shown(name, over.used)
    return refusals.Refusal(
        code=code,
        message=sentence(wording.shown(name, asked.get(name, 0.0)), used, wording.shown(name, over.bound)),
        needed=asked,
        free=free,
        total={name: over.bound},
        ahead=ahead,
        change=change,
    )


def _no_nodes(gang: plans.Gang, needed: Numbers, scene: Scene, ahead: int) -> refusals.Refusal:
    count = len(scene.snapshot.nodes)
    return _known(gang, Code.NO_NODES, needed, {}, ahead) or refusals.Refusal(
        code=Code.NO_NODES,
        message=f"None of {count} nodes is ready." if count else "There is no node yet.",
        needed=needed,
        change="Bring a node back; `oarlock nodes` says what each waits for.",
        ahead=ahead,
    )


def _free_text(gang: plans.Gang, scene: Scene, needed: Numbers, free: Numbers, short: Sequence[str]) -> str:
    """`0 of 4 GPUs are free`: what is short; where nothing is, how what is free lies apart."""
    kinds = wording.kinds(gang)
    total = scene.total(kinds)
    told = short or [name for name in ("gpus", "cpus", "memory") if name in needed][:1]
    text = wording.listed([wording.part(name, free.get(name, 0.0), total.get(name, 0.0), kinds) for name in told]) + (
        " is free" if [free.get(name, 0.0) for name in told] == [1] else " are free"
    )
    if not short:
        text += _apart(gang, scene)
    down = len(scene.snapshot.nodes) - len(scene.ready)
    return f"{text} ({down} of {len(scene.snapshot.nodes)} nodes not ready)" if down else text


def _apart(gang: plans.Gang, scene: Scene) -> str:
    """There is enough in sum."""
    devices = max((ask.amount.devices for ask in gang.asks), default=0.0)
    most = scene.most_on_one_node(wording.kinds(gang))
    if devices > most:
        return f", but at most {wording.plain(most)} on one node"
    if gang.topology is not None and gang.topology.required:
        return f", but not within one {gang.topology.same}"
    if not scene.detailed():
        return _SCATTERED
    slots = min(scene.room.slots(ask, mixed=gang.mixed) for ask in gang.asks if ask.min)
    return f", in pieces that hold {slots} of its {sum(gang.smallest)} tasks" if len(gang.asks) == 1 else _SCATTERED


def _fewer(gang: plans.Gang, scene: Scene) -> str:
    """Whether it would fit with fewer workers, and with how many: tried out, not guessed."""
    least, most = _workers(gang), most_workers(gang, scene.room)
    return f"With {workers(most)} instead of {least} it would fit now." if most else ""


def most_workers(gang: plans.Gang, room: rooms.Room) -> int:
    """With how many workers, fewer than it cannot do without, there is a place for it; 0: with none."""
    place = next((place for place, ask in enumerate(gang.asks) if ask.role == "worker"), None)
    if place is None:
        return 0
    low, high = 0, gang.asks[place].min
    while high - low > 1:
        middle = (low + high) // 2
        size = (*gang.smallest[:place], middle, *gang.smallest[place + 1 :])
        if placement.place(gang, room, size) is not None:
            low = middle
        else:
            high = middle
    return low


def workers(count: int) -> str:
    return f"{count} worker{'' if count == 1 else 's'}"


def _workers(gang: plans.Gang) -> int:
    return next((ask.min for ask in gang.asks if ask.role == "worker"), 0)


# What could never be


def _never(gang: plans.Gang, scene: Scene) -> refusals.Refusal | None:
    beyond = _beyond_the_pool(gang, scene.snapshot)
    if beyond is not None or not scene.snapshot.nodes:
        return beyond
    if any(ask.amount.devices and not _somewhere(ask, scene.snapshot) for ask in gang.asks):
        return _no_such_device(gang, scene)
    if placement.place(gang, scene.empty, gang.smallest) is not None:
        return None
    needed, kinds = _needed(gang), wording.kinds(gang)
    total = _total(scene.snapshot.nodes, kinds)
    have = wording.amounts({name: total.get(name, 0.0) for name in needed}, kinds)
    most = most_workers(gang, scene.empty)
    return refusals.Refusal(
        code=Code.NEVER_FITS,
        message=f"It needs {wording.wanted(gang, needed)}; {_even_empty(gang, scene, have)}.",
        needed=needed,
        total=total,
        change=f"At most {workers(most)} would fit." if most else "Ask for less for each task.",
    )


def _even_empty(gang: plans.Gang, scene: Scene, have: str) -> str:
    tasks, slots = sum(gang.smallest), min(scene.empty.slots(ask, mixed=gang.mixed) for ask in gang.asks if ask.min)
    everywhere = f"all nodes together have {have}"
    large = next((word for ask in gang.asks if ask.min and (word := _too_large(ask, scene))), "")
    if large:
        return large
    if gang.topology is not None and gang.topology.required and slots >= tasks:
        return f"{everywhere}, and no {gang.topology.same} holds it even when it is empty"
    if len(gang.asks) > 1 or slots >= tasks:
        return f"{everywhere}, and even empty they do not hold all its tasks at once"
    return f"{everywhere}, and even empty they hold {f'only {slots}' if slots else 'none'} of its tasks"


def _too_large(ask: plans.Ask, scene: Scene) -> str:
    """Where no node has so much of something as one task needs."""
    asked = usages.numbers(ask.amount)
    for name in ("gpus", "cpus", "memory"):
        most = max((usages.numbers(node.capacity).get(name, 0.0) for node in scene.snapshot.nodes), default=0.0)
        if asked.get(name, 0.0) > most:
            has = (
                f"has more than {wording.plain(most)}"
                if name != "memory"
                else f"has more than {wording.shown(name, most)}"
            )
            needs = wording.shown(name, asked[name], ask.gpu_types)
            return f"one task needs {needs}, and no node {has if most else 'has any'}"
    return ""


def _beyond_the_pool(gang: plans.Gang, snapshot: plans.Snapshot) -> refusals.Refusal | None:
    """The limit of its pool, or of one above it, is below what it cannot do without."""
    declared = {pool.name: pool for pool in snapshot.pools}
    name: str | None = gang.pool
    seen: set[str] = set()
    needed = _needed(gang)
    while name in declared and name not in seen:
        seen.add(name)
        limit = declared[name].limit
        for resource, asked in needed.items():
            if asked > limit.get(resource, asked):
                return refusals.Refusal(
                    code=Code.NEVER_IN_POOL,
                    message=f"It needs {wording.shown(resource, asked)}, and the pool {name} is limited to "
                    f"{wording.shown(resource, limit[resource])}.",
                    needed=needed,
                    total=dict(limit),
                    change=f"Ask for {wording.shown(resource, limit[resource])} at most, choose another pool, or have "
                    "the limit raised.",
                )
        name = declared[name].parent
    return None


def _no_such_device(gang: plans.Gang, scene: Scene) -> refusals.Refusal:
    devices = {(one.type, one.memory_bytes) for node in scene.snapshot.nodes for one in node.devices}
    wanted, memory_bytes = wording.kinds(gang), max(ask.gpu_memory_bytes for ask in gang.asks)
    with_memory = f" with {quantities.memory_text(memory_bytes)} of memory" if memory_bytes else ""
    present = sorted(f"{kind} ({quantities.memory_text(size)})" if with_memory else kind for kind, size in devices)
    return refusals.Refusal(
        code=Code.NO_SUCH_DEVICE,
        message=f"It needs {' or '.join([*wanted, ''])[:-4] + ' ' if wanted else ''}GPUs{with_memory}; "
        + (f"the nodes have {wording.listed(list(dict.fromkeys(present)))}." if present else "no node has one."),
        needed=_needed(gang),
        total=_total(scene.snapshot.nodes),
        change="Choose among these." if present else "Ask for none, or add a node that has one.",
    )


# Who holds what


def _holders(snapshot: plans.Snapshot, resource: str, kinds: Sequence[str]) -> tuple[refusals.Holder, ...]:
    where = {node.name for node in snapshot.nodes if _has(node, kinds)} if kinds and resource == "gpus" else None
    of = _OF[resource]
    held = [
        (-sum(of(one.amount) for one in job.holdings if where is None or one.node in where), job.job, place)
        for place, job in enumerate(snapshot.running)
    ]
    most = heapq.nsmallest(SHOWN_HOLDERS, (one for one in held if one[0]))
    jobs = [snapshot.running[place] for _, _, place in most]
    return tuple(
        refusals.Holder(
            job.job,
            job.name,
            usages.numbers(_sum(one for one in job.holdings if where is None or one.node in where)),
        )
        for job in jobs
    )


_OF: dict[str, Callable[[holdings.Resources], float]] = {
    "gpus": lambda amount: amount.devices,
    "cpus": lambda amount: amount.cpus_milli,
    "memory": lambda amount: amount.memory_bytes,
}


def _held(snapshot: plans.Snapshot) -> Iterable[holdings.Holding]:
    return (claim for job in snapshot.running for claim in job.holdings)


def _holder(gang: plans.Gang) -> refusals.Holder:
    """One that is to have it."""
    return refusals.Holder(gang.job, gang.name, _needed(gang))


def _sum(claims: Iterable[holdings.Holding]) -> holdings.Resources:
    return sum((claim.amount for claim in claims), rooms.NOTHING)


def _has(node: nodes.Node, kinds: Sequence[str]) -> bool:
    return any(device.type in kinds for device in node.devices)


def _devices(node: nodes.Node, count: float, kinds: Sequence[str]) -> float:
    """`count` where the node's GPUs are of these types. A node has cards of one type."""
    return count if not kinds or _has(node, kinds) else 0.0


def _total(of: Iterable[nodes.Node], kinds: Sequence[str] = ()) -> Numbers:
    found = list(of)
    total = usages.numbers(sum((node.capacity for node in found), rooms.NOTHING))
    return total | {"gpus": sum(_devices(node, node.capacity.devices, kinds) for node in found)} if kinds else total


def _somewhere(ask: plans.Ask, snapshot: plans.Snapshot) -> bool:
    """Whether some node has a device that would do."""
    return any(
        (not ask.gpu_types or device.type in ask.gpu_types) and device.memory_bytes >= ask.gpu_memory_bytes
        for node in snapshot.nodes
        for device in node.devices
    )
