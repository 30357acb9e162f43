"""Pairs of gangs that share a device, chosen by measurements (Gandiva, OSDI '18, section 4: packing).

Two gangs that each ask for one whole device may be faster together on one than by turns, where neither keeps it busy.
No policy can tell beforehand: so a pair is tried, and undone where it does not pay. The speed of a gang beside another
is kept with its curve (`curves.Sample.beside`): the measurement both decides and is remembered.

The worth of a pair is the sum of the two speeds, each as a part of the speed alone; turns are worth 1.
A gang is paired only after it was measured alone; only if it says how much of a device's memory it needs, since beside
another one it has half of that; and it is tried with few others, since every trial restarts two.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import NamedTuple

from oarlock.scheduler.policies import contract
from oarlock.spec import curves, holdings, plans

JUDGED = 3
"""Measurements of each of the two before their worth counts."""

GUESTS = 32
"""Waiting gangs that are considered for a pair, the first to come: each pair is a restart."""

TRIED = 3
"""Gangs with which one gang is tried: after that it is paired only with gangs that it is known to suit."""


class Pairs(NamedTuple):
    """The host of each waiting gang that may be paired, and for each running gang that is to stop the reason."""

    hosts: dict[str, str]
    undone: dict[str, str]


def pairs(waiting: Sequence[contract.Candidate], running: Sequence[contract.Candidate], pays: float) -> Pairs:
    """Return the pairs that are worth `pays` at least.

    `waiting` is in the order of turns, `running` in the order in which hosts are chosen; gangs that are being stopped
    only to share their devices are among the latter.
    """
    together = _together(running)
    undone = {
        guest.gang.job: _reason(guest, host, worth)
        for host, guest in together
        if (worth := _worth(host.gang, guest.gang)) is not None and worth < pays
    }
    taken = {one.gang.job for pair in together for one in pair}
    hosts = _Hosts([one for one in running if one.gang.job not in taken and _may_share(one.gang)], pays)
    guests = islice((one.gang for one in waiting if _may_share(one.gang)), GUESTS)
    found = {guest.job: host for guest in guests if (host := hosts.best(guest)) is not None}
    return Pairs(found, undone)


class _Hosts:
    """The gangs that may share their devices. No gang is compared with all of them: there may be thousands."""

    def __init__(self, able: Sequence[contract.Candidate], pays: float) -> None:
        self._pays = pays
        self._able = {one.gang.job: one.gang for one in able}
        self._halves = {one.gang.job for one in able if shared(one) is not None}
        ones = sorted(able, key=lambda one: (shared(one) is None, _since(one), one.gang.job))
        self._untried = {one.gang.job: one.gang for one in ones if not _tried_enough(one.gang)}

    def best(self, guest: plans.Gang) -> str | None:
        """Return the best host for a guest, and remove it from the hosts; None where there is none.

        A gang that is alone on a shared device comes first, then the best known pair, then the longest running gang.
        """
        known = {
            mate: worth
            for mate in _mates(guest)
            if mate in self._able and (worth := _worth(guest, self._able[mate])) is not None
        }
        paying = [(mate not in self._halves, -worth, mate) for mate, worth in known.items() if worth >= self._pays]
        if not _tried_enough(guest):
            new = next((job for job in self._untried if job not in known), None)
            paying += [(new not in self._halves, 0.0, new)] if new is not None else []
        best = min(paying)[2] if paying else None
        if best is not None:
            del self._able[best]
            self._untried.pop(best, None)
        return best


def _together(running: Iterable[contract.Candidate]) -> list[tuple[contract.Candidate, contract.Candidate]]:
    """Return the pairs that share a device, or are about to; the gang that came first stands first."""
    on: dict[tuple[str, int], list[contract.Candidate]] = {}
    for one in running:
        claim = shared(one)
        if claim is not None:
            on.setdefault((claim.node, claim.devices[0]), []).append(one)
    found = (sorted(ones, key=lambda one: one.arrival) for ones in on.values() if len(ones) > 1)
    return [(first, other) for first, other, *_ in found]


def shared(one: contract.Candidate) -> holdings.Holding | None:
    """Return its present or next share of a device, if it asks for a whole device; else None."""
    running = one.running
    claims = one.gang.destined if running is None or running.stopping else running.holdings
    whole = one.gang.asks[0].amount.gpus == 1
    return claims[0] if whole and len(claims) == 1 and claims[0].amount.gpu_milli else None


def _may_share(gang: plans.Gang) -> bool:
    (ask, *others) = gang.asks
    alone = not others and ask.count == 1 and ask.amount.gpus == 1
    return alone and ask.gpu_memory_bytes > 0 and gang.preemptible and bool(_alone(gang))


def _mates(gang: plans.Gang) -> set[str]:
    """Return the jobs with which it was tried."""
    return {sample.beside for sample in _samples(gang)} - {""}


def _tried_enough(gang: plans.Gang) -> bool:
    return len(_mates(gang)) >= TRIED


def _since(one: contract.Candidate) -> float:
    return 0.0 if one.running is None else one.running.started_at


def _worth(one: plans.Gang, other: plans.Gang) -> float | None:
    """Return the worth of a pair; None where it was not measured."""
    mine, theirs = _part(one, other.job), _part(other, one.job)
    return None if mine is None or theirs is None else mine + theirs


def _part(gang: plans.Gang, mate: str) -> float | None:
    """Return its speed beside `mate` as a part of its speed alone; None where it was not measured often enough."""
    alone = _alone(gang)
    found = [
        (alone[one.local].step_s / one.step_s, one.count)
        for one in _samples(gang)
        if one.beside == mate and one.step_s > 0 and one.local in alone
    ]
    looks = sum(count for _, count in found)
    return sum(part * count for part, count in found) / looks if looks >= JUDGED else None


def _alone(gang: plans.Gang) -> dict[int, curves.Sample]:
    """Return its measurements alone on one device, by the number of examples in a step."""
    return {one.local: one for one in _samples(gang) if not one.beside and one.devices == 1 and one.step_s > 0}


def _samples(gang: plans.Gang) -> Sequence[curves.Sample]:
    return gang.curve.samples if gang.curve is not None else ()


def _reason(guest: contract.Candidate, host: contract.Candidate, worth: float) -> str:
    return f"beside {host.gang.name} on one GPU both together do {worth:.2f} times what one does alone"
