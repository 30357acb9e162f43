"""Turns: where not all gangs fit, each runs for a slice of time, then yields to others (Gandiva, OSDI '18).

A new gang is placed in free space. As soon as a gang waits, gangs take turns: a gang at the end of its slice may be
stopped. It saves, queues behind the waiting gangs, and later goes on from its checkpoint. Where all gangs fit, none is
stopped. Elastic gangs grow into idle devices, and shrink to their smallest size for newcomers at once, even within a
slice.

The queue is in the order of tickets: when a gang was submitted or, if later, last stopped. Those that have run longest
yield first, as many as the waiting gangs can use. Small gangs may start beside a large gang that waits; because they
came later, they may be stopped for it before their slices are over. So the large gang gets its turn, too: ever fewer
gangs may run before it.

Two gangs of one device each share one device while one of them would have to wait, as long as that is faster than
turns (`pairing`). A running gang may be moved to a better place (`granting/moving.py`).

Gandiva suspends within a second, at a point of a step at which little is on the device, so that its slices of a minute
cost nothing. Here a turn begins with a restart from a checkpoint. So slices are longer, and a slice begins with the
first reported step. A gang that has shown neither steps nor a checkpoint may have to do everything again: its slices
double from start to start, so that it ends some day.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from oarlock.scheduler.policies import contract, pairing, parameters
from oarlock.spec import holdings, plans

name = "gandiva"
reserves = False
sizing = False

PARAMETERS: Mapping[str, float] = {
    # Seconds for which a gang runs before it yields to another; at least the cluster's minimum runtime. Gandiva: 60.
    "slice_s": 600.0,
    # Two gangs share a device only if together they are so many times as fast as one alone. 0: no gang shares.
    "pays": 1.1,
}

OVERDUE = 2.0
"""Slices after which a gang yields to any other gang: the stops of earlier gangs did not help."""

DOUBLED = 10
"""Most times that a slice is doubled."""

_YIELDS = 1.0
_NOTHING = holdings.Resources()


class Turn(NamedTuple):
    """The turn of one gang.

    `ticket` is the time since which it waits, or waited before its start. `ran_s` is the used part of its slice of
    `slice_s`; None: it waits.
    """

    candidate: contract.Candidate
    ticket: float
    slice_s: float
    ran_s: float | None

    @property
    def job(self) -> str:
        return self.candidate.gang.job

    @property
    def had_s(self) -> float:
        """Seconds that it has run, all attempts together: its device-seconds divided by its devices."""
        gang = self.candidate.gang
        width = gang.amount(gang.wanted)
        return self.candidate.served_s / (width.devices or width.cpus_milli / 1000 or 1.0)

    @property
    def slices(self) -> float:
        """Slices that it has had since its start; less than 0 while it waits."""
        return -1.0 if self.ran_s is None else self.ran_s / self.slice_s


def wishes(
    candidates: Sequence[contract.Candidate],
    budget: contract.Budget,
    now: float,
    rules: plans.Rules,
    given: Mapping[str, float],
) -> list[contract.Wish]:
    known = _read(given)
    slice_s = max(known["slice_s"], rules.min_runtime_s)
    turns = sorted((_turn(one, slice_s, now) for one in candidates), key=_first_come)
    yielding = _yielding(turns, now)
    place = {ticket: number for number, ticket in enumerate(sorted({one.ticket for one in turns}))}
    paired = _paired(turns, known["pays"], now, rules)
    waits = {one.job: number for number, one in enumerate((one for one in turns if one.ran_s is None), start=1)}
    return [
        contract.Wish(
            job=one.job,
            size=one.candidate.asked,
            level=_YIELDS if one.job in yielding else place[one.ticket] / len(place),
            extras_level=_YIELDS,
            reason=paired.undone.get(one.job) or _reason(one, now, waits),
            moves=True,
            beside=paired.hosts.get(one.job, ""),
            yields=one.job in paired.undone,
        )
        for one in sorted(turns, key=lambda one: (one.job in yielding, *_first_come(one)))
    ]


def _read(given: Mapping[str, float]) -> dict[str, float]:
    known = parameters.read(name, given, PARAMETERS)
    if known["slice_s"] <= 0:
        raise parameters.refused(name, "slice_s", known["slice_s"], "more than 0")
    if known["pays"] < 0:
        raise parameters.refused(name, "pays", known["pays"], "0 or more")
    return known


def _turn(one: contract.Candidate, slice_s: float, now: float) -> Turn:
    gang, running = one.gang, one.running
    if running is None:
        return Turn(one, max(gang.submitted_at, gang.stopped_at or gang.submitted_at), slice_s, None)
    if running.stopping:
        return Turn(one, now, slice_s, None)  # it will queue behind those that wait
    if gang.curve is None and running.checkpoint_at is None:
        slice_s *= 2.0 ** min(max(0, gang.starts - 1), DOUBLED)
    ticket = max(gang.submitted_at, gang.stopped_at or gang.submitted_at)
    return Turn(one, ticket, slice_s, max(0.0, _ran_s(running, slice_s, now)))


def _ran_s(running: plans.Running, slice_s: float, now: float) -> float:
    """Return the seconds of its slice that a gang has used.

    Processes that have not told of a step yet, though they did before, have the time of a slice to come so far. That
    time doubles with each start that was stopped on the way: on a machine that became slow no gang would train again.
    """
    if running.starting:
        way_s = slice_s * 2.0 ** min(running.gang.silent_starts, DOUBLED)
        return 0.0 if running.began_at is None else now - running.began_at - way_s
    return now - (running.started_at if running.began_at is None else running.began_at)


def _yielding(turns: Sequence[Turn], now: float) -> set[str]:
    """Return the gangs that yield at the end of their slices, the longest running first.

    There are as many as the waiting gangs need; overdue gangs yield in any case.
    """
    asked = _NOTHING
    for one in turns:
        gang = one.candidate.gang
        if one.ran_s is None and (gang.not_before is None or gang.not_before <= now):
            asked += gang.amount(gang.smallest)
    found: set[str] = set()
    given = _NOTHING
    for one in sorted(turns, key=_longest_running):
        if one.slices < 1:
            break
        if one.candidate.gang.preemptible and (one.slices >= OVERDUE or not asked.fits(given)):
            found.add(one.job)
            given += one.candidate.gang.amount(one.candidate.size)
    return found


def _paired(turns: Sequence[Turn], pays: float, now: float, rules: plans.Rules) -> pairing.Pairs:
    """Return the pairs. A gang that is restarted only to share its device counts as running there."""
    waiting: list[contract.Candidate] = []
    running: list[contract.Candidate] = []
    for one in (turn.candidate for turn in turns if pays):
        if one.running is not None and not one.running.stopping:
            if not one.running.starting or pairing.shared(one):
                running.append(one)
        elif one.resumes(now, rules):
            running += [one] if pairing.shared(one) else []
        elif one.gang.not_before is None or one.gang.not_before <= now:
            waiting.append(one)
    return pairing.pairs(waiting, running, pays)


def _first_come(one: Turn) -> tuple[float, float, str]:
    """Return the sort key of a turn; of gangs that were stopped together, the one that has run least comes first."""
    return one.ticket, one.had_s, one.job


def _longest_running(one: Turn) -> tuple[float, float, str]:
    return -one.slices, -one.had_s, one.job


def _reason(one: Turn, now: float, waits: Mapping[str, int]) -> str:
    if one.ran_s is None:
        return (
            f"number {waits[one.job]} of {len(waits)} in the order of turns, after {now - one.ticket:.0f} s of waiting"
        )
    left_s = one.slice_s - one.ran_s
    return f"its turn of {one.slice_s:.0f} s " + (f"lasts {left_s:.0f} s more" if left_s > 0 else "is over")
