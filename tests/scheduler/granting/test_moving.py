"""Moves to better places: which gang is moved, and for which gain."""

from __future__ import annotations

import pytest
from tests.scheduler import drafted

from oarlock.scheduler.granting import moving

TWO_NODES = """
rules policy=gandiva min_runtime=60 restart=30
node a gpus=2
node b gpus=2
"""
TYPES = """
rules policy=gandiva min_runtime=60 restart=30
node old gpus=1:v100
node new gpus=1:h100
"""
SETTLED = "running one tasks=2 gpus=1 on=a,b started=0 checkpoint=0"
SLOWER = f"""
rules policy=gandiva min_runtime=60 restart=30
node a gpus=1:h100
node b gpus=1:h100
node c gpus=2:t4
{SETTLED} """


CASES = {
    "to one node": (f"{TWO_NODES}{SETTLED}", ["a[0]", "a[1]"]),
    "spread on purpose": (f"{TWO_NODES}{SETTLED} spread", None),
    "not preemptible": (f"{TWO_NODES}{SETTLED} preemptible=no", None),
    "has not saved": (f"{TWO_NODES}running one tasks=2 gpus=1 on=a,b started=0", None),
    "ran for ten restarts": (f"{TWO_NODES}{SETTLED.replace('=0 ch', '=9700 ch')}", ["a[0]", "a[1]"]),
    "ran for less than ten restarts": (f"{TWO_NODES}{SETTLED.replace('=0 ch', '=9701 ch')}", None),
    "saves more than the restart": (f"{TWO_NODES}{SETTLED} end=10400", ["a[0]", "a[1]"]),
    "ends too soon": (f"{TWO_NODES}{SETTLED} end=10300", None),
    "no node has room": (f"{TWO_NODES}{SETTLED}\nrunning x gpus=1 on=a\nrunning y gpus=1 on=b", None),
    "a better type": (
        f"{TYPES}running one gpus=1 type=h100,v100 on=old started=0 checkpoint=0",
        ["new[0]"],
    ),
    "a worse type": (f"{TYPES}running one gpus=1 type=v100,h100 on=old started=0 checkpoint=0", None),
    "a slower type on one node": (f"{SLOWER}priority=10", None),
    "a slower type on one node that it prefers": (f"{SLOWER}priority=10 type=t4,h100", ["c[0]", "c[1]"]),
    "a faster type on one node": (SLOWER.replace("h100", "k80"), ["c[0]", "c[1]"]),
    "any type": (f"{TYPES}running one gpus=1 on=old started=0 checkpoint=0", None),
}


@pytest.mark.parametrize(("lines", "expected"), CASES.values(), ids=CASES.keys())
def test_a_gang_moves_only_where_that_pays(lines: str, expected: list[str] | None) -> None:
    draft = drafted.draft(lines)
    moving.to_better_places(draft)
    moved = draft.moves.get("one")
    assert (moved and drafted.places(moved.to)) == expected
    assert set(draft.moves) <= {"one"}


@pytest.mark.parametrize(
    ("gang", "restless"),
    [
        ("started=9900 checkpoint=9900", True),
        ("started=9900 checkpoint=9900 spread", False),
        ("started=9800", True),  # it may yet save a checkpoint
        ("started=9701", True),
        ("started=9700", False),
        ("started=0 checkpoint=0", False),
    ],
)
def test_a_gang_that_may_yet_move_makes_the_plan_restless(gang: str, restless: bool) -> None:
    nodes = TWO_NODES.replace("restart=30", "restart=20")
    draft = drafted.draft(f"{nodes}running one tasks=2 gpus=1 on=a,b {gang}")
    moving.to_better_places(draft)
    assert draft.restless is restless


def test_the_largest_gang_moves_first() -> None:
    draft = drafted.draft(
        """
        rules policy=gandiva min_runtime=60 restart=30
        node a gpus=3
        node b gpus=3
        node c gpus=3
        running other gpus=1 on=b started=0
        running small tasks=2 gpus=1 on=a,b started=0 checkpoint=0
        running large tasks=3 gpus=1 on=a*2,b started=0 checkpoint=0
        """
    )
    moving.to_better_places(draft)
    assert [(job, {claim.node for claim in one.to}) for job, one in draft.moves.items()] == [
        ("large", {"c"}),
        ("small", {"b"}),
    ]
