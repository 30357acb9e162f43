"""Every test is dealt once, and the costly rooms are each begun by one worker."""

from __future__ import annotations

import pytest
from tests import dealing


def room(test: str) -> str:
    return test.partition("/")[0]


@pytest.mark.parametrize("workers", [1, 2, 3, 5])
def test_a_costly_room_begins_the_share_of_one_worker(workers: int) -> None:
    tests = [f"{name}/{number}" for name in ("api", "cli", "e2e", "spec", "store") for number in range(20)]
    order = dealing.dealt(tests, room, workers, ("store", "e2e"))
    assert sorted(order) == sorted(tests)
    share = len(tests) // workers
    for place, name in list(enumerate(("store", "e2e")))[:workers]:
        assert order[place * share : place * share + 20] == [f"{name}/{number}" for number in range(20)]


def test_each_share_begins_with_a_part_of_the_early_rooms() -> None:
    tests = [f"{name}/{number}" for name in ("api", "pages", "spec", "store") for number in range(4)]
    order = dealing.dealt(tests, room, 2, ("store",), ("pages",))
    assert sorted(order) == sorted(tests)
    assert order[:6] == ["pages/0", "pages/2", "store/0", "store/1", "store/2", "store/3"]
    assert order[8:10] == ["pages/1", "pages/3"]


def test_more_costly_tests_than_a_share_holds_are_dealt_too() -> None:
    tests = ["a/1", "store/1", "store/2", "store/3", "z/1"]
    assert dealing.dealt(tests, room, 4, ("store",)) == ["store/1", "store/2", "store/3", "a/1", "z/1"]
