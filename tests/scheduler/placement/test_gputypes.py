"""The order in which a gang tries the types of GPU."""

from __future__ import annotations

import pytest

from oarlock.scheduler.placement import gputypes

OLD_TO_NEW = ["k80", "v100", "a100", "h100", "b200"]


@pytest.mark.parametrize(
    ("priority", "wanted"), [(0, OLD_TO_NEW), (49, OLD_TO_NEW), (50, OLD_TO_NEW[::-1]), (100, OLD_TO_NEW[::-1])]
)
def test_low_priority_work_leaves_the_newest_types_to_other_work(priority: int, wanted: list[str]) -> None:
    assert gputypes.in_order({"h100", "b200", "k80", "a100", "v100"}, priority) == wanted


@pytest.mark.parametrize("priority", [0, 50])
def test_an_unknown_type_stands_in_the_middle_and_ties_go_by_name(priority: int) -> None:
    found = gputypes.in_order(["zeta", "k80", "alpha", "gb300"], priority)
    assert found[1:3] == ["alpha", "zeta"]


def test_each_type_stands_once_in_the_list() -> None:
    assert len(set(gputypes.OLDEST_FIRST)) == len(gputypes.OLDEST_FIRST)
