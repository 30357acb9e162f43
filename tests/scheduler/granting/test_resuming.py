"""Places that an earlier plan found: for gangs that were resized or moved, and gangs that others are stopped for."""

from __future__ import annotations

import pytest
from tests.scheduler import drafted, world

from oarlock.scheduler.granting import drafts, resuming
from oarlock.spec import refusals

STOPPED = """
rules policy=priority round=60 restart=30
node a gpus=2
node b gpus=2
running one tasks=2 min=1 max=4 gpus=1 on=b*2
"""


def moved(*, ago_s: float = 10.0, gone: bool = True, tasks: int = 2, others: str = "") -> drafts.Draft:
    """A gang that was stopped for a move to node b, by now or soon."""
    of = drafted.cluster(STOPPED)
    of.stop("one", of.running["one"].holdings[:tasks])
    if gone:
        of.gone("one", drafted.NOW - ago_s)
    else:
        of.running["one"] = world.replace(of.running["one"], returns=True)
    if others:
        full = drafted.cluster(STOPPED + others)
        of.running |= {job: one for job, one in full.running.items() if job != "one"}
    return drafted.draft(of)


@pytest.mark.parametrize(
    ("draft", "starts", "promised"),
    [
        (moved(), ["b[0]", "b[1]"], None),
        (moved(ago_s=60.0), ["b[0]", "b[1]"], None),
        (moved(ago_s=61.0), None, None),  # a place is not kept for long
        (moved(gone=False), None, ["b[0]", "b[1]"]),
        (moved(tasks=1), ["b[0]"], None),
        (moved(tasks=0), None, None),
    ],
)
def test_a_stopped_gang_goes_on_in_its_place(
    draft: drafts.Draft, starts: list[str] | None, promised: list[str] | None
) -> None:
    found = resuming.destined(draft, draft.order.noted())
    assert [drafted.places(launch.holdings) for launch in draft.launches] == ([starts] if starts else [])
    assert {job: drafted.places(claims) for job, claims in found.items()} == ({"one": promised} if promised else {})


def test_a_gang_that_still_stops_is_promised_another_place() -> None:
    of = drafted.cluster(f"{STOPPED}job there tasks=2 gpus=1")
    draft = drafted.draft(of)
    (there,) = draft.snapshot.waiting
    claims = draft.place(there, (2,))
    assert claims is not None
    assert drafted.places(claims) == ["a[0]", "a[1]"]
    of.stop("one", tuple(world.replace(claim, job="one") for claim in claims))
    draft = drafted.draft(of)
    assert list(resuming.destined(draft, draft.order.noted())) == ["one"]
    assert not draft.launches, "it holds its devices until its processes are gone"


def test_a_place_that_another_gang_holds_is_lost() -> None:
    of = drafted.cluster(STOPPED)
    of.stop("one", of.running["one"].holdings)
    of.gone("one", drafted.NOW - 1)
    taken = drafted.cluster("node a gpus=2\nnode b gpus=2\nrunning other gpus=1 on=b")
    of.running |= taken.running
    draft = drafted.draft(of)
    assert resuming.destined(draft, draft.order.noted()) == {}
    assert not draft.launches


def test_a_size_that_the_job_no_longer_allows_is_not_resumed() -> None:
    of = drafted.cluster(STOPPED)
    of.stop("one", of.running["one"].holdings)
    of.gone("one", drafted.NOW - 1)
    gang = of.waiting["one"]
    of.waiting["one"] = world.replace(gang, asks=(world.replace(gang.asks[0], min=3, count=3),))
    draft = drafted.draft(of)
    assert resuming.destined(draft, draft.order.noted()) == {}
    assert not draft.launches


CLEARING = """
rules policy=priority
node a gpus=1
node b gpus=1
job one gpus=1
job two gpus=1 priority=90
"""


def cleared(kept: tuple[str, ...], *, lines: str = CLEARING, **more: object) -> drafts.Draft:
    """A gang for which an earlier plan has stopped others on the nodes `kept`."""
    of = drafted.cluster(lines)
    refusal = refusals.Refusal(code=refusals.Code.STOPPING, message="", kept=kept)
    of.waiting["one"] = world.replace(of.waiting["one"], refusal=refusal, **more)
    return drafted.draft(of)


@pytest.mark.parametrize(
    ("draft", "expected"),
    [
        (cleared(("b",)), {"one": ["b[0]"]}),
        (cleared(("gone",)), {"one": ["a[0]"]}),
        (
            cleared(("b",), lines=CLEARING.replace("b gpus=1", "b gpus=2").replace("one g", "one tasks=2 min=1 g")),
            {"one": ["b[0]"]},
        ),
        (cleared(()), {}),
        (cleared(("b",), not_before=drafted.NOW + 1), {}),
        (cleared(("b",), lines=CLEARING + "pool default limit.gpus=0"), {}),
    ],
)
def test_a_cleared_place_is_promised_to_its_gang(draft: drafts.Draft, expected: dict[str, list[str]]) -> None:
    found = resuming.promised(draft, [drafted.turn(draft, "one")])
    assert {job: drafted.places(claims) for job, claims in found.items()} == expected


def test_a_promised_place_is_taken_for_all_others() -> None:
    draft = cleared(("a",))
    resuming.promised(draft, draft.order.noted())
    two = next(gang for gang in draft.snapshot.waiting if gang.job == "two")
    claims = draft.place(two, (1,))
    assert claims is not None
    assert drafted.places(claims) == ["b[0]"]
