"""The choice of gangs to stop for a gang that fits nowhere: few and cheap ones, and only where it then fits.

The cost of a victim is the work since its last checkpoint: seconds times devices. The search adds victims until the
gang fits. Then it takes back each victim that is not needed, the dearest first: without any one of the rest the gang
would not fit. A victim that only shrinks keeps as much as possible. The search tries two orders, by cost alone and node
by node (domain by domain, where the gang must be in one), and takes the cheaper outcome. The first order is best for
gangs that fit in many places, the second for gangs that need whole nodes.

A gang fits if it has a place in the later free space and is within the bounds of its pools.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from oarlock.scheduler import amounts, sizes
from oarlock.scheduler.placement import departures, freespace, placing
from oarlock.scheduler.pools import poolbounds
from oarlock.scheduler.preemption import screening, victims
from oarlock.scheduler.reuse import shortcuts
from oarlock.spec import holdings, plans

Victim = victims.Victim
Freed = Mapping[poolbounds.Key, amounts.Amount]

TRIED_BY_COST = 256
"""Most candidates that are also searched by cost alone: of more, the cheapest lie scattered over the cluster."""


class Need(NamedTuple):
    """A gang that is to fit, its size, and the amount that it holds then.

    `within` tells whether the bounds of its pools hold once so much is gone. None: they hold in any case.
    """

    gang: plans.Gang
    size: plans.Size
    amount: amounts.Amount
    within: Callable[[Freed], bool] | None


class Clearance(NamedTuple):
    """The victims, the place of the gang, and the new places of the victims that are moved, in their order."""

    victims: tuple[Victim, ...]
    claims: holdings.Claims
    moved: tuple[holdings.Claims, ...] = ()

    @property
    def cost(self) -> tuple[float, int]:
        return sum(victim.cost for victim in self.victims), len(self.victims)


class Searches:
    """The searches for victims that one plan may still make, within the limits of its shortcuts."""

    def __init__(self, taken: shortcuts.Shortcuts) -> None:
        self.clearances = taken.clearances
        self.looks = taken.looks
        self.trials = taken.trials
        self._sums = taken.sums

    @property
    def left(self) -> bool:
        """Whether the plan may begin another search."""
        return self.clearances > 0 and self.looks > 0 and self.trials > 0

    def may_do(self, need: Need, candidates: Sequence[Victim], space: freespace.FreeSpace) -> bool:
        """Return whether a search among these candidates is worth it: most attempts end here."""
        if not self._sums or not candidates:
            return bool(candidates)
        free = amounts.amount(space.free())
        for place in range(3):
            if need.amount[place] and free[place] + sum(one.amount[place] for one in candidates) < need.amount[place]:
                return False
        if need.within is not None and not need.within(_freed(candidates)):
            return False
        given = screening.freed(claim for one in candidates for claim in one.claims)
        return screening.could_fit(need.gang, need.size, given, space)


def clear(
    need: Need, candidates: Sequence[Victim], space: freespace.FreeSpace, reshape: Reshape, searches: Searches
) -> Clearance | None:
    """Return victims that have to end so that the gang fits; None where it does not fit without all of them.

    `space` is left as it was. `reshape` gives a victim that bends at another size. Ask `Searches.may_do` first. A
    search comes to its end even when no trials are left; only the second order of candidates is left out then.
    """
    best = _Search(need, _by_place(need.gang, candidates, space), space, reshape, searches).found()
    if len(candidates) <= TRIED_BY_COST and (best is None or searches.trials > 0):
        other = _Search(need, sorted(candidates, key=_key), space, reshape, searches).found()
        best = min((one for one in (best, other) if one is not None), key=lambda one: one.cost, default=None)
    return best


Reshape = Callable[[Victim, plans.Size], Victim]


class _Search:
    """One search, through candidates in a given order."""

    def __init__(
        self, need: Need, order: Sequence[Victim], space: freespace.FreeSpace, reshape: Reshape, searches: Searches
    ) -> None:
        self._searches = searches
        self._need = need
        self._order = order
        self._space = space
        self._reshape = reshape

    def found(self) -> Clearance | None:
        leaving = departures.Departures(self._space, self._order, lambda one: one.claims, lambda one: one.amount)
        free = amounts.amount(self._space.free())
        short = tuple(asked - have if asked else 0 for asked, have in zip(self._need.amount, free, strict=True))
        with self._space.trial():
            count = leaving.first(self._first_fit, (short[0], short[1], short[2]))
            return None if count is None else self._outcome(self._bent(self._needed(self._order[:count])))

    def _needed(self, order: Sequence[Victim]) -> list[Victim]:
        """Return the victims without those that are not needed: the dearest are taken back first, in growing blocks.

        Where sums alone decide, a victim that was needed once is needed later. Otherwise all are tried again until
        each is needed.
        """
        chosen, before, need = sorted(order, key=_key), len(order) + 1, self._need
        freed, stay = _freed(chosen), any(victim.stays for victim in chosen)
        once = not stay and _by_sums(need.gang, need.size)
        while len(chosen) < before:
            before, block = len(chosen), 1
            needed: list[Victim] = []
            while chosen:
                block = min(block, len(chosen))
                some = chosen[-block:]
                del chosen[-block:]
                less = _freed(some, freed, -1)
                back = [claim for victim in some for claim in victim.claims]
                self._space.take(back)
                if self._fits([*chosen, *needed] if stay else (), less):
                    freed, block = less, 2 * block
                    continue
                self._space.give_back(back)
                if block == 1:
                    needed += some
                else:
                    chosen += some
                block = max(1, block // 4)
            chosen = sorted(needed, key=_key)
            if once:
                break
        return chosen

    def _bent(self, chosen: list[Victim]) -> list[Victim]:
        """Return the victims, each of which gives up as little as possible."""
        for place, victim in enumerate(chosen):
            most = sizes.steps(victim.left, victim.running.size) if victim.bends else 0
            less = sizes.last(0, most, functools.partial(self._with_less, chosen, place))
            if less is not None:
                self._space.take(victim.claims)
                self._space.give_back(less.claims)
                chosen[place] = less
        return chosen

    def _with_less(self, chosen: Sequence[Victim], place: int, step: int) -> Victim | None:
        """Return one of the victims `step` sizes above its least; None where the gang does not fit then."""
        victim = chosen[place]
        less = self._reshape(victim, sizes.step(victim.left, victim.running.size, step))
        all_of_them = [*chosen[:place], less, *chosen[place + 1 :]]
        with self._space.trial():
            self._space.take(victim.claims)
            self._space.give_back(less.claims)
            return less if self._fits(all_of_them, _freed(all_of_them)) else None

    def _first_fit(self, count: int) -> bool:
        first = self._order[:count]
        return self._fits(first, {} if self._need.within is None else _freed(first))

    def _fits(self, gone: Collection[Victim], freed: Freed) -> bool:
        """Return whether the gang fits in the present free space, which the victims in `gone` have left."""
        self._searches.trials -= 1
        need = self._need
        if need.within is not None and not need.within(freed):
            return False
        if any(victim.stays for victim in gone):
            return self._places(gone) is not None
        return placing.fits(need.gang, self._space, need.size)

    def _outcome(self, gone: Sequence[Victim]) -> Clearance | None:
        places = self._places(gone)
        if places is None:
            return None
        moved = places[1:]
        return Clearance(tuple(sorted(gone, key=_largest_first if moved else _key)), places[0], tuple(moved))

    def _places(self, gone: Collection[Victim]) -> list[holdings.Claims] | None:
        """Return the place of the gang, then those of moved victims, the largest first; None where one has no place."""
        space = self._space
        staying = sorted((victim for victim in gone if victim.stays), key=_largest_first)
        asked = [(self._need.gang, self._need.size), *((one.running.gang, one.running.size) for one in staying)]
        places: list[holdings.Claims] = []
        with space.trial():
            for gang, size in asked:
                claims = placing.place(gang, space, size)
                if claims is None:
                    return None
                places.append(claims)
                if len(asked) > 1:
                    space.take(claims)
        return places


def _freed(gone: Iterable[Victim], more: Freed | None = None, times: int = 1) -> dict[poolbounds.Key, amounts.Amount]:
    """Return the amounts that these give up, by leaf, on top of `more`; `times` -1: taken off `more`."""
    freed = dict(more or {})
    for victim in gone:
        if not victim.stays:
            key, amount = (victim.running.gang.pool, victim.running.gang.preemptible), victim.amount
            one = freed.get(key, amounts.NOTHING)
            freed[key] = one[0] + times * amount[0], one[1] + times * amount[1], one[2] + times * amount[2]
    return freed


def _by_sums(gang: plans.Gang, size: plans.Size) -> bool:
    """Return whether sums decide if a gang fits: its tasks are alike, and may lie on any nodes."""
    return (gang.topology is None or not gang.topology.required) and sum(tasks > 0 for tasks in size) == 1


def _by_place(gang: plans.Gang, candidates: Sequence[Victim], space: freespace.FreeSpace) -> list[Victim]:
    """Return the candidates, those on the nodes (or domains) that are cheapest to clear first."""
    required = gang.topology is not None and gang.topology.required
    level = str(gang.topology.same) if required and gang.topology is not None else "node"
    on: dict[str, dict[str, Victim]] = {}
    gained: dict[str, float] = {}
    for victim in candidates:
        for claim in victim.claims:
            node = space.nodes.get(claim.node)
            domain = None if node is None else node.domain(level)
            if domain is not None:
                on.setdefault(domain, {})[victim.job] = victim
                gained[domain] = gained.get(domain, 0.0) + amounts.weight(amounts.amount(claim.amount))
    price = {
        domain: sum(victim.cost for victim in there.values()) / max(gained[domain], 1e-9)
        for domain, there in on.items()
    }
    order: dict[str, Victim] = {}
    for domain in sorted(on, key=lambda name: (price[name], name)):
        for victim in sorted(on[domain].values(), key=_key):
            order.setdefault(victim.job, victim)
    return list(order.values())


def _key(victim: Victim) -> tuple[float, str]:
    return victim.key


def _largest_first(victim: Victim) -> tuple[float, str]:
    return -amounts.weight(victim.amount), victim.job
