"""Gangs in bands: gangs of higher bands may be stopped for a gang of a lower band.

Within a band, a gang is stopped only for one that stands before it and has waited for long. So no gang starves behind
gangs that went ahead because they fitted, and yet most of those run undisturbed. A gang that was squeezed in over
several nodes is moved to fewer nodes once that pays (`granting.moving`).
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from oarlock.scheduler.policies import contract


class Placed(msgspec.Struct, frozen=True, gc=False):
    """A gang in its band. `before` sorts within the band; equal gangs have the same."""

    band: int
    before: tuple[float, ...]
    candidate: contract.Candidate
    reason: str


def wishes(placed: Sequence[Placed], now: float, patience_s: float) -> list[contract.Wish]:
    """Return the wishes band by band, each at the size that was asked for."""
    ranked = sorted(placed, key=_order)
    place = {key: number for number, key in enumerate(dict.fromkeys((one.band, one.before) for one in ranked))}
    return [
        contract.Wish(
            job=one.candidate.gang.job,
            size=one.candidate.asked,
            level=one.band + _within(one.candidate, place[one.band, one.before] / len(place), now, patience_s),
            reason=one.reason,
            moves=True,
        )
        for one in ranked
    ]


def waited_s(one: contract.Candidate, now: float) -> float:
    """Return the seconds from the submission, or the last stop, until now, or until the gang started."""
    since = max(one.gang.submitted_at, one.gang.stopped_at or one.gang.submitted_at)
    return max(0.0, (now if one.running is None else one.running.started_at) - since)


def _order(one: Placed) -> tuple[int, tuple[float, ...], str]:
    return one.band, one.before, one.candidate.gang.job


def _within(one: contract.Candidate, place: float, now: float, patience_s: float) -> float:
    """Return 0 to 1/2 in the order of the band; 3/4 for a gang that has not waited long enough to stop others."""
    patient = one.running is None and waited_s(one, now) < patience_s
    return 0.75 if patient else place / 2
