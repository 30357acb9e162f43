"""Least attained service first, by bands."""

from __future__ import annotations

import pytest
from tests.scheduler.policies import candidates, conformance

from oarlock.scheduler.policies import contract, las
from oarlock.spec import errors

NOW = candidates.NOW

TIRESIAS = {"band1_s": 16 * 3600.0, "band2_s": 0.0, "band3_s": 0.0, "patience_s": 0.0}
"""As in the Pollux comparison: one boundary at 16 GPU-hours, first come first served within, preemptive."""

THREE = {"band1_s": 3250.0, "band2_s": 7200.0, "band3_s": 18_000.0}


def served(job: str, seconds: float, at: float = 0.0, **known) -> contract.Candidate:
    return candidates.waiting(candidates.gang(job, at, served_s=seconds, starts=1, **known))


class TestLas(conformance.PolicyContract):
    policy = las

    def bands(self, crowd: list[contract.Candidate], **given: float) -> dict[str, int]:
        return {job: int(level) for job, level in candidates.levels(self.ask(crowd, **given)).items()}

    def test_a_job_falls_through_the_bands_by_its_service(self) -> None:
        crowd = [
            served("last", 20_000, 1),
            served("third", 7200, 2),
            served("second", 3250, 3),
            served("still-first", 3249, 4),
            served("new", 0, 5),
        ]
        assert candidates.jobs(self.ask(crowd, **THREE)) == ["still-first", "new", "second", "third", "last"]
        assert self.bands(crowd, **THREE) == {"still-first": 0, "new": 0, "second": 1, "third": 2, "last": 3}
        assert set(self.bands(crowd, band1_s=0.0, band2_s=0.0, band3_s=0.0).values()) == {0}

    def test_the_holdings_of_the_present_attempt_count_while_it_runs(self) -> None:
        held = candidates.running(candidates.gang("holds-8", 0, 8, served_s=3000.0, starts=1), NOW - 60)
        level = candidates.levels(self.ask([held, served("new", 0, 5)], **THREE))
        assert level["new"] < level["holds-8"]

    def test_a_lower_band_has_higher_ones_stopped_at_once(self) -> None:
        runs = candidates.running(candidates.gang("old", 0, 1, served_s=90_000.0, starts=1))
        level = candidates.levels(self.ask([runs, served("just-came", 0, NOW)]))
        assert level["just-came"] < level["old"]

    @pytest.mark.parametrize(("came", "may_stop"), [(NOW - 299, False), (NOW - 300, True)])
    def test_within_a_band_only_earlier_jobs_and_those_that_waited_for_long(self, came: float, may_stop: bool) -> None:
        before, later = served("before", 10, came), candidates.running(candidates.gang("later", came + 5))
        assert candidates.jobs(self.ask([later, before])) == ["before", "later"]
        level = candidates.levels(self.ask([later, before], patience_s=300.0))
        assert (level["before"] < level["later"]) is may_stop

    def test_no_gang_is_stopped_for_a_later_one_however_long_it_waits(self) -> None:
        runs, waits = candidates.running(candidates.gang("runs", 5)), served("waits", 0, 6)
        level = candidates.levels(self.ask([runs, waits], **TIRESIAS))
        assert level["runs"] < level["waits"]

    def test_waiting_begins_anew_where_it_was_stopped(self) -> None:
        later = candidates.running(candidates.gang("later", 5))
        stopped = served("stopped", 10, 0, stopped_at=NOW - 60)
        level = candidates.levels(self.ask([later, stopped], patience_s=300.0))
        assert level["stopped"] > level["later"]

    def test_one_that_waits_for_long_is_treated_as_new(self) -> None:
        """It ran 1000 s on 8 devices: with a knob of 2 it comes back after 2000 s."""
        known = {"gpus": 8, "served_s": 8000.0, "starts": 1}
        patient = candidates.waiting(candidates.gang("patient", **known, stopped_at=NOW - 1999))
        starved = candidates.waiting(candidates.gang("starved", **known, stopped_at=NOW - 2000))
        assert self.bands([patient, starved], promote=2.0, **THREE) == {"patient": 2, "starved": 0}
        assert self.bands([patient, starved], promote=0.0, **THREE) == {"patient": 2, "starved": 2}

    def test_and_stays_so_until_it_has_been_served_anew(self) -> None:
        gang = candidates.gang("was-starved", 0, 8, served_s=8000.0, starts=1, stopped_at=NOW - 9000)
        short, long = candidates.running(gang, NOW - 400), candidates.running(gang, NOW - 500)
        assert self.bands([short], promote=2.0, **THREE) == {"was-starved": 0}
        assert self.bands([long], promote=2.0, **THREE) == {"was-starved": 1}

    @pytest.mark.parametrize(
        "wrong",
        [{"band1_s": -1.0}, {"patience_s": -1.0}, {"promote": -1.0}, {"band2_s": 9_000.0}, {"band3_s": 10.0}],
    )
    def test_impossible_parameters_are_refused(self, wrong: dict[str, float]) -> None:
        with pytest.raises(errors.InvalidInput, match="of policy las"):
            self.ask([], **wrong)

    def test_the_reason_tells_the_service_and_the_band(self) -> None:
        (wish,) = self.ask([served("a", 3300)], **THREE)
        assert wish.reason == "3300 device-seconds so far: band 2 of 4, which ends at 7200"
