"""The choice of gangs to stop: few and cheap ones, and only where the gang then fits."""

from __future__ import annotations

import pytest
from tests.scheduler import drafted

from oarlock.scheduler.granting import drafts
from oarlock.scheduler.preemption import clearing, victims

LEVEL = -90.0
"""The level of a gang with the priority 90."""

NODES = "rules policy=priority min_runtime=60\nnode a gpus=2\nnode b gpus=2\n"


def cleared(lines: str, *jobs: str, tasks: int = 1) -> tuple[drafts.Draft, clearing.Clearance | None]:
    """Return the gangs to stop so that `new` fits, chosen among these jobs."""
    draft = drafted.draft(NODES + lines)
    gang = next(gang for gang in draft.snapshot.waiting if gang.job == "new")
    candidates = [
        victim for victim in draft.victims.killable(gang, draft.facts.of(gang).least, LEVEL) if victim.job in jobs
    ]
    assert len(candidates) == len(jobs)
    need = clearing.Need(gang, (tasks,), draft.facts.of(gang).amount((tasks,)), None)
    space = draft.timeline.later
    return draft, clearing.clear(need, candidates, space, draft.victims.reshaped, draft.searches)


def stopped(found: clearing.Clearance | None) -> list[str] | None:
    return found and sorted(victim.job for victim in found.victims)


CASES = {
    "the one that lost least work": (
        "running old gpus=2 on=a started=0 priority=10\nrunning young gpus=2 on=b started=9000 priority=10\n"
        "job new gpus=2 priority=90",
        ["old", "young"], ["young"],
    ),
    "a checkpoint saves the work": (
        "running old gpus=2 on=a started=0 checkpoint=9990 priority=10\n"
        "running young gpus=2 on=b started=9000 priority=10\njob new gpus=2 priority=90",
        ["old", "young"], ["old"],
    ),
    "both of one node, none of the other": (
        "running a1 gpus=1 on=a started=0 priority=10\nrunning a2 gpus=1 on=a started=0 priority=10\n"
        "running b1 gpus=1 on=b started=9000 priority=10\nrunning b2 gpus=1 on=b started=0 priority=10\n"
        "job new gpus=2 priority=90",
        ["a1", "a2", "b1", "b2"], ["b1", "b2"],
    ),
    "a cheap one on a node that is dear to clear": (
        "running a1 gpus=1 on=a started=9900 priority=10\nrunning a2 gpus=1 on=a started=0 priority=10\n"
        "running b1 gpus=2 on=b started=9000 priority=10\njob new gpus=1 priority=90",
        ["a1", "a2", "b1"],
        ["a1"],
    ),
    "one is enough": (
        "running a1 gpus=1 on=a started=0 priority=10\nrunning b1 gpus=1 on=b started=0 priority=10\n"
        "job new gpus=2 priority=90",
        ["a1", "b1"], ["a1"],
    ),
    "not even without all of them": (
        "running a1 gpus=1 on=a started=0 priority=10\njob new gpus=3 priority=90",
        ["a1"], None,
    ),
}  # fmt: skip


@pytest.mark.parametrize(("lines", "jobs", "expected"), CASES.values(), ids=CASES.keys())
def test_few_and_cheap_gangs_are_stopped(lines: str, jobs: list[str], expected: list[str] | None) -> None:
    draft, found = cleared(lines, *jobs)
    assert stopped(found) == expected
    assert draft.timeline.later.free() == drafted.draft(NODES + lines).timeline.later.free(), "a search changes nothing"


def test_a_bound_that_the_gang_would_exceed_asks_for_more_victims() -> None:
    """The gang fits on node b at once, and the bound of its pool holds only once both others have ended."""
    lines = (
        "running a1 gpus=1 on=a started=0 priority=10\nrunning a2 gpus=1 on=a started=0 priority=10\n"
        "job new gpus=1 priority=90"
    )
    draft = drafted.draft(NODES + lines)
    (gang,) = draft.snapshot.waiting
    candidates = draft.victims.killable(gang, draft.facts.of(gang).least, LEVEL)
    need = clearing.Need(
        gang, (1,), draft.facts.of(gang).least, lambda freed: sum(one[0] for one in freed.values()) > 1000
    )
    found = clearing.clear(need, candidates, draft.timeline.later, draft.victims.reshaped, draft.searches)
    assert stopped(found) == ["a1", "a2"]


def test_a_gang_that_a_bound_does_not_need_is_taken_back() -> None:
    """The cheap gang comes first, and the bound holds only without the large one: then the cheap one runs on."""
    lines = (
        "running cheap gpus=1 cpus=1 on=a started=9900 priority=10\n"
        "running large gpus=2 cpus=2 on=b started=0 priority=10\n"
        "job new gpus=1 priority=90"
    )
    draft = drafted.draft((NODES + lines).replace("gpus=2\n", "gpus=2 cpus=8\n", 2))
    (gang,) = draft.snapshot.waiting
    candidates = draft.victims.killable(gang, draft.facts.of(gang).least, LEVEL)
    seen: list[clearing.Freed] = []

    def within(freed: clearing.Freed) -> bool:
        seen.append(freed)
        return sum(one[0] for one in freed.values()) > 1000

    need = clearing.Need(gang, (1,), draft.facts.of(gang).least, within)
    found = clearing.clear(need, candidates, draft.timeline.later, draft.victims.reshaped, draft.searches)
    assert stopped(found) == ["large"]
    assert {("default", True): (3000, 3000, 0)} in seen, "all resources of both are summed"


def test_without_trials_left_only_the_order_by_nodes_is_searched() -> None:
    """By cost alone, the gang `a1` would be found, as in the case above."""
    lines, jobs, _ = CASES["a cheap one on a node that is dear to clear"]
    draft = drafted.draft(NODES + lines)
    (gang,) = draft.snapshot.waiting
    candidates = draft.victims.killable(gang, draft.facts.of(gang).least, LEVEL)
    assert {one.job for one in candidates} == set(jobs)
    need = clearing.Need(gang, (1,), draft.facts.of(gang).least, None)
    draft.searches.trials = 0
    assert stopped(clearing.clear(need, candidates, draft.timeline.later, draft.victims.reshaped, draft.searches)) == [
        "b1"
    ]


def test_a_moved_gang_needs_a_place_too() -> None:
    lines = "running left gpus=1 on=a started=0\nrunning right gpus=1 on=b started=0\njob new gpus=2 priority=90"
    for more, expected in (("", {"left": ["b[1]"]}), ("\nrunning full gpus=1 on=b started=0", None)):
        draft = drafted.draft(NODES + lines + more)
        (gang,) = draft.snapshot.waiting
        movable = [victim for victim in draft.victims.movable(gang, LEVEL) if victim.job == "left"]
        need = clearing.Need(gang, (1,), draft.facts.of(gang).least, None)
        found = clearing.clear(need, movable, draft.timeline.later, draft.victims.reshaped, draft.searches)
        moved = found and {one.job: drafted.places(to) for one, to in zip(found.victims, found.moved, strict=True)}
        assert moved == expected


@pytest.mark.parametrize(("gpus", "may"), [(2, True), (3, False)])
def test_a_search_that_sums_rule_out_is_not_begun(gpus: int, may: bool) -> None:
    draft = drafted.draft(f"{NODES}running a1 gpus=1 on=a started=0 priority=10\njob new gpus={gpus} priority=90")
    (gang,) = draft.snapshot.waiting
    need = clearing.Need(gang, (1,), draft.facts.of(gang).least, None)
    candidates = draft.victims.killable(gang, need.amount, LEVEL)
    assert draft.searches.may_do(need, candidates, draft.timeline.later) is may
    assert not draft.searches.may_do(need, [], draft.timeline.later)


def test_the_cost_of_a_victim_is_its_work_since_its_checkpoint() -> None:
    draft = drafted.draft(
        f"{NODES}running a1 gpus=2 on=a started=0 checkpoint=9000 priority=10\njob new gpus=2 priority=90"
    )
    (gang,) = draft.snapshot.waiting
    (victim,) = draft.victims.killable(gang, draft.facts.of(gang).least, LEVEL)
    assert isinstance(victim, victims.Victim)
    assert victim.cost == 2 * 1000


@pytest.mark.parametrize(
    ("words", "size", "decide"),
    [
        ("tasks=4 gpus=1", (4,), True),
        ("tasks=4 gpus=1 same=rack required", (4,), False),
        ("tasks=4 gpus=1 same=rack", (4,), True),
        ("tasks=4 gpus=1 ps=2", (4, 2), False),
        ("tasks=4 gpus=1 ps=2", (4, 0), True),
    ],
)
def test_sums_decide_for_tasks_that_are_alike_and_may_lie_anywhere(
    words: str, size: tuple[int, ...], decide: bool
) -> None:
    """Only then is a gang that was needed once needed later, so that one pass over the victims is enough."""
    (gang,) = drafted.draft(f"{NODES}job new {words}").snapshot.waiting
    assert clearing._by_sums(gang, size) is decide
