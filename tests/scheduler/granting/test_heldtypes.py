"""The types of GPU of a running gang: no gang is restarted on a slower one for its own sake."""

from __future__ import annotations

import pytest
from tests.scheduler import drafted

from oarlock.scheduler.granting import growing, heldtypes

TYPES = """
rules policy=priority min_runtime=60 restart=30
node old gpus=4:v100
node new gpus=2:h100
"""


def test_the_type_of_a_gang_is_that_of_all_its_devices() -> None:
    draft = drafted.draft(
        f"{TYPES}running one tasks=2 gpus=1 mixed on=old,new started=0\nrunning two gpus=1 on=old started=0"
    )
    assert heldtypes.held_type(draft, drafted.running(draft, "one")) == ""
    assert heldtypes.held_type(draft, drafted.running(draft, "two")) == "v100"


GROWTH = {
    "more of a slower type": ("max=4 on=new started=0\nrunning x gpus=1 on=new", None),
    "of its own type": ("max=4 on=new started=0", ["new[0]", "new[1]"]),
    "more of a faster type": ("max=2 on=old started=0", ["new[0]", "new[1]"]),
    "without a faster one": ("max=2 on=old started=0\nrunning x gpus=1 on=new", ["old[0]", "old[1]"]),
    "mixed with a slower type": ("max=4 mixed on=new started=0\nrunning x gpus=1 on=new", None),
}


@pytest.mark.parametrize(("gang", "to"), GROWTH.values(), ids=GROWTH.keys())
def test_a_gang_grows_onto_no_slower_type(gang: str, to: list[str] | None) -> None:
    draft = drafted.draft(f"{TYPES}running one tasks=1 gpus=1 {gang}")
    growing.into_idle(draft)
    resized = draft.resizes.get("one")
    assert (resized and drafted.places(resized.to)) == to


@pytest.mark.parametrize(("kind", "grows"), [("h100", True), ("v100", False)])
def test_no_gang_shrinks_so_that_another_grows_onto_a_slower_type(kind: str, grows: bool) -> None:
    draft = drafted.draft(
        f"""
        node a gpus=1:h100
        node b gpus=3:{kind}
        running one tasks=1 max=2 gpus=1 on=a started=0
        running two tasks=3 min=1 max=3 gpus=1 on=b*3 started=0
        """
    )
    one = drafted.turn(draft, "one", size=(2,), on="")
    drafted.wished(draft, one, drafted.turn(draft, "two", size=(1,), on=""))
    growing.as_wished(draft, one, clear=True)
    assert {job: resize.size for job, resize in draft.resizes.items()} == ({"one": (2,), "two": (1,)} if grows else {})
