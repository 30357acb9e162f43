"""Turns: what a policy promises, and what this one adds."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.scheduler.policies import candidates, conformance

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


# Pairs


def small(job: str, **beside: float) -> plans.Gang:
    """One device, with a part of its memory that it tells. Alone a step takes 1 s, beside others so long."""
    samples = [
        curves.Sample(nodes=1, devices=1, local=8, step_s=step_s, sync_s=0.0, beside=mate, count=3)
        for mate, step_s in {"": 1.0, **beside}.items()
    ]
    curve = curves.Curve(model=curves.Table(rates=(1.0,)), samples=tuple(samples))
    gang = candidates.gang(job, 0, curve=curve)
    return replace(gang, asks=(replace(gang.asks[0], gpu_memory_bytes=2**30),))


BESIDE = curves.Curve(
    model=curves.Table(rates=(1.0,)),
    samples=(curves.Sample(nodes=1, devices=1, local=8, step_s=1.0, sync_s=0.0, beside="x", count=9),),
)


def on_a_half(gang: plans.Gang, device: int = 0) -> contract.Candidate:
    one = candidates.running(gang, NOW - 300)
    assert one.running is not None
    (claim,) = one.running.holdings
    amount = replace(claim.amount, gpus=0, gpu_milli=500)
    return replace(one, running=replace(one.running, holdings=(replace(claim, amount=amount, devices=(device,)),)))


def paired(*crowd: contract.Candidate, **given: float) -> dict[str, str]:
    wishes = gandiva.wishes(crowd, candidates.BUDGET, NOW, plans.Rules(), given)
    return {wish.job: wish.beside for wish in wishes if wish.beside}


def undone(*crowd: contract.Candidate, **given: float) -> list[str]:
    return [wish.job for wish in gandiva.wishes(crowd, candidates.BUDGET, NOW, plans.Rules(), given) if wish.yields]


def test_one_that_waits_may_share_with_one_that_runs() -> None:
    host, guest = candidates.running(small("host"), NOW - 300), candidates.waiting(small("guest"))
    assert paired(host, guest) == {"guest": "host"}
    assert paired(host, guest, pays=0) == {}, "nobody shares"


@pytest.mark.parametrize(
    ("why", "gang"),
    [
        ("it was never measured alone", replace(small("g"), curve=None)),
        ("it was measured beside others only", replace(small("g"), curve=BESIDE)),
        ("nobody knows how much memory it needs", candidates.gang("g", 0, curve=small("g").curve)),
        ("it must not be stopped", replace(small("g"), preemptible=False)),
        ("it asks for two devices", candidates.gang("g", 0, 2, curve=small("g").curve)),
        ("it has several tasks", replace(small("g"), asks=small("g").asks * 2)),
    ],
)
def test_one_does_not_share_if(why: str, gang: plans.Gang) -> None:
    assert paired(candidates.running(small("host"), NOW - 300), candidates.waiting(gang)) == {}
    assert paired(candidates.running(gang, NOW - 300), candidates.waiting(small("guest"))) == {}


def test_the_best_that_is_known_comes_before_the_unknown_and_who_is_alone_on_a_half_before_all() -> None:
    guest = candidates.waiting(small("guest", good=1.1, fair=1.5))
    new = candidates.running(small("new"), NOW - 900)
    fair, good = (candidates.running(small(name, guest=1.2), NOW - 300) for name in ("fair", "good"))
    assert paired(guest, new, fair, good) == {"guest": "good"}
    assert paired(guest, new, fair) == {"guest": "fair"}
    assert paired(guest, new, fair, good, on_a_half(small("alone"))) == {"guest": "alone"}
    fair = on_a_half(small("fair", guest=1.2))
    assert paired(guest, new, fair, good, on_a_half(small("alone"), device=1)) == {"guest": "fair"}
    later = candidates.running(small("a-later"), NOW - 300)
    assert paired(candidates.waiting(small("guest")), later, new) == {"guest": "new"}, "the one that has run longest"


def test_each_host_has_one_guest_and_who_waits_longest_chooses_first() -> None:
    crowd = [candidates.waiting(replace(small(name), stopped_at=at)) for name, at in (("late", 900.0), ("early", 9.0))]
    assert paired(*crowd, candidates.running(small("host"), NOW - 300)) == {"early": "host"}


def test_in_one_plan_the_first_few_are_paired() -> None:
    hosts = [candidates.running(small(f"host-{number}"), NOW - 300) for number in range(40)]
    guests = [candidates.waiting(replace(small(f"guest-{number}"), submitted_at=float(number))) for number in range(40)]
    assert sorted(paired(*hosts, *guests)) == sorted(f"guest-{number}" for number in range(32))


def test_a_pair_that_did_not_pay_is_undone_and_not_tried_again() -> None:
    first, other = small("first", other=2.0), replace(small("other", first=2.0), submitted_at=5.0)
    assert undone(on_a_half(first), on_a_half(other)) == ["other"], "the one that came later"
    assert undone(on_a_half(first), on_a_half(other), pays=0.9) == [], "half of each, together as good as turns"
    assert undone(on_a_half(first), on_a_half(other, device=1)) == [], "they are not on one device"
    assert undone(on_a_half(first), on_a_half(small("other"))) == [], "what the other does is not known yet"
    assert paired(on_a_half(first), candidates.waiting(other)) == {}
    told = {
        wish.job: wish.reason
        for wish in gandiva.wishes([on_a_half(first), on_a_half(other)], candidates.BUDGET, NOW, plans.Rules(), {})
    }
    assert told["other"] == "beside first on one GPU both together do 1.00 times what one does alone"


def test_two_looks_are_not_enough_to_judge() -> None:
    def seldom(gang: plans.Gang) -> plans.Gang:
        assert gang.curve is not None
        samples = tuple(replace(one, count=2) for one in gang.curve.samples)
        return replace(gang, curve=replace(gang.curve, samples=samples))

    pair = on_a_half(seldom(small("first", other=9.0))), on_a_half(seldom(small("other", first=9.0)))
    assert undone(*pair) == []


def test_one_that_was_tried_with_three_is_tried_no_more_but_with_those_that_suit_it() -> None:
    guest = candidates.waiting(small("guest", a=9.0, b=9.0, c=1.1))
    assert paired(guest, candidates.running(small("new"), NOW - 300)) == {}
    assert paired(guest, candidates.running(small("c", guest=1.1), NOW - 300)) == {"guest": "c"}


def test_one_that_stops_only_to_share_is_a_host_already() -> None:
    """Else the next plan would put somebody else there, or nobody."""
    host, half = small("host"), on_a_half(small("host")).running
    assert half is not None
    going = replace(host, destined=half.holdings)
    guest = candidates.waiting(small("guest"))
    stops = candidates.running(going, NOW - 300, stopping=True, returns=True)
    assert paired(stops, guest) == {"guest": "host"}
    assert paired(candidates.waiting(replace(going, stopped_at=NOW - 5)), guest) == {"guest": "host"}
    assert paired(candidates.waiting(replace(going, stopped_at=NOW - 500)), guest) == {}, "that place is gone"


@pytest.mark.parametrize("wrong", [-1.0, -0.1])
def test_less_than_nothing_pays_nobody(wrong: float) -> None:
    with pytest.raises(errors.InvalidInput, match="pays of policy gandiva"):
        gandiva.wishes([], candidates.BUDGET, NOW, plans.Rules(), {"pays": wrong})
