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

from oarlock.scheduler import drafts, granting, placement, planning, preempting, profiles, victims
from oarlock.scheduler import room as rooms
from oarlock.scheduler import usage as usages
from oarlock.scheduler.policies import port
from oarlock.spec import plans

WITHOUT_END = 1_000_000


def plan(snapshot: plans.Snapshot, now: float) -> plans.Plan:
    with _replaced():
        return planning.plan(snapshot, now)


def ranking(policy: port.Policy, parameters: Mapping[str, float]) -> None:
    """No policy ranks a gang by itself: each is asked about all of them, and puts them in order."""


def block(self: granting.Granting, kin: int, turn: object, blocked: object) -> None:
    """Nobody is refused for being like somebody else."""


def gone(self: usages.Usage, bound: usages.Bound, place: int, freed: Mapping[usages.Key, profiles.Amount]) -> int:
    return sum(amount[place] for key, amount in freed.items() if bound in self._of(key))


def most(
    self: victims.Victims, gang: plans.Gang, level: float, *, own: bool = False
) -> Mapping[usages.Key, profiles.Amount]:
    return self._most_for(gang, level, own=own)


def full(self: drafts.Draft, amount: profiles.Amount) -> bool:
    return False


def place(self: drafts.Draft, gang: plans.Gang, size: plans.Size, *, later: bool = False) -> drafts.Claims | None:
    return placement.place(gang, self.promises.later if later else self.room, size)


def lacks(self: rooms.Room, shape: object, count: int) -> bool:
    return False


def fits(gang: plans.Gang, room: rooms.Room, size: plans.Size) -> bool:
    return placement.place(gang, room, size) is not None


def may_do(need: preempting.Need, candidates: Sequence[victims.Victim], room: rooms.Room) -> bool:
    return bool(candidates)


def needed(self: Any, order: Sequence[victims.Victim]) -> list[victims.Victim]:
    """One after the other, the dearest first, until nobody can be taken back any more."""
    chosen = sorted(order, key=lambda one: one.key)
    again = True
    while again:
        again = False
        for victim in reversed(list(chosen)):
            rest = [one for one in chosen if one is not victim]
            mark = self._room.mark()
            self._room.take(victim.claims)
            if self._fits(rest, preempting._freed(rest)):
                chosen, again = rest, True
            else:
                self._room.rollback(mark)
    return chosen


_PLAIN: tuple[tuple[object, str, object], ...] = (
    (port, "ranking", ranking),
    (granting.Granting, "_block", block),
    (granting, "CLEARANCES", WITHOUT_END),
    (granting, "LOOKS", WITHOUT_END),
    (drafts, "TRIALS", WITHOUT_END),
    (drafts.Draft, "full", full),
    (drafts.Draft, "place", place),
    (rooms.Room, "lacks", lacks),
    (placement, "fits", fits),
    (usages.Usage, "_gone", gone),
    (victims.Victims, "most", most),
    (preempting, "may_do", may_do),
    (preempting._Search, "_needed", needed),
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
