"""Places and shares that are kept for a gang that fits nowhere yet."""

from __future__ import annotations

import pytest
from tests.scheduler import drafted, world

from oarlock.scheduler.granting import backfilling, drafts
from oarlock.spec import plans

NODES = "rules policy=priority\nnode a gpus=2\nnode b gpus=2\n"


def gang(of: drafts.Draft, job: str) -> plans.Gang:
    return next(gang for gang in of.snapshot.waiting if gang.job == job)


def test_gangs_with_known_ends_come_first_then_the_oldest() -> None:
    draft = drafted.draft(
        f"""{NODES}
        running young gpus=1 on=a started=50
        running old gpus=1 on=a started=10
        running late gpus=1 on=b started=0 end=20000
        running soon gpus=1 on=b started=0 end=11000
        """
    )
    ends = draft.ends
    assert [job.name for job in ends.order()] == ["soon", "late", "old", "young"]
    ends.gone("late")
    assert [job.name for job in ends.order()] == ["soon", "old", "young"]
    new = world.replace(drafted.running(draft, "late").gang, job="new", name="new", lasts_s=100.0)
    ends.come(new, (), drafted.NOW, at_once=True)
    assert [job.name for job in ends.order()] == ["new", "soon", "old", "young"]
    ends.gone("new")
    ends.come(new, (), drafted.NOW, at_once=True)
    ends.gone("new")
    assert [job.name for job in ends.order()] == ["soon", "old", "young"]
    ends.come(new, (), drafted.NOW, at_once=False)
    assert [job.name for job in ends.order()] == ["soon", "old", "young", "new"], "a promise has no known end"


def test_a_stopping_gang_is_not_waited_for() -> None:
    draft = drafted.draft(f"{NODES}running one gpus=2 on=a stopping\nrunning two gpus=2 on=b")
    assert [job.name for job in draft.ends.order()] == ["two"]


KEPT = {
    "the first end is enough": ("running x gpus=2 on=a end=11000\nrunning y gpus=2 on=b end=12000", ["a"], 11_000.0),
    "both ends are needed on one node": (
        "running x gpus=1 on=a end=11000\nrunning y gpus=1 on=a end=12000\nrunning z gpus=2 on=b",
        ["a"],
        12_000.0,
    ),
    "an end is not known": (
        "running x gpus=1 on=a end=11000\nrunning y gpus=1 on=a\nrunning z gpus=2 on=b started=1",
        ["a"],
        None,
    ),
}


@pytest.mark.parametrize(("lines", "nodes", "at"), KEPT.values(), ids=KEPT.keys())
def test_a_place_is_kept_where_the_gang_fits_first(lines: str, nodes: list[str], at: float | None) -> None:
    draft = drafted.draft(f"{NODES}{lines}\njob big gpus=2")
    kept = draft.keep(gang(draft, "big"), (1,))
    assert kept is not None
    assert (list(kept.nodes), kept.at) == (nodes, at)


def test_no_place_is_kept_where_no_end_helps() -> None:
    draft = drafted.draft(f"{NODES}running x gpus=2 on=a\njob big gpus=3")
    assert draft.keep(gang(draft, "big"), (1,)) is None
    assert not draft.heads


def test_the_free_part_of_a_kept_place_is_taken() -> None:
    """The device that is free already is not given to a later gang; the other node is."""
    draft = drafted.draft(
        f"{NODES}running x gpus=1 on=a end=11000\nrunning y gpus=2 on=b\njob big gpus=2\njob next gpus=1"
    )
    kept = draft.keep(gang(draft, "big"), (1,))
    assert kept is not None
    assert draft.place(gang(draft, "next"), (1,)) is None
    with draft.without([kept]):
        assert draft.place(gang(draft, "next"), (1,)) is not None
    assert draft.place(gang(draft, "next"), (1,)) is None


def test_the_gangs_that_a_kept_place_waits_for_are_spared() -> None:
    """The first gang to end is on another node: the place does not wait for it."""
    draft = drafted.draft(
        f"{NODES}running first gpus=1 on=b end=10500\nrunning x gpus=2 on=a end=11000\nrunning y gpus=1 on=b\n"
        "job big gpus=2"
    )
    assert draft.victims.may_give_way(drafted.running(draft, "x"))
    draft.keep(gang(draft, "big"), (1,))
    spared = [job for job in ("first", "x", "y") if not draft.victims.may_give_way(drafted.running(draft, job))]
    assert spared == ["x"]


@pytest.mark.parametrize(("timeout", "lasts"), [("timeout=1000", True), ("timeout=1001", False), ("", False)])
def test_a_gang_may_use_a_kept_place_that_is_needed_later(timeout: str, lasts: bool) -> None:
    draft = drafted.draft(
        f"{NODES}running x gpus=2 on=a end=11000\nrunning y gpus=2 on=b\njob big gpus=2\njob next gpus=1 {timeout}"
    )
    kept = draft.keep(gang(draft, "big"), (1,))
    assert kept is not None
    assert (draft.lasting(gang(draft, "next")) == [kept]) is lasts


def test_a_share_of_a_limit_is_kept_from_the_time_of_the_ends() -> None:
    """Two devices of a limit of three are held. A gang of two waits for the limit: one device is free, and kept."""
    draft = drafted.draft(
        f"{NODES}pool default limit.gpus=3\nrunning x gpus=1 on=a end=11000\nrunning y gpus=1 on=a end=12000\n"
        "job big gpus=2\njob small gpus=1\njob short gpus=1 timeout=1000"
    )
    big, small, short = (gang(draft, name) for name in ("big", "small", "short"))
    over = draft.bounds.over(big, draft.facts.of(big).least)
    assert over is not None
    assert draft.bounds.over(small, draft.facts.of(small).least) is None
    backfilling.keep_for(big, draft.facts.of(big).least, over, draft.bounds, draft.ends, draft.facts)
    kept = draft.bounds.over(small, draft.facts.of(small).least)
    assert kept is not None
    assert kept.first == big
    assert draft.bounds.over(short, draft.facts.of(short).least) is None, "it ends before the share is needed"


@pytest.mark.parametrize("resource", ["gpus", "cpus"])
def test_a_share_of_a_limit_waits_for_the_last_thousandth(resource: str) -> None:
    """After the first end, a thousandth of the limit is missing still: the share is kept until the second end."""
    draft = drafted.draft(
        f"rules policy=priority\nnode a gpus=2 cpus=2\nnode b gpus=2 cpus=2\npool default limit.{resource}=1\n"
        f"running x {resource}=0.2 on=a end=11000\nrunning y {resource}=0.3 on=b end=12000\n"
        f"job big {resource}=0.701\njob small {resource}=0.4\njob short {resource}=0.4 timeout=2000"
    )
    big, small, short = (gang(draft, name) for name in ("big", "small", "short"))
    over = draft.bounds.over(big, draft.facts.of(big).least)
    assert over is not None
    assert draft.bounds.over(small, draft.facts.of(small).least) is None
    backfilling.keep_for(big, draft.facts.of(big).least, over, draft.bounds, draft.ends, draft.facts)
    kept = draft.bounds.over(small, draft.facts.of(small).least)
    assert kept is not None
    assert kept.first == big
    assert draft.bounds.over(short, draft.facts.of(short).least) is None, "it ends with the second"


def test_the_part_of_a_limit_that_ends_leave_beyond_a_kept_share_is_free() -> None:
    """Both ends are needed for three devices of a limit of four. The fourth one is free for a later gang."""
    draft = drafted.draft(
        f"{NODES}pool default limit.gpus=4\nrunning x gpus=1 on=a end=11000\nrunning y gpus=2 on=b end=12000\n"
        "job big tasks=3 gpus=1\njob small gpus=1"
    )
    big, small = gang(draft, "big"), gang(draft, "small")
    over = draft.bounds.over(big, draft.facts.of(big).least)
    assert over is not None
    backfilling.keep_for(big, draft.facts.of(big).least, over, draft.bounds, draft.ends, draft.facts)
    assert draft.bounds.bound(big, over).kept_shares
    assert draft.bounds.over(small, draft.facts.of(small).least) is None
    draft.bounds.add(small, draft.facts.of(small).least)
    draft.bounds.add(drafted.running(draft, "x").gang, (1000, 0, 0), -1)
    kept = draft.bounds.over(small, draft.facts.of(small).least)
    assert kept is not None
    assert kept.first == big, "the three are kept"
