"""The order of all turns: the leaf that is furthest below its entitlement comes first."""

from __future__ import annotations

from tests.scheduler import drafted

from oarlock.scheduler.granting import drafts
from oarlock.scheduler.ordering import turnorder

POOLS = """
rules policy=fifo
node a gpus=8
pool left reserve.gpus=4
pool right reserve.gpus=4
"""


def turns(draft: drafts.Draft, *, granted: bool) -> list[str]:
    """Return the gangs in the order of their turns; with `granted` each gets what it asks for."""
    found = []
    for turn in turnorder.by_need(draft.order.queues, draft.bounds):
        found.append(turn.wish.job)
        if granted:
            draft.bounds.add(turn.candidate.gang, turn.profile.least, now=True)
    return found


def test_the_leaf_with_the_smallest_part_of_its_entitlement_comes_first() -> None:
    lines = "\n".join(
        f"job {name} gpus=1 pool={pool}"
        for name, pool in (("l1", "left"), ("l2", "left"), ("r1", "right"), ("r2", "right"))
    )
    draft = drafted.draft(f"{POOLS}running x gpus=1 on=a pool=left\n{lines}")
    assert turns(draft, granted=True) == ["r1", "l1", "r2", "l2"]


def test_a_leaf_goes_on_while_nothing_is_granted() -> None:
    lines = "\n".join(
        f"job {name} gpus=1 pool={pool}"
        for name, pool in (("l1", "left"), ("r1", "right"), ("l2", "left"), ("r2", "right"))
    )
    assert turns(drafted.draft(POOLS + lines), granted=False) == ["l1", "l2", "r1", "r2"]


def test_an_amount_that_is_given_up_moves_its_leaf_forward() -> None:
    lines = "\n".join(
        f"job {name} gpus=1 pool={pool}"
        for name, pool in (("l1", "left"), ("l2", "left"), ("r1", "right"), ("r2", "right"))
    )
    draft = drafted.draft(f"{POOLS}running x gpus=2 on=a pool=right\n{lines}")
    found = []
    for turn in turnorder.by_need(draft.order.queues, draft.bounds):
        found.append(turn.wish.job)
        draft.bounds.add(turn.candidate.gang, turn.profile.least, now=True)
        if turn.wish.job == "l1":
            running = drafted.running(draft, "x")
            draft.bounds.add(running.gang, draft.facts.held(running).amount, -1)
    assert found == ["l1", "r1", "r2", "l2"]


def test_one_pool_without_bounds_is_one_leaf() -> None:
    draft = drafted.draft("rules policy=fifo\nnode a gpus=2\njob one\njob two")
    assert list(draft.order.queues) == [""]
    draft = drafted.draft("rules policy=fifo\nnode a gpus=2\npool default limit.gpus=1\njob one\njob two")
    assert list(draft.order.queues) == ["default"]


def test_a_policy_of_a_pool_counts_for_its_leaf() -> None:
    draft = drafted.draft(f"{POOLS}pool own policy=goodput\njob one pool=left\njob two pool=own")
    assert (draft.order.sizes("left"), draft.order.sizes("own")) == (False, True)
