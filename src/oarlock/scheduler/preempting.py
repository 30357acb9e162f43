"""Whom to stop for a gang that fits nowhere: the fewest and cheapest, and only where it is proven to fit then.

What a victim loses is the work since its last checkpoint: seconds times devices. The search adds victims until the gang
fits, then takes every one back out that was not needed after all, the dearest first; so removing any one of those that
remain makes the gang not fit. Two orders are tried, by cost alone and node by node, and the cheaper outcome is taken:
the first is best for gangs that fit in many places, the second for those that need whole nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from oarlock.scheduler import placement, promises
from oarlock.scheduler import room as rooms
from oarlock.spec import holdings, plans

Claims = tuple[holdings.Holding, ...]

TRIED_BY_COST = 512
"""With more candidates than this only the order by node is tried: what is cheapest lies scattered over the cluster."""


class Victim(NamedTuple):
    """A running gang that may be stopped: `claims` are what it gives up, `left` the size that it goes on with.

    `stays`: it gives up nothing in the end, but is placed elsewhere in the same plan (a move).
    """

    running: plans.Running
    claims: Claims
    left: plans.Size
    cost: float
    stays: bool = False

    @property
    def key(self) -> tuple[float, str]:
        return self.cost, self.running.job


class Clearance(NamedTuple):
    """Who is stopped, where the gang goes then, and where those that are moved go, in the order of `victims`."""

    victims: tuple[Victim, ...]
    claims: Claims
    moved: tuple[Claims, ...] = ()

    @property
    def cost(self) -> tuple[float, int]:
        return sum(victim.cost for victim in self.victims), len(self.victims)


def lost_work(running: plans.Running, now: float) -> float:
    """Device-seconds that stopping it now would lose; CPU-seconds where it holds no device."""
    since = running.started_at if running.checkpoint_at is None else max(running.checkpoint_at, running.started_at)
    return max(0.0, now - since) * weight(running.holdings)


def weight(claims: Iterable[holdings.Holding]) -> float:
    """Devices; cores where there is no device."""
    return weight_of(sum((claim.amount for claim in claims), rooms.NOTHING))


def weight_of(amount: holdings.Resources) -> float:
    return amount.devices or amount.cpus_milli / 1000


def clear(
    gang: plans.Gang,
    size: plans.Size,
    candidates: Sequence[Victim],
    promised: promises.Promises,
    freed: Claims = (),
) -> Clearance | None:
    """The victims whose end lets `gang` fit at `size`, or None where even all of them would not.

    `freed` is what the gang gives back itself (it grows).
    """
    if not candidates or not _could_fit(gang, size, candidates, promised, freed):
        return None
    with promised.afterwards(freed):
        orders = [_by_node(candidates)]
        if len(candidates) <= TRIED_BY_COST:
            orders.append(sorted(candidates, key=lambda victim: victim.key))
        found = [_search(gang, size, order, promised.room) for order in orders]
    return min((one for one in found if one is not None), key=lambda one: one.cost, default=None)


def _could_fit(
    gang: plans.Gang, size: plans.Size, candidates: Sequence[Victim], promised: promises.Promises, freed: Claims
) -> bool:
    """Whether the sums would do: most attempts end here."""
    have = promised.room.free()
    for claims in (promised.clearing, freed, *(victim.claims for victim in candidates)):
        have = sum((claim.amount for claim in claims), have)
    return gang.amount(size).fits(have)


def _search(gang: plans.Gang, size: plans.Size, order: Sequence[Victim], room: rooms.Room) -> Clearance | None:
    enough = _prefix(gang, size, order, room)
    if enough is None:
        return None
    chosen = list(order[:enough])
    for victim in sorted(chosen, key=lambda one: one.key, reverse=True):
        without = [one for one in chosen if one is not victim]
        if _outcome(gang, size, without, room) is not None:
            chosen = without
    return _outcome(gang, size, chosen, room)


def _prefix(gang: plans.Gang, size: plans.Size, order: Sequence[Victim], room: rooms.Room) -> int | None:
    """The least number of victims, in this order, that is enough: doubled until it is, then halved into."""
    low, high = 0, 1
    while _outcome(gang, size, order[:high], room) is None:
        if high >= len(order):
            return None
        low, high = high, min(2 * high, len(order))
    while high - low > 1:
        middle = (low + high) // 2
        if _outcome(gang, size, order[:middle], room) is None:
            low = middle
        else:
            high = middle
    return high


def _outcome(gang: plans.Gang, size: plans.Size, victims: Sequence[Victim], room: rooms.Room) -> Clearance | None:
    """What would be, were these stopped; the room is left as it was."""
    mark = room.mark()
    for victim in victims:
        room.give_back(victim.claims)
    claims = placement.place(gang, room, size)
    moved: list[Claims] = []
    if claims is not None and any(victim.stays for victim in victims):
        room.take(claims)
        for victim in sorted(victims, key=_largest_first):
            if victim.stays:
                to = placement.place(victim.running.gang, room, victim.running.size)
                if to is None:
                    claims = None
                    break
                room.take(to)
                moved.append(to)
    room.rollback(mark)
    if claims is None:
        return None
    ordered = sorted(victims, key=_largest_first) if moved else sorted(victims, key=lambda one: one.key)
    return Clearance(tuple(ordered), claims, tuple(moved))


def _largest_first(victim: Victim) -> tuple[float, str]:
    return -weight(victim.running.holdings), victim.running.job


def _by_node(candidates: Sequence[Victim]) -> list[Victim]:
    """Those on the nodes that are cheapest to clear come first."""
    on: dict[str, list[Victim]] = {}
    for victim in candidates:
        for node in dict.fromkeys(claim.node for claim in victim.claims):
            on.setdefault(node, []).append(victim)

    def price(node: str) -> tuple[float, str]:
        gained = weight(claim for victim in on[node] for claim in victim.claims if claim.node == node)
        return sum(victim.cost for victim in on[node]) / max(gained, 1e-9), node

    order: dict[str, Victim] = {}
    for node in sorted(on, key=price):
        for victim in sorted(on[node], key=lambda one: one.key):
            order.setdefault(victim.running.job, victim)
    return list(order.values())
