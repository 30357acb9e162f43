"""Pairs of gangs on one device: which are tried, which are known to pay, and which are undone."""

from __future__ import annotations

import itertools

import hypothesis
import pytest
from hypothesis import strategies as st
from tests import examples
from tests.scheduler.policies import candidates
from tests.scheduler.policies.shares import BESIDE, NOW, on_a_half, replace, small

from oarlock.scheduler.policies import contract, pairing
from oarlock.spec import curves, plans

PAYS = 1.1


def paired(*crowd: contract.Candidate, pays: float = PAYS) -> dict[str, str]:
    """Return the host of each guest."""
    return chosen(*crowd, pays=pays).hosts


def undone(*crowd: contract.Candidate, pays: float = PAYS) -> list[str]:
    return [*chosen(*crowd, pays=pays).undone]


def chosen(*crowd: contract.Candidate, pays: float = PAYS) -> pairing.Pairs:
    waiting = [one for one in crowd if one.running is None]
    return pairing.pairs(waiting, [one for one in crowd if one.running is not None], pays)


@pytest.mark.parametrize(
    ("why", "gang"),
    [
        ("it was never measured alone", replace(small("g"), curve=None)),
        ("it was measured beside others only", replace(small("g"), curve=BESIDE)),
        ("its need of memory is unknown", candidates.gang("g", 0, curve=small("g").curve)),
        ("it must not be stopped", replace(small("g"), preemptible=False)),
        ("it asks for two devices", candidates.gang("g", 0, 2, curve=small("g").curve)),
        ("it has several tasks", replace(small("g"), asks=small("g").asks * 2)),
    ],
)
def test_a_gang_does_not_share_if(why: str, gang: plans.Gang) -> None:
    assert paired(candidates.running(small("host"), NOW - 300), candidates.waiting(gang)) == {}
    assert paired(candidates.running(gang, NOW - 300), candidates.waiting(small("guest"))) == {}


def test_the_order_of_hosts_is_alone_on_a_half_then_known_then_new() -> None:
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


def test_one_plan_pairs_the_first_few_gangs() -> None:
    hosts = [candidates.running(small(f"host-{number}"), NOW - 300) for number in range(40)]
    guests = [candidates.waiting(replace(small(f"guest-{number}"), submitted_at=float(number))) for number in range(40)]
    assert sorted(paired(*hosts, *guests)) == sorted(f"guest-{number}" for number in range(32))


def test_two_measurements_are_not_enough_to_judge() -> None:
    def seldom(gang: plans.Gang) -> plans.Gang:
        assert gang.curve is not None
        samples = tuple(replace(one, count=2) for one in gang.curve.samples)
        return replace(gang, curve=replace(gang.curve, samples=samples))

    pair = on_a_half(seldom(small("first", other=9.0))), on_a_half(seldom(small("other", first=9.0)))
    assert undone(*pair) == []


def test_a_gang_that_was_tried_with_three_is_paired_only_with_gangs_that_suit_it() -> None:
    guest = candidates.waiting(small("guest", a=9.0, b=9.0, c=1.1))
    assert paired(guest, candidates.running(small("new"), NOW - 300)) == {}
    assert paired(guest, candidates.running(small("c", guest=1.1), NOW - 300)) == {"guest": "c"}


@pytest.mark.parametrize(("pays", "worth_it"), [(1.24, True), (1.25, True), (1.26, False)])
def test_a_known_pair_is_made_or_undone_by_the_same_border(pays: float, worth_it: bool) -> None:
    """Beside each other, one keeps its speed and the other one has a quarter of it."""
    first, other = small("first", other=1.0), replace(small("other", first=4.0), submitted_at=5.0)
    assert (undone(on_a_half(first), on_a_half(other), pays=pays) == []) is worth_it
    host, guest = candidates.running(first, NOW - 300), candidates.waiting(other)
    assert (paired(host, guest, pays=pays) == {"other": "first"}) is worth_it


def test_the_worth_is_the_mean_of_all_measurements_by_their_count() -> None:
    """Half of the speed in one look, a fifth in four looks: 0.26, and of the other one 0.5."""
    looks = [(2.0, 1), (5.0, 4)]
    samples = tuple(
        curves.Sample(nodes=1, devices=1, local=8, step_s=step_s, sync_s=0.0, beside="b", count=count)
        for step_s, count in looks
    )
    gang = small("a")
    assert gang.curve is not None
    a = replace(gang, curve=replace(gang.curve, samples=(*gang.curve.samples, *samples)))
    b = replace(small("b", a=2.0), submitted_at=5.0)
    found = chosen(on_a_half(a), on_a_half(b)).undone
    assert found == {"b": "beside a on one GPU both together do 0.76 times what one does alone"}


def test_a_step_of_another_batch_size_is_not_compared() -> None:
    """Alone, only steps of eight examples were measured."""

    def with_sixteen(gang: plans.Gang) -> plans.Gang:
        assert gang.curve is not None
        samples = tuple(replace(one, local=16) if one.beside else one for one in gang.curve.samples)
        return replace(gang, curve=replace(gang.curve, samples=samples))

    assert undone(on_a_half(with_sixteen(small("a", b=9.0))), on_a_half(with_sixteen(small("b", a=9.0)))) == []


def test_both_gangs_of_a_device_have_no_third() -> None:
    crowd = [on_a_half(small("a", b=1.0)), on_a_half(small("b", a=1.0)), candidates.waiting(small("guest"))]
    assert chosen(*crowd) == ({}, {})


NAMES = ("a", "b", "c", "d", "e", "f")
STEPS = st.sampled_from([1.0, 1.5, 1.9, 2.5, 9.0])


@hypothesis.given(st.fixed_dictionaries(dict.fromkeys(itertools.permutations(NAMES, 2), STEPS)), st.data())
@hypothesis.settings(max_examples=examples.at_most(90), deadline=None)
def test_no_gang_is_in_two_pairs_and_no_known_pair_is_made_that_does_not_pay(
    steps: dict[tuple[str, str], float], data: st.DataObject
) -> None:
    known = {pair for pair in itertools.combinations(NAMES, 2) if data.draw(st.booleans())}
    gangs = {
        one: small(one, **{mate: steps[one, mate] for mate in NAMES if {(one, mate), (mate, one)} & known})
        for one in NAMES
    }
    count = data.draw(st.integers(0, len(NAMES)))
    crowd = [candidates.running(gangs[one], NOW - place) for place, one in enumerate(NAMES[:count])]
    found = paired(*crowd, *(candidates.waiting(gangs[one]) for one in NAMES[count:]))
    assert found.keys() <= set(NAMES[count:])
    assert set(found.values()) <= set(NAMES[:count])
    assert len(set(found.values())) == len(found)
    for guest, host in found.items():
        if {(guest, host), (host, guest)} & known:
            assert 1 / steps[guest, host] + 1 / steps[host, guest] >= PAYS


@pytest.mark.parametrize(("a", "b", "stopped"), [(0.0, 5.0, "b"), (5.0, 0.0, "a")])
def test_the_gang_that_came_later_leaves_the_device(a: float, b: float, stopped: str) -> None:
    pair = (replace(small("a", b=9.0), submitted_at=a), replace(small("b", a=9.0), submitted_at=b))
    assert undone(*(on_a_half(one) for one in pair)) == [stopped]
