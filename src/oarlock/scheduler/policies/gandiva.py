"""Turns: where not all fit, each runs for a slice of time and yields to who has waited longest (Gandiva, OSDI '18).

Whoever comes is placed where there is room. As soon as somebody waits, gangs take turns: one whose slice is over may be
stopped, saves, and queues behind those that wait; when its turn has come again it goes on from its checkpoint. Where
all fit nobody is stopped. Elastic gangs grow into idle devices, and give up at once for newcomers what they have above
their least, in the midst of a slice too.

The queue is in the order of tickets: when a gang was submitted or, if later, last stopped. Those that have run longest
yield first, as many as those that wait can use. Small gangs may start beside a large one that waits for much; as they
came after it, it may have them stopped before their slices are over. So it comes to its turn, too: of those that may
run before it there are ever fewer.

Two gangs of one device each share one while one of them would have to wait, as long as they get on faster so than by
turns (`pairing`). Who runs may be moved to a better place than the one that it found (`granting/moving.py`).

Gandiva suspends within a second, at a point of a step at which little is on the device, so that its slices of a minute
cost nothing. Here a turn begins with a restart from a checkpoint: so slices are longer, and one begins with the first
step that is told of, however long the way to it was. Who has shown neither steps nor a checkpoint may have to do
everything again: its slices double from start to start, so that it comes to its end.
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
    # Two gangs share a device only if both together do so many times what one does alone. 0: nobody shares.
    "pays": 1.1,
}

OVERDUE = 2.0
"""Who has run for so many slices yields to anybody: those that should go first did not help."""

DOUBLED = 10
"""Times that a slice is doubled at most."""

_YIELDS = 1.0
_NOTHING = holdings.Resources()


class Turn(NamedTuple):
    """`ticket`: since when it waits, or waited before it started; `ran_s`: how much of its slice of `slice_s`, None: it
    waits.
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
        """For how long it has run, all attempts together: its device-seconds over its devices."""
        gang = self.candidate.gang
        width = gang.amount(gang.wanted)
        return self.candidate.served_s / (width.devices or width.cpus_milli / 1000 or 1.0)

    @property
    def slices(self) -> float:
        """How many it has had; less than 0 where it waits."""
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
    """Whose slice is over, of those the longest running, until what they hold would do for all that wait."""
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
    """Who is being restarted only to share its device counts as running there."""
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
    """Of those that were stopped together the one that has run least."""
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
