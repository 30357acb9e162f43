"""Levels within bands: which gang may be stopped for which."""

from __future__ import annotations

import pytest
from tests.scheduler import drafted

from oarlock.scheduler.policies import bands, contract

NOW = 1000.0


def placed(band: int, before: float, *, waited: float | None = None) -> bands.Placed:
    """A gang that has waited so long, or one that runs."""
    of = drafted.cluster(
        "node a gpus=8\nrunning one gpus=1 on=a started=500 at=0"
        if waited is None
        else f"node a gpus=8\njob one gpus=1 at={NOW - waited}"
    )
    (candidate,) = [contract.Candidate(gang=job.gang, running=job) for job in of.running.values()] + [
        contract.waiting(gang) for gang in of.waiting.values()
    ]
    return bands.Placed(band, (before,), candidate, "")


@pytest.mark.parametrize(
    ("newcomer", "running", "stops"),
    [
        (placed(0, 1, waited=0), placed(1, 0), True),  # a lower band
        (placed(1, 0, waited=900), placed(0, 1), False),  # a higher one
        (placed(0, 0, waited=600), placed(0, 1), True),  # before it in its band, and has waited for long
        (placed(0, 0, waited=599), placed(0, 1), False),
        (placed(0, 1, waited=900), placed(0, 0), False),  # after it
        (placed(0, 0, waited=900), placed(0, 0), False),  # level with it
    ],
)
def test_which_gang_is_stopped_for_which(newcomer: bands.Placed, running: bands.Placed, stops: bool) -> None:
    levels = [wish.level for wish in bands.wishes([newcomer, running], NOW, 600.0)]
    order = sorted([newcomer, running], key=lambda one: (one.band, one.before))
    of = dict(zip(map(id, order), levels, strict=True))
    assert (of[id(newcomer)] < of[id(running)]) is stops
