"""Least attained service first, by bands."""

from __future__ import annotations

import pytest
from tests.scheduler.policies import candidates, contract

from oarlock.scheduler.policies import las, port
from oarlock.spec import errors

TIRESIAS = {"first_s": 16 * 3600.0, "bands": 2.0, "strict": 1.0}
"""As in the Pollux comparison: one boundary at 16 GPU-hours, first come first served within, preemptive."""


def served(job: str, seconds: float, at: float = 0.0, **known) -> port.Candidate:
    return candidates.waiting(candidates.gang(job, at, served_s=seconds, starts=1, **known))


class TestLas(contract.PolicyContract):
    policy = las

    def test_a_job_falls_through_the_bands_by_what_it_was_served(self) -> None:
        crowd = [
            served("last", 20_000, 1),
            served("third", 7637.5, 2),
            served("second", 3250, 3),
            served("still-first", 3249, 4),
            served("new", 0, 5),
        ]
        wishes = self.ask(crowd, factor=2.35, first_s=3250.0, bands=4.0)
        assert candidates.jobs(wishes) == ["still-first", "new", "second", "third", "last"]
        assert [wish.level for wish in wishes] == [0, 0, 1, 2, 3]

    def test_what_the_present_attempt_holds_counts_while_it_runs(self) -> None:
        held = candidates.running(candidates.gang("holds-8", 0, 8, served_s=3000.0, starts=1), candidates.NOW - 60)
        newcomer = served("new", 0, 5)
        level = candidates.levels(self.ask([held, newcomer], first_s=3250.0))
        assert level["new"] < level["holds-8"]

    def test_within_a_band_nobody_is_stopped_unless_strict(self) -> None:
        first, runs = served("first", 10, 0), candidates.running(candidates.gang("runs", 5))
        same, strict = self.ask([first, runs]), self.ask([first, runs], **TIRESIAS)
        assert candidates.jobs(same) == candidates.jobs(strict) == ["first", "runs"]
        assert candidates.levels(same) == {"first": 0, "runs": 0}
        assert candidates.levels(strict) == {"first": 0, "runs": 1}

    def test_one_that_waits_for_long_is_treated_as_new(self) -> None:
        """It ran 1000 s on 8 devices: with a knob of 2 it comes back after 2000 s."""
        known = {"gpus": 8, "served_s": 8000.0, "starts": 1}
        patient = candidates.waiting(candidates.gang("patient", **known, stopped_at=candidates.NOW - 1999))
        starved = candidates.waiting(candidates.gang("starved", **known, stopped_at=candidates.NOW - 2000))
        assert candidates.levels(self.ask([patient, starved], promote=2.0)) == {"patient": 2, "starved": 0}
        assert candidates.levels(self.ask([patient, starved], promote=0.0)) == {"patient": 2, "starved": 2}

    def test_and_stays_so_until_it_has_been_served_anew(self) -> None:
        gang = candidates.gang("was-starved", 0, 8, served_s=8000.0, starts=1, stopped_at=candidates.NOW - 9000)
        short, long = candidates.running(gang, candidates.NOW - 400), candidates.running(gang, candidates.NOW - 500)
        assert candidates.levels(self.ask([short], promote=2.0, first_s=3250.0)) == {"was-starved": 0}
        assert candidates.levels(self.ask([long], promote=2.0, first_s=3250.0)) == {"was-starved": 1}

    @pytest.mark.parametrize(
        ("name", "value"), [("first_s", 0.0), ("factor", 1.0), ("bands", 0.0), ("bands", 65.0), ("promote", -1.0)]
    )
    def test_what_makes_no_sense_is_refused(self, name: str, value: float) -> None:
        with pytest.raises(errors.InvalidInput, match=name):
            self.ask([], **{name: value})
