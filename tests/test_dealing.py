"""Every test is dealt once. All workers but one begin with costly rooms."""

from __future__ import annotations

import pytest
from tests import dealing


def room(test: str) -> str:
    return test.partition("/")[0]


@pytest.mark.parametrize(
    ("workers", "begun"),
    [
        (1, ["api"]),
        (2, ["store", "api"]),
        (3, ["store", "e2e", "spec"]),
        (5, ["store", "e2e", "cli", "api", "spec"]),
    ],
)
def test_all_workers_but_one_begin_with_costly_rooms(workers: int, begun: list[str]) -> None:
    many = {"api": 60, "cli": 20, "e2e": 20, "spec": 60, "store": 20}
    tests = [f"{name}/{number}" for name, count in many.items() for number in range(count)]
    order = dealing.dealt(tests, room, workers, ("store", "e2e", "cli"), ())
    assert sorted(order) == sorted(tests)
    share = len(tests) // workers
    assert [room(order[place * share]) for place in range(workers)] == begun


def test_a_worker_begins_with_several_rooms_where_there_are_more_rooms_than_workers() -> None:
    tests = [f"{name}/{number}" for name in ("agent", "api", "cli", "e2e") for number in range(2)]
    order = dealing.dealt(tests, room, 2, ("cli", "agent", "e2e"), ())
    assert order == ["cli/0", "cli/1", "agent/0", "agent/1", "e2e/0", "e2e/1", "api/0", "api/1"]


def test_each_share_begins_with_a_part_of_the_early_rooms() -> None:
    tests = [f"{name}/{number}" for name in ("api", "pages", "spec", "store") for number in range(4)]
    order = dealing.dealt(tests, room, 2, ("store",), ("pages",))
    assert sorted(order) == sorted(tests)
    assert order[:6] == ["pages/0", "pages/2", "store/0", "store/1", "store/2", "store/3"]
    assert order[8:10] == ["pages/1", "pages/3"]


def test_more_costly_tests_than_a_share_holds_are_dealt_too() -> None:
    tests = ["a/1", "store/1", "store/2", "store/3", "z/1"]
    assert dealing.dealt(tests, room, 4, ("store",)) == ["store/1", "store/2", "store/3", "a/1", "z/1"]
