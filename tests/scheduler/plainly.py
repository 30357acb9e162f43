"""The scheduler without what makes it fast: everything is worked out anew, in the plainest words, for everybody.

What is left out: the standing order of those that wait (`ordering`), the refusals of those who are just like one that
was refused (`granting`), the sums by which a place or a search is given up at once (`room`, `drafts`, `outlooks`), what
failed once already (`drafts`), what is remembered of bounds and of what could be given up (`usage`, `victims`), and the
blocks in which victims that were not needed are taken back (`preempting`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from oarlock.scheduler import amounts, planning
from oarlock.scheduler.granting import drafts, grants
from oarlock.scheduler.placement import freespace, placing
from oarlock.scheduler.policies import contract
from oarlock.scheduler.pools import poolbounds
from oarlock.scheduler.preemption import clearing, victims
from oarlock.spec import plans

WITHOUT_END = 1_000_000


def plan(snapshot: plans.Snapshot, now: float) -> plans.Plan:
    with _replaced():
        return planning.plan(snapshot, now)


def ranking(policy: contract.Policy, parameters: Mapping[str, float]) -> None:
    """No policy ranks a gang by itself: each is asked about all of them, and puts them in order."""


def block(self: grants.Granting, kin: int, turn: object, blocked: object) -> None:
    """Nobody is refused for being like somebody else."""


def gone(
    self: poolbounds.PoolBounds, bound: poolbounds.Bound, place: int, freed: Mapping[poolbounds.Key, amounts.Amount]
) -> int:
    return sum(amount[place] for key, amount in freed.items() if bound in self._of(key))


def most(
    self: victims.Victims, gang: plans.Gang, level: float, *, own: bool = False
) -> Mapping[poolbounds.Key, amounts.Amount]:
    return self._most_for(gang, level, own=own)


def full(self: drafts.Draft, amount: amounts.Amount) -> bool:
    return False


def place(self: drafts.Draft, gang: plans.Gang, size: plans.Size, *, later: bool = False) -> drafts.Claims | None:
    return placing.place(gang, self.timeline.later if later else self.space, size)


def lacks(self: freespace.FreeSpace, shape: object, count: int) -> bool:
    return False


def fits(gang: plans.Gang, space: freespace.FreeSpace, size: plans.Size) -> bool:
    return placing.place(gang, space, size) is not None


def may_do(need: clearing.Need, candidates: Sequence[victims.Victim], space: freespace.FreeSpace) -> bool:
    return bool(candidates)


def needed(self: Any, order: Sequence[victims.Victim]) -> list[victims.Victim]:
    """One after the other, the dearest first, until nobody can be taken back any more."""
    chosen = sorted(order, key=lambda one: one.key)
    again = True
    while again:
        again = False
        for victim in reversed(list(chosen)):
            rest = [one for one in chosen if one is not victim]
            self._space.take(victim.claims)
            if self._fits(rest, clearing._freed(rest)):
                chosen, again = rest, True
            else:
                self._space.give_back(victim.claims)
    return chosen


_PLAIN: tuple[tuple[object, str, object], ...] = (
    (contract, "ranking", ranking),
    (grants.Granting, "_block", block),
    (grants, "CLEARANCES", WITHOUT_END),
    (grants, "LOOKS", WITHOUT_END),
    (drafts, "TRIALS", WITHOUT_END),
    (drafts.Draft, "full", full),
    (drafts.Draft, "place", place),
    (freespace.FreeSpace, "lacks", lacks),
    (placing, "fits", fits),
    (poolbounds.PoolBounds, "_gone", gone),
    (victims.Victims, "most", most),
    (clearing, "may_do", may_do),
    (clearing._Search, "_needed", needed),
)


@contextmanager
def _replaced() -> Iterator[None]:
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in _PLAIN]
    try:
        for owner, name, plain in _PLAIN:
            setattr(owner, name, plain)
        yield
    finally:
        for owner, name, fast in before:
            setattr(owner, name, fast)
