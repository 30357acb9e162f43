"""Turns: the promises of every policy, and the rules of this one."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.scheduler.policies import candidates, conformance
from tests.scheduler.policies.shares import on_a_half, small

from oarlock.scheduler.policies import contract, gandiva
from oarlock.spec import curves, errors, plans

NOW = candidates.NOW
replace = msgspec.structs.replace
SLICE = 600.0


def waits(job: str, since: float, gpus: int = 1, **known: Any) -> contract.Candidate:
    """It came long ago, and was stopped then."""
    return candidates.waiting(candidates.gang(job, 0, gpus, starts=1, stopped_at=since, **known))


def runs(job: str, for_s: float, gpus: int = 1, *, ticket: float = 0.0, **known: Any) -> contract.Candidate:
    """Its turn began so long ago; it had waited since `ticket`."""
    gang = candidates.gang(job, 0, gpus, starts=2, stopped_at=ticket, **known)
    return candidates.running(gang, NOW - for_s, checkpoint_at=NOW - 1)


class TestGandiva(conformance.PolicyContract):
    policy = gandiva
    slices = True

    def stops(self, crowd: list[contract.Candidate], **given: float) -> set[tuple[str, str]]:
        """Return the pairs of gangs of which the first may have the second stopped."""
        level = candidates.levels(self.ask(crowd, **given))
        waiting = [one.gang.job for one in crowd if one.running is None]
        running = [one.gang.job for one in crowd if one.running is not None]
        return {(one, other) for one in waiting for other in running if level[one] < level[other]}

    @pytest.mark.parametrize(("ran_s", "yields"), [(SLICE - 1, False), (SLICE, True)])
    def test_a_gang_yields_to_a_waiting_one_after_its_slice(self, ran_s: float, yields: bool) -> None:
        crowd = [runs("runs", ran_s), waits("waits", NOW - 60)]
        assert (("waits", "runs") in self.stops(crowd)) is yields

    def test_a_slice_is_no_shorter_than_the_least_time_for_which_gangs_run(self) -> None:
        crowd = [runs("runs", 119), waits("waits", NOW - 60)]
        assert not self.stops(crowd, slice_s=1)
        crowd = [runs("runs", 120), waits("waits", NOW - 60)]
        assert self.stops(crowd, slice_s=1)

    def test_the_longest_waiting_is_first_and_one_that_was_just_stopped_is_last(self) -> None:
        new = candidates.waiting(candidates.gang("new", NOW - 100))
        stopping = candidates.running(candidates.gang("a-stops", 0), NOW - 900, stopping=True, returns=True)
        crowd = [stopping, waits("b", NOW - 50), new, waits("c", NOW - 200)]
        assert candidates.jobs(self.ask(crowd)) == ["c", "new", "b", "a-stops"]
        assert self.ask(crowd)[1].reason == "number 2 of 4 in the order of turns, after 100 s of waiting"

    def test_those_that_have_run_longest_yield_first_and_no_more_than_are_needed(self) -> None:
        crowd = [runs("a", 700), runs("b", 900), runs("c", 800, ticket=5), runs("d", 20), waits("waits", NOW - 60)]
        assert self.stops(crowd) == {("waits", "b")}
        crowd = [*crowd[:-1], waits("waits", NOW - 60, gpus=2)]
        assert self.stops(crowd) == {("waits", "b"), ("waits", "c")}

    def test_one_that_must_not_be_stopped_does_not_stand_for_those_that_may(self) -> None:
        fixed = candidates.running(candidates.gang("fixed", 0, preemptible=False), NOW - 5000, checkpoint_at=NOW)
        assert self.stops([fixed, runs("runs", 700), waits("waits", NOW - 60)]) == {("waits", "runs")}

    def test_one_that_backs_off_needs_nothing_yet(self) -> None:
        crowd = [runs("runs", 900), waits("waits", NOW - 60, not_before=NOW + 10)]
        assert not self.stops(crowd)

    def test_after_two_slices_a_gang_yields_to_any_other(self) -> None:
        """The first may hold what the one that waits cannot use."""
        crowd = [runs("a", 1300), runs("b", 1200), runs("c", 1199), waits("waits", NOW - 60)]
        assert self.stops(crowd) == {("waits", "a"), ("waits", "b")}

    def test_a_gang_that_started_beside_an_earlier_waiting_one_yields_to_that_one_alone(self) -> None:
        """Else a large gang would wait for ever for the slices of small ones to be over at once."""
        crowd = [
            runs("small", 200, ticket=NOW - 300),
            runs("before", 200, ticket=NOW - 1000),
            waits("large", NOW - 900, gpus=4),
            waits("later", NOW - 100),
        ]
        assert self.stops(crowd) == {("large", "small")}

    def test_a_gang_gives_up_all_above_its_least_for_any_other(self) -> None:
        grown = candidates.gang("grown", 0, 1, least=1, most=4)
        crowd = [candidates.running(grown, NOW - 130, size=(4,)), candidates.waiting(candidates.gang("came", NOW))]
        came, had = self.ask(crowd)[1], self.ask(crowd)[0]
        assert (had.job, had.size, came.size) == ("grown", (4,), (1,))
        assert had.level < came.level
        assert had.extras_level is not None
        assert had.extras_level >= came.level

    @pytest.mark.parametrize("wrong", [0.0, -1.0])
    def test_a_slice_of_nothing_is_refused(self, wrong: float) -> None:
        with pytest.raises(errors.InvalidInput, match="slice_s of policy gandiva"):
            self.ask([], slice_s=wrong)

    def test_a_gang_that_may_have_to_begin_anew_has_longer_slices_each_time(self) -> None:
        """Without a checkpoint it would be stopped for ever before its end."""
        for starts, slice_s in ((1, 600), (2, 1200), (5, 9600), (30, 600 * 1024)):
            gang = candidates.gang("plain", 0, starts=starts)
            for ran_s, yields in ((slice_s - 1, False), (slice_s, True)):
                crowd = [candidates.running(gang, NOW - ran_s), waits("waits", NOW - 60)]
                assert bool(self.stops(crowd)) is yields, (starts, ran_s)
        tells = candidates.gang("tells", 0, starts=5, curve=curves.Curve(model=curves.Table(rates=(1.0,))))
        assert self.stops([candidates.running(tells, NOW - 600), waits("waits", NOW - 60)])

    def test_one_whose_processes_have_not_begun_has_had_nothing_of_its_slice(self) -> None:
        gang = candidates.gang("starts", 0, starts=1, stopped_at=0.0)
        on_its_way = candidates.running(gang, NOW - 2000, starting=True)
        begun = candidates.running(gang, NOW - 2000, began_at=NOW - 100)
        silent = candidates.running(gang, NOW - 2000, starting=True, began_at=NOW - 1199)
        for one in (on_its_way, begun, silent):
            assert not self.stops([one, waits("waits", NOW - 60)])
        begun = candidates.running(gang, NOW - 2000, began_at=NOW - 600)
        silent = candidates.running(gang, NOW - 2000, starting=True, began_at=NOW - 1200)
        for one in (begun, silent):
            assert self.stops([one, waits("waits", NOW - 60)])

    def test_the_reason_tells_how_long_its_turn_lasts(self) -> None:
        told = {wish.job: wish.reason for wish in self.ask([runs("a", 100), runs("b", 700), waits("c", NOW - 60)])}
        assert told["a"] == "its turn of 600 s lasts 500 s more"
        assert told["b"] == "its turn of 600 s is over"


def test_sizes_are_the_owners() -> None:
    wishes = gandiva.wishes([runs("a", 0, gpus=3)], candidates.BUDGET, NOW, plans.Rules(), {})
    assert [wish.size for wish in wishes] == [(3,)]


# Pairs


def paired(*crowd: contract.Candidate, **given: float) -> dict[str, str]:
    wishes = gandiva.wishes(crowd, candidates.BUDGET, NOW, plans.Rules(), given)
    return {wish.job: wish.beside for wish in wishes if wish.beside}


def undone(*crowd: contract.Candidate, **given: float) -> list[str]:
    return [wish.job for wish in gandiva.wishes(crowd, candidates.BUDGET, NOW, plans.Rules(), given) if wish.yields]


def test_one_that_waits_may_share_with_one_that_runs() -> None:
    host, guest = candidates.running(small("host"), NOW - 300), candidates.waiting(small("guest"))
    assert paired(host, guest) == {"guest": "host"}
    assert paired(host, guest, pays=0) == {}, "nobody shares"


def test_each_host_has_one_guest_and_the_longest_waiting_chooses_first() -> None:
    crowd = [candidates.waiting(replace(small(name), stopped_at=at)) for name, at in (("late", 900.0), ("early", 9.0))]
    assert paired(*crowd, candidates.running(small("host"), NOW - 300)) == {"early": "host"}


def test_a_pair_that_did_not_pay_is_undone_and_not_tried_again() -> None:
    first, other = small("first", other=2.0), replace(small("other", first=2.0), submitted_at=5.0)
    assert undone(on_a_half(first), on_a_half(other)) == ["other"], "the one that came later"
    assert undone(on_a_half(first), on_a_half(other), pays=0.9) == [], "half of each, together as good as turns"
    assert undone(on_a_half(first), on_a_half(other, device=1)) == [], "they are not on one device"
    assert undone(on_a_half(first), on_a_half(small("other"))) == [], "the speed of the other is not known yet"
    assert paired(on_a_half(first), candidates.waiting(other)) == {}
    told = {
        wish.job: wish.reason
        for wish in gandiva.wishes([on_a_half(first), on_a_half(other)], candidates.BUDGET, NOW, plans.Rules(), {})
    }
    assert told["other"] == "beside first on one GPU both together do 1.00 times what one does alone"


def test_one_that_stops_only_to_share_is_a_host_already() -> None:
    """Else the next plan would put another gang there, or none."""
    host, half = small("host"), on_a_half(small("host")).running
    assert half is not None
    going = replace(host, destined=half.holdings)
    guest = candidates.waiting(small("guest"))
    stops = candidates.running(going, NOW - 300, stopping=True, returns=True)
    assert paired(stops, guest) == {"guest": "host"}
    assert paired(candidates.waiting(replace(going, stopped_at=NOW - 5)), guest) == {"guest": "host"}
    assert paired(candidates.waiting(replace(going, stopped_at=NOW - 500)), guest) == {}, "that place is gone"


@pytest.mark.parametrize("wrong", [-1.0, -0.1])
def test_a_negative_pays_is_refused(wrong: float) -> None:
    with pytest.raises(errors.InvalidInput, match="pays of policy gandiva"):
        gandiva.wishes([], candidates.BUDGET, NOW, plans.Rules(), {"pays": wrong})
