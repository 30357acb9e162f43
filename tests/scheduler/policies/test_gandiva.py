"""Turns: what a policy promises, and what this one adds."""

from __future__ import annotations

from typing import Any

import pytest
from tests.scheduler.policies import candidates, contract

from oarlock.scheduler.policies import gandiva, port
from oarlock.spec import curves, errors, plans

NOW = candidates.NOW
SLICE = 600.0


def waits(job: str, since: float, gpus: int = 1, **known: Any) -> port.Candidate:
    """It came long ago, and was stopped then."""
    return candidates.waiting(candidates.gang(job, 0, gpus, starts=1, stopped_at=since, **known))


def runs(job: str, for_s: float, gpus: int = 1, *, ticket: float = 0.0, **known: Any) -> port.Candidate:
    """Its turn began so long ago; it had waited since `ticket`."""
    gang = candidates.gang(job, 0, gpus, starts=2, stopped_at=ticket, **known)
    return candidates.running(gang, NOW - for_s, checkpoint_at=NOW - 1)


class TestGandiva(contract.PolicyContract):
    policy = gandiva
    slices = True

    def stops(self, crowd: list[port.Candidate], **given: float) -> set[tuple[str, str]]:
        """Who may have whom stopped."""
        level = candidates.levels(self.ask(crowd, **given))
        waiting = [one.gang.job for one in crowd if one.running is None]
        running = [one.gang.job for one in crowd if one.running is not None]
        return {(one, other) for one in waiting for other in running if level[one] < level[other]}

    @pytest.mark.parametrize(("ran_s", "yields"), [(SLICE - 1, False), (SLICE, True)])
    def test_who_has_had_its_slice_yields_to_who_waits(self, ran_s: float, yields: bool) -> None:
        crowd = [runs("runs", ran_s), waits("waits", NOW - 60)]
        assert (("waits", "runs") in self.stops(crowd)) is yields

    def test_a_slice_is_no_shorter_than_the_least_time_for_which_gangs_run(self) -> None:
        crowd = [runs("runs", 119), waits("waits", NOW - 60)]
        assert not self.stops(crowd, slice_s=1)
        crowd = [runs("runs", 120), waits("waits", NOW - 60)]
        assert self.stops(crowd, slice_s=1)

    def test_who_has_waited_longest_is_first_and_who_was_just_stopped_is_last(self) -> None:
        new = candidates.waiting(candidates.gang("new", NOW - 100))
        stopping = candidates.running(candidates.gang("a-stops", 0), NOW - 900, stopping=True, returns=True)
        crowd = [stopping, waits("b", NOW - 50), new, waits("c", NOW - 200)]
        assert candidates.jobs(self.ask(crowd)) == ["c", "new", "b", "a-stops"]
        assert self.ask(crowd)[1].reason == "number 2 of 4 that wait for their turns, since 100 s"

    def test_those_that_have_run_longest_yield_first_and_no_more_than_are_needed(self) -> None:
        crowd = [runs("a", 700), runs("b", 900), runs("c", 800, ticket=5), runs("d", 20), waits("waits", NOW - 60)]
        assert self.stops(crowd) == {("waits", "b")}
        crowd = [*crowd[:-1], waits("waits", NOW - 60, gpus=2)]
        assert self.stops(crowd) == {("waits", "b"), ("waits", "c")}

    def test_one_that_backs_off_needs_nothing_yet(self) -> None:
        crowd = [runs("runs", 900), waits("waits", NOW - 60, not_before=NOW + 10)]
        assert not self.stops(crowd)

    def test_who_has_run_for_two_slices_yields_to_anybody(self) -> None:
        """The first may hold what the one that waits cannot use."""
        crowd = [runs("a", 1300), runs("b", 1200), runs("c", 1199), waits("waits", NOW - 60)]
        assert self.stops(crowd) == {("waits", "a"), ("waits", "b")}

    def test_who_started_beside_one_that_came_before_it_yields_to_that_one_alone(self) -> None:
        """Else a large gang would wait for ever for the slices of small ones to be over at once."""
        crowd = [
            runs("small", 200, ticket=NOW - 300),
            runs("before", 200, ticket=NOW - 1000),
            waits("large", NOW - 900, gpus=4),
            waits("later", NOW - 100),
        ]
        assert self.stops(crowd) == {("large", "small")}

    def test_what_a_gang_has_above_its_least_it_gives_up_for_anybody(self) -> None:
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

    def test_who_may_have_to_begin_anew_has_longer_slices_each_time(self) -> None:
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
