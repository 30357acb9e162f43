"""Type and number of GPUs decided together: which gangs take part, which are looked at, and what they may choose."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import pytest
from tests.scheduler.policies import candidates

from oarlock.scheduler.policies import contract, typed
from oarlock.spec import holdings

replace = msgspec.structs.replace
NOW = candidates.NOW


def share(gpu_type: str, devices: int) -> contract.TypeShare:
    return contract.TypeShare(gpu_type=gpu_type, devices=devices, per_node=4)


def budget(*types: contract.TypeShare, **type_of: str) -> contract.Budget:
    return replace(candidates.BUDGET, types=types, type_of={name.replace("_", "/"): of for name, of in type_of.items()})


def stopped(job: str, gpus: int = 1) -> contract.Candidate:
    """Return a gang that was stopped for a move: its place is kept."""
    gang = candidates.gang(job, gpus=gpus)
    return candidates.waiting(replace(gang, destined=candidates.holdings_of(gang, gang.wanted)))


@pytest.mark.parametrize(
    ("amounts", "divides"),
    [
        ([holdings.Resources(1000, 0, 2)], True),
        ([holdings.Resources(1000, 0, 2), holdings.Resources(1000)], True),
        ([holdings.Resources(1000)], False),
        ([holdings.Resources(1000, 0, 0, 500)], False),
        ([holdings.Resources(1000, 0, 2), holdings.Resources(1000, 0, 0, 500)], False),
    ],
)
def test_a_gang_with_whole_devices_alone_takes_part(amounts: list[holdings.Resources], divides: bool) -> None:
    gang = candidates.gang("one")
    asks = tuple(replace(gang.asks[0], amount=amount) for amount in amounts)
    assert typed.divides(replace(gang, asks=asks)) is divides


@pytest.mark.parametrize(
    ("waiting", "found"),
    [
        ({"a": 2}, ["runs", "stopped", "a"]),
        ({"a": 3}, ["runs", "stopped"]),
        ({"a": 1, "b": 2, "c": 1}, ["runs", "stopped", "a", "c"]),  # a smaller gang may pass one that does not fit
    ],
)
def test_gangs_that_hold_devices_come_first_then_those_for_which_there_are_enough(
    waiting: dict[str, int], found: list[str]
) -> None:
    """One gang holds 4 of 8 devices, and another is to have 2."""
    ranked = [candidates.waiting(candidates.gang(job, gpus=least)) for job, least in waiting.items()]
    ranked += [candidates.running(candidates.gang("runs", gpus=4)), stopped("stopped", 2)]
    least = {"runs": 4, "stopped": 2, **waiting}
    admitted = typed.admitted(ranked, least, [share("t4", 6), share("a100", 2)])
    assert [one.gang.job for one in admitted] == found


def test_few_gangs_are_all_looked_at() -> None:
    ones = [candidates.waiting(candidates.gang(f"w{number}")) for number in range(typed.LOOKED_AT)]
    assert typed.in_turn(ones, NOW, 60.0) == ones


def test_the_first_that_wait_and_a_part_of_the_other_gangs_are_looked_at() -> None:
    """After some rounds each running gang has been looked at. A gang with a place to go to counts as running."""
    waits = [candidates.waiting(candidates.gang(f"w{number}")) for number in range(60)]
    runs = [candidates.running(candidates.gang(f"r{number}")) for number in range(99)] + [stopped("stopped")]
    looked = [typed.in_turn([*waits, *runs], NOW + 60 * number, 60.0) for number in range(3)]
    for ones in looked:
        assert [one for one in ones if one in waits] == waits[: typed.LOOKED_AT // 2]
        assert len(ones) <= typed.LOOKED_AT
    seen = [one.gang.job for ones in looked for one in ones if one in runs]
    assert sorted(seen) == sorted(one.gang.job for one in runs)
    within = [typed.in_turn([*waits, *runs], NOW - NOW % 60 + second, 60.0) for second in (0, 59)]
    assert within[0] == within[1], "within a round they are the same"


def test_without_waiting_gangs_all_places_go_to_running_ones() -> None:
    runs = [candidates.running(candidates.gang(f"r{number}")) for number in range(2 * typed.LOOKED_AT)]
    assert len(typed.in_turn(runs, NOW, 0.0)) == typed.LOOKED_AT


def test_the_type_of_a_device_is_its_nodes_or_its_own() -> None:
    of = budget(share("t4", 4), uniform="t4", mixed_0="t4", mixed_1="a100")
    claims = {
        node: holdings.Holding(
            job="one", attempt=1, role="worker", index=0, node=node, amount=holdings.Resources(gpus=2), devices=(1, 2)
        )
        for node in ("uniform", "mixed", "gone")
    }
    assert {node: typed.types_of(of, claim) for node, claim in claims.items()} == {
        "uniform": ["t4", "t4"],
        "mixed": ["a100", ""],
        "gone": ["", ""],
    }


def test_devices_of_gangs_that_are_not_divided_are_taken_off() -> None:
    """A gang with a share of a device, and one with two types: a started device counts as a whole one."""
    of = budget(share("t4", 4), share("a100", 2), n0="t4", n1="a100")

    def holds(
        job: str, node: str, amount: holdings.Resources, devices: tuple[int, ...], **known: object
    ) -> contract.Candidate:
        one = candidates.running(candidates.gang(job), **known)  # type: ignore[arg-type]
        assert one.running is not None
        claim = replace(one.running.holdings[0], node=node, amount=amount, devices=devices)
        return replace(one, running=replace(one.running, holdings=(claim,)))

    two, half = holdings.Resources(gpus=2), holdings.Resources(gpu_milli=500)
    others = [
        holds("two", "n0", two, (0, 1)),
        holds("half", "n1", half, (0,)),
        holds("stopping", "n0", two, (2, 3), stopping=True),
        holds("elsewhere", "gone", two, (0, 1)),
        candidates.waiting(candidates.gang("waits")),
    ]
    assert {one.gpu_type: one.devices for one in typed.without(of, others)} == {"t4": 2, "a100": 1}
    assert {one.gpu_type: one.devices for one in typed.without(of, others * 3)} == {"t4": 0, "a100": 0}


class Part:
    """A gang with a value by type, per task. It asks for whole tasks of `units` devices, and `fixed` ones."""

    def __init__(
        self,
        job: str,
        had: tuple[str, int] | None = None,
        *,
        units: int = 1,
        fixed: int = 0,
        most: int = 4,
        may: bool = True,
        **worth: float,
    ) -> None:
        self.job, self.units, self.fixed = job, units, fixed
        self.tasks, self.gpu_type = 0, ""
        self.prices: Mapping[str, float] = {}
        self.had, self.most, self.may, self.each = had, most, may, worth

    def present(self) -> tuple[str, int] | None:
        return self.had

    def worths(self, of: contract.TypeShare) -> list[tuple[int, float]]:
        sizes = [tasks for tasks in range(1, self.most + 1) if self.may or self.had == (of.gpu_type, tasks)]
        return [(tasks, self.each.get(of.gpu_type, 0.0) * tasks) for tasks in sizes]


def divided(*parts: Part, **devices: int) -> dict[str, tuple[str, int]]:
    served = typed.divide(parts, [share(name, count) for name, count in devices.items()])
    return {one.job: (one.gpu_type, one.tasks) for one in served}


DIVISIONS: dict[str, tuple[list[Part], dict[str, tuple[str, int]]]] = {
    "the type that is worth more": ([Part("one", t4=1, a100=3)], {"one": ("a100", 2)}),
    "more of the slower type": ([Part("one", t4=2, a100=3)], {"one": ("t4", 4)}),
    "each what it gains most from": (
        [Part("one", t4=1, a100=3), Part("two", t4=1, a100=1.2)],
        {"one": ("a100", 2), "two": ("t4", 4)},
    ),
    "every gang something before any gets more": (
        [Part("one", t4=90), Part("two", t4=1)],
        {"one": ("t4", 3), "two": ("t4", 1)},
    ),
    "tasks of two devices": ([Part("one", units=2, t4=1)], {"one": ("t4", 2)}),
    "devices of the roles that are not divided": ([Part("one", fixed=1, t4=1)], {"one": ("t4", 3)}),
    "no value": ([Part("one")], {}),
    "it must not change": ([Part("one", ("t4", 1), may=False, t4=1, a100=9)], {"one": ("t4", 1)}),
    "it stays though its value is not known": ([Part("one", ("t4", 2))], {"one": ("t4", 2)}),
    "a running gang before one that waits": (
        [Part("new", t4=9, most=1), Part("had", ("t4", 4), may=False, t4=1)],
        {"had": ("t4", 4)},
    ),
    "a present size with its fixed devices": (
        [Part("one", ("t4", 1), units=2, fixed=1, may=False, t4=1)],
        {"one": ("t4", 1)},
    ),
}  # fmt: skip


@pytest.mark.parametrize(("parts", "expected"), DIVISIONS.values(), ids=DIVISIONS.keys())
def test_types_and_numbers_are_divided_together(parts: list[Part], expected: dict[str, tuple[str, int]]) -> None:
    devices = {"t4": 4} if "running" in str(expected) or "had" in expected else {"t4": 4, "a100": 2}
    assert divided(*parts, **devices) == expected


def test_the_result_tells_the_price_of_each_type() -> None:
    parts = [Part(f"p{number}", t4=1, a100=3) for number in range(8)]
    divided(*parts, t4=4, a100=2)
    prices = next(dict(one.prices) for one in parts if one.tasks)
    assert prices["a100"] > prices["t4"] > 0
