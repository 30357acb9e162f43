"""The turns of a leaf: gangs that lose their place in a plan have a turn in it."""

from __future__ import annotations

import pytest
from tests.scheduler import drafted

from oarlock.scheduler.granting import drafts

NODES = "node a gpus=4\n"


def named(draft: drafts.Draft) -> list[str]:
    (queue,) = draft.order.queues.values()
    return [turn.wish.job for turn in queue]


def test_waiting_gangs_are_in_the_order_of_their_policy() -> None:
    lines = "job low priority=10\njob high priority=90\njob late priority=10"
    assert named(drafted.draft(f"rules policy=priority\n{NODES}{lines}")) == ["high", "low", "late"]


def test_a_gang_that_is_stopped_and_returns_waits_in_its_turn() -> None:
    draft = drafted.draft(
        f"rules policy=priority\n{NODES}running back gpus=1 on=a priority=50 stopping returns\n"
        "running gone gpus=1 on=a priority=50 stopping\njob low priority=10\njob high priority=90"
    )
    assert named(draft) == ["high", "back", "low"]


@pytest.mark.parametrize("policy", ["priority", "las"])
def test_a_gang_that_loses_its_place_comes_next(policy: str) -> None:
    """The queue has passed its place already, so it comes before all that are left."""
    draft = drafted.draft(
        f"rules policy={policy}\n{NODES}running lost gpus=1 on=a priority=90 at=-5 started=10000\n"
        "job one priority=50\njob two priority=40"
    )
    (queue,) = draft.order.queues.values()
    seen = []
    for turn in queue:
        seen.append(turn.wish.job)
        if turn.wish.job == "one":
            queue.back(draft.order.turn(drafted.running(draft, "lost")))
    assert seen == ["one", "lost", "two"]


def test_a_running_gang_has_a_turn_only_where_its_policy_decides_sizes() -> None:
    for policy, expected in (("priority", []), ("las", []), ("goodput", ["one"])):
        draft = drafted.draft(f"rules policy={policy}\n{NODES}running one gpus=1 on=a started=0")
        assert named(draft) == expected
        assert draft.order.sizes("") is (policy == "goodput")
