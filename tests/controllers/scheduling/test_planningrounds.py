"""The times of plans, their extent, and the rounds that may touch running gangs."""

from __future__ import annotations

import msgspec
from tests.lifecycle import script

from oarlock.controllers.scheduling import planningrounds
from oarlock.scheduler import gangs
from oarlock.spec import jobs, plans, refusals

NOW = 5000.0
Code = refusals.Code


def waiting(number: int, *, priority: int = 50, refused: refusals.Code | None = None) -> jobs.Job:
    job = script.new_job(f"{{priority: {priority}}}", id=f"j-{number:04}", created_at=NOW - 1000 + number)
    refusal = refusals.Refusal(code=refused, message="no") if refused is not None else None
    return msgspec.structs.replace(job, refusal=refusal)


def snapshot(*jobs_: jobs.Job, running: str = "", reallocate: bool = False) -> plans.Snapshot:
    held = script.new_job(running, id="j-runs") if running else None
    return plans.Snapshot(
        nodes=(),
        waiting=tuple(gangs.gang(job) for job in jobs_),
        running=(gangs.running(held, ()),) if held is not None else (),
        reallocate=reallocate,
    )


def plan(*refused: tuple[str, refusals.Code]) -> plans.Plan:
    return plans.Plan(refusals={job: refusals.Refusal(code=code, message="no") for job, code in refused})


def test_after_a_start_everything_is_looked_at_and_may_be_touched_at_once() -> None:
    fresh = planningrounds.PlanningRounds(60.0)
    assert fresh.is_due(NOW)
    assert fresh.touches(NOW)
    assert fresh.whole(10_000, NOW, touches=False)


def test_running_gangs_are_touched_at_most_every_round() -> None:
    made = planningrounds.PlanningRounds(60.0)
    made.planned(snapshot(waiting(1), running="{}", reallocate=True), plan(), NOW, whole=True)
    assert [second for second in range(0, 130, 10) if made.touches(NOW + second)] == [60, 70, 80, 90, 100, 110, 120]
    made.changed()
    assert not made.touches(NOW + 59)
    made.rest([waiting(1)], NOW + 57, held=True, retry=False)
    assert made.due == NOW + 60


def test_a_plan_that_says_so_is_made_again_though_nothing_happens() -> None:
    for restless in (False, True):
        made = planningrounds.PlanningRounds(60.0)
        made.planned(snapshot(running="{}", reallocate=True), plans.Plan(restless=restless), NOW, whole=True)
        assert made.touches(NOW + 60) is restless
        made.rest([], NOW, held=True, retry=False)
        assert made.due == (NOW + 60 if restless else None)


def test_a_wake_at_the_very_time_that_is_due_finds_it_come() -> None:
    """Else it wakes for nothing, again and again: a sum that was rounded down leaves a difference that is too short."""
    began = 1048549.6359685716
    assert began + 60.0 - began < 60.0
    made = planningrounds.PlanningRounds(60.0)
    made.planned(snapshot(waiting(1), running="{}", reallocate=True), plan(), began, whole=True)
    made.rest([waiting(1)], began + 57, held=True, retry=False)
    assert made.due == began + 60.0
    assert made.touches(made.due)


def test_a_round_is_not_spent_where_nothing_could_come_of_it() -> None:
    """So that the next job of a quiet cluster need not wait for the next one."""
    made = planningrounds.PlanningRounds(60.0)
    made.planned(snapshot(running="{}", reallocate=True), plan(), NOW, whole=True)
    made.rest([], NOW, held=True, retry=False)
    assert made.due is None
    assert not made.touches(NOW + 1000)
    made.changed()
    assert made.touches(NOW + 1000)
    made.rest([], NOW + 1000, held=True, retry=False)
    assert made.due == NOW + 1000


def test_time_alone_may_change_the_plan_for_elastic_gangs_and_batches() -> None:
    for running in ("{roles: {worker: {count: 2, min: 1}}}", "{batch: {size: 32, max: 64}}"):
        made = planningrounds.PlanningRounds(60.0)
        made.planned(snapshot(running=running, reallocate=True), plan(), NOW, whole=True)
        made.rest([], NOW, held=True, retry=False)
        assert made.due == NOW + 60


def test_a_clock_that_was_set_back_holds_up_nothing() -> None:
    made = planningrounds.PlanningRounds(60.0)
    made.planned(snapshot(waiting(1), running="{}", reallocate=True), plan(), NOW, whole=True)
    made.rest([waiting(1)], NOW, held=True, retry=False)
    assert made.is_due(NOW - 3600)
    assert made.touches(NOW - 3600)
    assert made.whole(10_000, NOW - 3600, touches=False)


def test_a_head_is_the_first_gangs_of_the_last_whole_plan_and_later_ones() -> None:
    """In the plan's own order, whatever the policy went by; one that lacks more than space is left to a whole plan."""
    made = planningrounds.PlanningRounds(60.0)
    queue = [waiting(number, priority=number) for number in range(200)]
    queue[7] = waiting(7, refused=Code.POOL_SHARE)
    queue[8] = waiting(8, refused=Code.OUTRANKED)
    order = [(job.id, Code.NO_CAPACITY) for job in reversed(queue) if job.refusal is None]
    told = plan(("j-0007", Code.POOL_SHARE), ("j-0008", Code.OUTRANKED), *order)
    made.planned(snapshot(*queue), told, NOW, whole=True)
    came = [waiting(number) for number in (900, 901)]
    head = [job.id for job in made.head([*queue, *came])]
    assert head == [*[job_id for job_id, _ in order][: planningrounds.HEAD], "j-0900", "j-0901"]

    # A plan of the head alone says nothing of the order of all.
    made.planned(snapshot(*queue[:3]), plan(("j-0005", Code.NO_CAPACITY)), NOW, whole=False)
    assert [job.id for job in made.head([*queue, *came])] == head


def test_a_whole_plan_follows_plans_of_the_head() -> None:
    made = planningrounds.PlanningRounds(60.0)
    made.planned(snapshot(), plan(), NOW, whole=True)
    assert not made.whole(planningrounds.HEAD + 1, NOW + 1.9, touches=False)
    assert made.whole(planningrounds.HEAD + 1, NOW + 2.0, touches=False)
    assert made.whole(planningrounds.HEAD, NOW + 0.1, touches=False)
    assert made.whole(planningrounds.HEAD + 1, NOW + 0.1, touches=True), (
        "nobody is stopped by who has not seen everybody"
    )
    made.planned(snapshot(), plan(), NOW + 1, whole=False)
    made.rest([waiting(1)], NOW + 1, held=False, retry=False)
    assert made.due == NOW + 2.0
