"""Amounts, gangs and durations in the words of refusals and forecasts."""

from __future__ import annotations

from typing import Any

import pytest

from oarlock.scheduler import wording
from oarlock.spec import holdings, jobfile, plans
from oarlock.spec.cluster import nodes

GIB = 1 << 30
TEAM = nodes.Taint(key="team", value="b", effect="NoSchedule", tolerable=True)
MAY = nodes.Constraints(tolerates=("team=b",))


def node(name: str = "n", *types: str, memory: int = 80, **more: Any) -> nodes.Node:
    devices = tuple(nodes.Device(index=i, type=kind, memory_bytes=memory * GIB) for i, kind in enumerate(types))
    return nodes.Node(name=name, capacity=holdings.Resources(8000, 32 * GIB, len(types)), devices=devices, **more)


def ask(role: str = "worker", count: int = 1, *, least: int | None = None, cpus: int = 1000, **more: Any) -> plans.Ask:
    amount = holdings.Resources(cpus, 0, more.pop("gpus", 0), more.pop("milli", 0))
    least = count if least is None else least
    return plans.Ask(role=role, count=count, min=least, max=count, amount=amount, **more)


def gang(*asks: plans.Ask, **more: Any) -> plans.Gang:
    return plans.Gang(job="j", name="j", pool="default", asks=asks, submitted_at=0.0, **more)


@pytest.mark.parametrize(
    ("resource", "value", "cards", "text"),
    [
        ("gpus", 8, wording.ANY, "8 GPUs"),
        ("gpus", 1, wording.ANY, "1 GPU"),
        ("gpus", 0.5, wording.ANY, "0.5 GPUs"),
        ("gpus", 1, wording.Cards(("h100",)), "1 h100 GPU"),
        ("gpus", 2, wording.Cards(("h100", "a100"), 40 * GIB), "2 GPUs (h100 or a100) with 40 GiB"),
        ("cpus", 12_345.6784, wording.Cards(("h100",)), "12,345.678 CPUs"),
        ("memory", 1.5 * GIB, wording.Cards(("h100",)), "1.5 GiB"),
    ],
)
def test_one_amount(resource: str, value: float, cards: wording.Cards, text: str) -> None:
    assert wording.shown(resource, value, cards) == text


@pytest.mark.parametrize(
    ("resource", "value", "of", "text"),
    [("cpus", 3, 16, "3 of 16 CPUs"), ("memory", 1.5 * GIB, 4 * GIB, "1.5 GiB of 4 GiB"), ("gpus", 0, 1, "0 of 1 GPU")],
)
def test_a_part_of_an_amount(resource: str, value: float, of: float, text: str) -> None:
    assert wording.part(resource, value, of) == text


@pytest.mark.parametrize(
    ("of", "text"),
    [
        ({"cpus": 2, "memory": GIB, "gpus": 1}, "1 GPU, 2 CPUs and 1 GiB"),
        ({"memory": GIB, "cpus": 0}, "1 GiB"),
        ({}, "nothing"),
    ],
)
def test_several_amounts_name_the_scarce_one_first(of: dict[str, float], text: str) -> None:
    assert wording.several(of) == text


@pytest.mark.parametrize(
    ("of", "text"),
    [
        (gang(ask(count=4, gpus=2, cpus=2000)), "8 GPUs and 8 CPUs for 4 tasks"),
        (gang(ask(milli=500, cpus=500)), "0.5 GPUs and 0.5 CPUs for 1 task"),
        (gang(ask(count=4, least=2, gpus=1)), "at least 2 GPUs and 2 CPUs for 2 tasks"),
        (gang(ask("chief"), ask(count=2, gpus=1, gpu_types=("t4",))), "2 t4 GPUs and 3 CPUs for 3 tasks"),
    ],
)
def test_the_request_of_a_gang(of: plans.Gang, text: str) -> None:
    assert wording.wanted(of) == text


@pytest.mark.parametrize(
    ("same", "required", "end"),
    [("rack", True, " within one rack"), ("nvlink", True, " within one NVLink domain"), ("rack", False, "")],
)
def test_a_required_domain_belongs_to_the_request(same: str, required: bool, end: str) -> None:
    topology = jobfile.Topology(same=jobfile.Domain(same), required=required)
    assert wording.wanted(gang(ask(), topology=topology)) == f"1 CPU for 1 task{end}"


def test_the_cards_of_a_gang_are_those_of_its_first_role_with_a_device() -> None:
    held = {"constraints": MAY}
    roles = (ask("ps", **held), ask(gpus=1, gpu_types=("t4",), **held), ask("evaluator", gpus=1, **held))
    assert wording.cards(gang(*roles)) == wording.Cards(("t4",), 0, MAY)
    assert wording.cards(gang(*roles[:1])) == wording.Cards(constraints=MAY)
    assert wording.cards(gang(ask())) is wording.ANY


@pytest.mark.parametrize(
    ("cards", "gpus", "cpus"),
    [
        (wording.ANY, 5, 16),  # of the nodes that are open to the gang
        (wording.Cards(("h100",)), 4, 16),
        (wording.Cards(("h100",), 81 * GIB), 0, 16),
        (wording.Cards((), 40 * GIB), 4, 16),
        (wording.Cards((), 80 * GIB), 4, 16),
        (wording.Cards(("v100",), 0, MAY), 3, 24),
    ],
)
def test_only_cards_that_suit_a_gang_count(cards: wording.Cards, gpus: int, cpus: int) -> None:
    cluster = [
        node("a", *["h100"] * 4),
        node("b", "v100", memory=16),
        node("c", "v100", "v100", taints=(TEAM,)),
    ]
    found = wording.total(cluster, cards)
    assert (found["gpus"], found["cpus"]) == (gpus, cpus)


def test_devices_that_a_node_has_not_listed_suit_a_gang_that_takes_any() -> None:
    assert wording.devices(node(), 2, wording.ANY) == 2
    assert wording.devices(node(), 2, wording.Cards(("h100",))) == 0


def test_amounts_of_other_programs_count_in_the_same_way() -> None:
    other = holdings.Resources(500, 0, 1)
    cluster = [node("a", "h100", taken=other), node("b", "v100", taken=other), node("c", taken=other, taints=(TEAM,))]
    assert wording.taken(cluster) == {"gpus": 2, "cpus": 1}
    assert wording.taken(cluster, wording.Cards(("h100",))) == {"gpus": 1, "cpus": 1}


def test_closed_nodes_are_named_by_their_reason() -> None:
    cluster = [
        node("n2", taints=(TEAM,)),
        node("n1", taints=(TEAM,)),
        node("n3", labels={"disk": "hdd"}),
        node("n4", labels={"disk": "ssd"}),
    ]
    assert wording.closed(cluster, None) == "n1 and n2 (taint team=b:NoSchedule)"
    needs = nodes.Constraints(tolerates=("team",), labels=(("disk", "ssd"),))
    assert wording.closed(cluster, needs) == "n1, n2 and n3 (no label disk=ssd)"
    assert wording.closed(cluster[3:], needs) == ""


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ("", ""),
        ("a", "a"),
        ("ab", "a and b"),
        ("abcd", "a, b, c and d"),  # to count one other would not be shorter
        ("abcde", "a, b, c and 2 others"),
    ],
)
def test_names_beyond_the_first_few_are_counted(names: str, text: str) -> None:
    assert wording.named(names) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.4, "0 s"),
        (89.4, "89 s"),
        (90, "1.5 min"),
        (120, "2 min"),
        (599, "10 min"),
        (5399, "90 min"),
        (5400, "1.5 h"),
        (36_000, "10 h"),
        (129_600, "1.5 d"),
        (864_000, "10 d"),
    ],
)
def test_a_duration_has_two_digits(seconds: float, text: str) -> None:
    assert wording.about(seconds) == text


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [
        (720, 2400, "12 to 40 min"),
        (3000, 7200, "50 min to 2 h"),
        (7200, 7201, "2 h"),
        (3600, 3780, "60 min"),  # 63 min differ by 5 %
        (3600, 3840, "60 to 64 min"),
    ],
)
def test_a_span_of_time_is_one_duration_where_its_ends_hardly_differ(low: float, high: float, text: str) -> None:
    assert wording.span(low, high) == text


@pytest.mark.parametrize(
    ("places", "ending"), [((1, 21, 101), "st"), ((2, 32), "nd"), ((3, 93), "rd"), ((4, 11, 12, 13, 111, 1013), "th")]
)
def test_ordinal_numbers(places: tuple[int, ...], ending: str) -> None:
    assert [wording.ordinal(place) for place in places] == [f"{place:,}{ending}" for place in places]
