"""The draft of a plan: each decision counts at once, in the free space, in the pools and among the expected ends."""

from __future__ import annotations

from tests.scheduler import drafted, world

from oarlock.scheduler.granting import backfilling

TWO_NODES = "rules policy=priority\nnode a gpus=2\nnode b gpus=2\n"


def test_a_gang_that_starts_is_expected_to_end_when_its_owner_said() -> None:
    """A later gang may wait for its place, as for that of a gang that runs."""
    of = drafted.cluster(f"{TWO_NODES}running x gpus=2 on=a end=12000\njob one gpus=2")
    of.waiting["one"] = world.replace(of.waiting["one"], lasts_s=500.0)
    draft = drafted.draft(of)
    (gang,) = draft.snapshot.waiting
    claims = draft.place(gang, (1,))
    assert claims is not None
    draft.launch(drafted.turn(draft, "one"), claims)
    assert [(job.name, job.expected_end) for job in draft.ends.order()] == [("one", 10_500.0), ("x", 12_000.0)]
    assert draft.place(gang, (1,)) is None


def test_a_gang_that_gives_up_its_place_is_not_waited_for() -> None:
    """It waits again, and its place is free once its processes are gone."""
    draft = drafted.draft(f"{TWO_NODES}running x gpus=2 on=a\nrunning y gpus=2 on=b")
    draft.give_up(drafted.running(draft, "x"), "its turn is over")
    assert [job.name for job in draft.ends.order()] == ["y"]
    assert draft.preemptions["x"].reason == "its turn is over"
    assert (draft.space.free().gpus, draft.timeline.later.free().gpus) == (0, 2), "its processes still run"
    assert not draft.victims.may_restart(drafted.running(draft, "x")), "a plan decides once about a gang"


def test_the_holdings_of_ended_gangs_are_summed_by_leaf_and_permission() -> None:
    draft = drafted.draft(
        f"{TWO_NODES}pool p\nrunning one cpus=1 gpus=1 on=a\nrunning two gpus=1 on=a\n"
        "running three gpus=1 on=b pool=p\nrunning four gpus=1 on=b pool=p preemptible=no"
    )
    assert backfilling.ended(draft.snapshot.running, draft.facts) == {
        ("default", True): (2000, 1000, 0),
        ("p", True): (1000, 0, 0),
        ("p", False): (1000, 0, 0),
    }


def test_stopping_gangs_are_named_in_one_order() -> None:
    """The order in which a snapshot lists them changes no word of a refusal."""
    draft = drafted.draft(
        """
        node a gpus=2
        running two gpus=1 on=a stopping
        running one gpus=1 on=a stopping
        job new gpus=2
        """
    )
    (gang,) = draft.snapshot.waiting
    held = tuple(claim for job in draft.snapshot.running for claim in job.holdings)
    assert [one.job for one in draft.stopping(gang, held)] == ["one", "two"]
