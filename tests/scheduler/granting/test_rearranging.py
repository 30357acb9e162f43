"""Moves to another type of GPU: all gangs that change give up their places together."""

from __future__ import annotations

import pytest
from tests.scheduler import drafted

from oarlock.scheduler.granting import rearranging

TWO_TYPES = """
rules policy=gandiva min_runtime=600 restart=30
node old gpus=2:v100
node new gpus=2:h100
"""
SWAPPED = "running one tasks=2 gpus=1 on=old*2 started=9999\nrunning two tasks=2 gpus=1 on=new*2 started=9999"


def test_two_gangs_change_places() -> None:
    """Neither could move first."""
    draft = drafted.draft(TWO_TYPES + SWAPPED)
    drafted.wished(draft, drafted.turn(draft, "one", on="h100"), drafted.turn(draft, "two", on="v100"))
    rearranging.carry_out(draft)
    assert {job: drafted.places(move.to) for job, move in draft.moves.items()} == {
        "one": ["new[0]", "new[1]"],
        "two": ["old[0]", "old[1]"],
    }


def test_a_gang_without_a_place_stays_and_the_others_are_placed_around_it() -> None:
    """The second gang finds no place, so there is none for the first one; the third moves all the same."""
    draft = drafted.draft(
        f"{TWO_TYPES}{SWAPPED}\nnode small gpus=1:a100\nnode x gpus=1:t4\nnode y gpus=1:l4\nrunning three gpus=1 on=x"
    )
    wishes = {"one": "h100", "two": "a100", "three": "l4"}
    drafted.wished(draft, *(drafted.turn(draft, job, on=kind) for job, kind in wishes.items()))
    rearranging.carry_out(draft)
    assert {job: drafted.places(move.to) for job, move in draft.moves.items()} == {"three": ["y[0]"]}


def test_another_size_is_a_resize() -> None:
    draft = drafted.draft(f"{TWO_TYPES}running one tasks=1 max=2 gpus=1 on=old started=0")
    drafted.wished(draft, drafted.turn(draft, "one", on="h100", size=(2,)))
    rearranging.carry_out(draft)
    assert not draft.moves
    assert {job: (one.size, drafted.places(one.to)) for job, one in draft.resizes.items()} == {
        "one": ((2,), ["new[0]", "new[1]"])
    }


@pytest.mark.parametrize(
    ("lines", "wish"),
    [
        ("on=old*2 started=0", {"on": "v100"}),  # it has that type and size
        ("on=old*2 started=0", {}),  # its policy divides no types
        ("on=old*2 started=0 preemptible=no", {"on": "h100"}),
        ("on=old*2 started=0 stopping returns", {"on": "h100"}),
    ],
)
def test_a_gang_stays(lines: str, wish: dict[str, object]) -> None:
    draft = drafted.draft(f"{TWO_TYPES}running one tasks=2 gpus=1 {lines}")
    turn = drafted.turn(draft, "one", **wish)
    drafted.wished(draft, turn)
    rearranging.carry_out(draft)
    assert not draft.moves
    assert not draft.resizes
