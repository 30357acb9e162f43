"""Devices of several types: which one, and how many, by what each brings; and when a move pays."""

from __future__ import annotations

import msgspec
import pytest
from tests.scheduler.policies import candidates

from oarlock.scheduler.ordering import budgets
from oarlock.scheduler.policies import contract, goodput
from oarlock.scheduler.speed import relative
from oarlock.spec import curves, errors, holdings, plans
from oarlock.spec.cluster import nodes

NOW = candidates.NOW
HOUR = 3600.0
GIB = 1 << 30


def budget(*ended: plans.Ended, **devices: int) -> contract.Budget:
    """Nodes of four devices each, named by their type."""
    types = tuple(
        contract.TypeShare(gpu_type=name, devices=count, per_node=4, memory_bytes=(16 if name == "t4" else 80) * GIB)
        for name, count in sorted(devices.items())
    )
    total = sum(devices.values())
    return contract.Budget(
        amount=holdings.Resources(cpus_milli=1_000_000, memory_bytes=2**45, gpus=total),
        node_devices=(4,) * (total // 4),
        types=types,
        type_of={f"{name}-{place}": name for name, count in devices.items() for place in range(count // 4)},
        ended=ended,
    )


def curve(**seconds: float) -> curves.Curve:
    """Seconds of a step on one device of each type; twice as fast on two."""
    on = tuple(
        curves.OnType(gpu_type=name, model=curves.Allreduce(compute_s=step, compute_per_example_s=0.0, seen=4))
        for name, step in seconds.items()
    )
    return curves.Curve(model=on[0].model, types=on)


def gang(name: str, known: curves.Curve | None, **more) -> plans.Gang:
    asked = {"least": 1, "most": 4, "at": NOW - 10 * HOUR, **more}
    types, memory = asked.pop("types", ()), asked.pop("memory", 0)
    found = candidates.gang(name, asked.pop("at"), asked.pop("count", 1), curve=known, **asked)
    asks = tuple(msgspec.structs.replace(ask, gpu_types=types, gpu_memory_bytes=memory) for ask in found.asks)
    return msgspec.structs.replace(found, asks=asks)


def running(name: str, known: curves.Curve | None, on: str, size: int = 4, **more) -> contract.Candidate:
    since, started = more.pop("since", NOW - 9 * HOUR), {"starts": more.pop("starts", 1)}
    found = candidates.running(gang(name, known, **started, **more), since, size=(size,))
    assert found.running is not None
    held = tuple(msgspec.structs.replace(claim, node=f"{on}-0") for claim in found.running.holdings)
    return msgspec.structs.replace(found, running=msgspec.structs.replace(found.running, holdings=held))


def ask(crowd: list[contract.Candidate], of: contract.Budget) -> dict[str, contract.Wish]:
    return {wish.job: wish for wish in goodput.wishes(crowd, of, NOW, candidates.RULES, {})}


def places(crowd: list[contract.Candidate], of: contract.Budget) -> dict[str, tuple[str, int]]:
    return {name: (wish.on, wish.size[0]) for name, wish in ask(crowd, of).items()}


GAINS = curve(t4=0.4, a100=0.05)
LITTLE = curve(t4=0.1, a100=0.09)


def test_the_fast_type_goes_to_the_job_that_gains_most_by_it() -> None:
    crowd = [candidates.waiting(gang("gains", GAINS)), candidates.waiting(gang("little", LITTLE, at=0.0))]
    assert places(crowd, budget(t4=4, a100=4)) == {"gains": ("a100", 4), "little": ("t4", 4)}


def test_gangs_change_places_where_it_pays_for_their_restarts() -> None:
    crowd = [running("gains", GAINS, "t4"), running("little", LITTLE, "a100")]
    assert places(crowd, budget(t4=4, a100=4)) == {"gains": ("a100", 4), "little": ("t4", 4)}
    often = [running("gains", GAINS, "t4", starts=400), running("little", LITTLE, "a100", starts=400)]
    assert places(often, budget(t4=4, a100=4)) == {"gains": ("t4", 4), "little": ("a100", 4)}
    slow = [msgspec.structs.replace(one, gang=msgspec.structs.replace(one.gang, restart_s=12 * HOUR)) for one in crowd]
    assert places(slow, budget(t4=4, a100=4)) == {"gains": ("t4", 4), "little": ("a100", 4)}, "its last start took 12 h"


def test_a_slow_type_in_plenty_may_be_better_than_a_fast_one_shared() -> None:
    crowd = [candidates.waiting(gang(f"j{place}", curve(t4=0.2, a100=0.1), most=16)) for place in range(5)]
    found = places(crowd, budget(t4=16, a100=4))
    assert {on for on, _ in found.values()} == {"t4", "a100"}
    assert sum(size for on, size in found.values() if on == "t4") == 16


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({}, "a100"),
        ({"types": ("t4",)}, "t4"),
        ({"types": ("v100", "t4")}, "t4"),
        ({"memory": 40 * GIB}, "a100"),
    ],
)
def test_only_types_that_the_job_accepts(more: dict, expected: str) -> None:
    rival = candidates.waiting(gang("rival", curve(t4=9.0, a100=0.01), at=0.0, types=("a100",), most=1))
    found = places([candidates.waiting(gang("j", GAINS, **more)), rival], budget(t4=8, a100=8))
    assert found["j"][0] == expected


def test_one_that_must_not_be_touched_stays() -> None:
    crowd = [
        running("fixed", LITTLE, "a100", preemptible=False),
        running("young", LITTLE, "t4", since=NOW - 10),
        candidates.waiting(gang("gains", GAINS)),
    ]
    found = places(crowd, budget(t4=4, a100=4))
    assert found["fixed"] == ("a100", 4)
    assert found["young"] == ("t4", 4)


def test_a_rigid_gang_gets_its_number_of_one_type() -> None:
    crowd = [candidates.waiting(gang("rigid", GAINS, count=4, least=4)), candidates.waiting(gang("j", LITTLE, at=0.0))]
    assert places(crowd, budget(t4=4, a100=4)) == {"rigid": ("a100", 4), "j": ("t4", 4)}


def test_a_type_that_was_never_tried_is_reckoned_with_its_doubt() -> None:
    """At an equal estimate what was measured is preferred; a large gain is worth the doubt."""
    known = curve(t4=0.1)
    scarce = budget(t4=4, a100=4, v100=4)
    (sure,) = ask([running("j", known, "t4")], scarce).values()
    assert sure.on == "a100", "several times as fast in general"
    assert "it never ran there" in sure.reason
    kind = relative.kind(gang("j", None))
    same = curve(t4=0.1, a100=0.1).types
    told = tuple(plans.Ended(owner=kind[0], name=kind[1], served_s=1.0, types=same) for _ in range(30))
    (now,) = ask([running("j", known, "t4")], budget(*told, t4=4, a100=4)).values()
    assert now.on == "t4", "jobs of its kind have shown that nothing is gained"


def test_a_gang_on_several_types_keeps_them() -> None:
    mixed = running("mixed", None, "t4")
    assert mixed.running is not None
    first, *others = mixed.running.holdings
    held = (msgspec.structs.replace(first, node="a100-0"), *others)
    crowd = [
        msgspec.structs.replace(mixed, running=msgspec.structs.replace(mixed.running, holdings=held)),
        candidates.waiting(gang("j", GAINS)),
    ]
    found = places(crowd, budget(t4=4, a100=4))
    assert found["mixed"] == ("", 4)
    assert found["j"][1] <= 3


def test_reasons_name_both_types() -> None:
    found = ask([running("gains", GAINS, "t4"), running("little", LITTLE, "a100")], budget(t4=4, a100=4))
    assert found["gains"].reason == "4 on a100, of at most 4: 8.0 times as fast as with 4 on t4"


def test_the_reason_says_why_it_does_not_get_the_faster_type() -> None:
    crowd = [
        candidates.waiting(gang("gains", GAINS)),
        candidates.waiting(gang("less", curve(t4=0.2, a100=0.1), at=0.0)),
    ]
    found = ask(crowd, budget(t4=4, a100=4))["less"]
    assert found.on == "t4"
    assert found.reason.endswith("; with 4 on a100 it would be 2.0 times as fast, but others gain more by it")
    often = [running("less", curve(t4=0.2, a100=0.1), "t4", starts=400)]
    assert ask(often, budget(t4=4, a100=4))["less"].reason.endswith("but that would not pay for a restart")


def test_some_of_many_gangs_are_looked_at_in_each_round_and_all_in_turn() -> None:
    """So a plan takes no longer; a gang that is not looked at keeps its devices."""
    crowd = [running(f"j{place:03}", curve(t4=0.2, a100=0.1), "t4", size=1) for place in range(300)]
    of, looked_at = budget(t4=400, a100=400), set[str]()
    for turn in range(10):
        now = NOW + turn * candidates.RULES.round_s
        wishes = goodput.wishes(crowd, of, now, candidates.RULES, {})
        chosen = {wish.job for wish in wishes if wish.on}
        assert len(chosen) <= 96
        assert {wish.size for wish in wishes if not wish.on} == {(1,)}
        looked_at |= chosen
    assert len(looked_at) == 300


def test_many_that_wait_at_once() -> None:
    """The first of them are compared, the others take what they find."""
    crowd = [candidates.waiting(gang(f"j{place:03}", None, at=float(place))) for place in range(200)]
    wishes = ask(crowd, budget(t4=200, a100=200))
    assert sum(bool(wish.on) for wish in wishes.values()) == 48
    assert len(wishes) == 200


def test_service_does_not_lower_a_claim_unless_it_is_said() -> None:
    """A long job would fall behind on every type, and decide when the last one ends."""
    old = running("old", GAINS, "t4", at=NOW - 100 * HOUR, since=NOW - 90 * HOUR)
    crowd = [old, candidates.waiting(gang("new", GAINS, at=NOW))]
    wishes = goodput.wishes(crowd, budget(t4=4, a100=4), NOW, candidates.RULES, {"types_age": 0.5})
    aged = {wish.job: wish.on for wish in wishes}
    assert aged == {"old": "t4", "new": "a100"}
    with pytest.raises(errors.InvalidInput):
        goodput.wishes([], budget(t4=4, a100=4), NOW, candidates.RULES, {"types_age": -1.0})
    plain = goodput.wishes([old], budget(t4=4, a100=4), NOW, candidates.RULES, {})
    assert plain[0].on == "a100"


def test_on_a_node_with_several_types_each_device_has_its_own() -> None:
    """A gang that holds one type of such a node is known to be there, and is not moved to where it is."""
    devices = tuple(nodes.Device(index=index, type="a100" if index < 4 else "t4") for index in range(8))
    node = nodes.Node(name="n", capacity=holdings.Resources(gpus=8), devices=devices)
    of = budgets.whole([node])
    assert [(one.gpu_type, one.devices, one.per_node) for one in of.types] == [("a100", 4, 4), ("t4", 4, 4)]
    one = running("j", GAINS, "t4")
    assert one.running is not None
    held = tuple(msgspec.structs.replace(claim, node="n") for claim in one.running.holdings)
    one = msgspec.structs.replace(one, running=msgspec.structs.replace(one.running, holdings=held))
    assert {index for claim in held for index in claim.devices} == {0, 1, 2, 3}
    assert places([one], of) == {"j": ("a100", 4)}
    assert ask([one], of)["j"].reason == "4 on a100, of at most 4"
