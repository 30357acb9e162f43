"""The simulated agents and training library: batches that the scheduler decides are taken up, what is reported
becomes the curve that the job has in truth, a job that is told to stop keeps its progress.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from tests.simulator import published, smallcases

from oarlock.scheduler import planning
from oarlock.scheduler.reuse import memos
from oarlock.scheduler.speed import rates
from oarlock.simulator.engine import simulation
from oarlock.simulator.models import jobmodels
from oarlock.simulator.outcomes import outcome
from oarlock.spec import curves, holdings, jobfile, plans, roles
from oarlock.store import stores

TRUTH = curves.Allreduce(
    compute_s=0.05,
    compute_per_example_s=0.002,
    near_s=0.03,
    near_per_device_s=0.01,
    far_s=0.2,
    far_per_device_s=0.01,
    noise=800.0,
)
BATCH = jobfile.Batch(size=64, max=1024, local_min=8, local_max=64)


def learner(examples: float, gpus: int = 2, **spec: Any):
    job_model = jobmodels.Modelled(TRUTH, examples, asked=BATCH.size, local_most=BATCH.local_max)
    return smallcases.job("learner", 0.0, 0.0, gpus=gpus, job_model=job_model, batch=BATCH, **spec)


def with_batches(decided: dict[float, curves.Batch]) -> Any:
    """First come first served, with the newest of these batches that is due."""

    def plan(snapshot: plans.Snapshot, now: float, memo: Any) -> plans.Plan:
        due = [batch for at, batch in sorted(decided.items()) if simulation.ORIGIN_S + at <= now]
        made = published.first_come(snapshot, now, memo)
        launches = tuple(msgspec.structs.replace(one, batch=due[-1] if due else None) for one in made.launches)
        changed = {one.job: due[-1] for one in snapshot.running if due and one.batch != due[-1]}
        return plans.Plan(launches=launches, batches=changed)

    return plan


def run(arrival: Any, plan: Any, nodes: str = "1x4", **settings: Any) -> tuple[simulation.Simulation, outcome.Outcome]:
    sim = smallcases.prepared([arrival], nodes, plan=plan, **settings)
    return sim, asyncio.run(sim.run()).outcome


def rate(batch: curves.Batch, shape: jobmodels.Shape) -> float:
    return jobmodels.Modelled(TRUTH, 1.0, asked=BATCH.size).pace(shape, batch, 0.0).rate


def test_a_batch_that_came_with_the_place_is_used_from_the_beginning() -> None:
    _, found = run(learner(100_000.0), with_batches({0.0: curves.Batch(64, 2)}))
    assert found.stories[0].ended == pytest.approx(100_000 / rate(curves.Batch(64, 2), (2,)))


def test_a_batch_that_is_decided_while_it_runs_is_taken_up_then() -> None:
    """Rounds are 60 s apart: a change due at 100 s is decided at 120 s."""
    _, found = run(learner(100_000.0), with_batches({100.0: curves.Batch(64, 2)}))
    own, other = rate(curves.Batch(32), (2,)), rate(curves.Batch(64, 2), (2,))
    assert found.stories[0].ended == pytest.approx(120 + (100_000 - 120 * own) / other)


def test_without_one_it_takes_its_own() -> None:
    _, found = run(learner(10_000.0), published.first_come)
    assert found.stories[0].ended == pytest.approx(10_000 / rate(curves.Batch(32), (2,)))


def test_reports_become_the_true_curve_of_the_job() -> None:
    """Over four batch sizes on one shape. `left` is the remaining work, in the curve's unit."""
    sizes = {at: curves.Batch(local) for at, local in ((0.0, 8), (100.0, 16), (200.0, 32), (300.0, 64))}
    sim = smallcases.prepared([learner(10_000_000.0, gpus=4)], "2x2", plan=with_batches(sizes), until_s=460.0)
    asyncio.run(sim.run())

    def look(view: stores.View) -> curves.Curve | None:
        job = view.job("learner")
        return job.curve if job is not None else None

    curve = asyncio.run(sim.store.read(look))
    assert curve is not None
    for local in (8, 24, 64):
        assert rates.step_s(curve.model, 2, 4, local) == pytest.approx(rates.step_s(TRUTH, 2, 4, local), rel=0.02)
    assert curve.model.noise == 800.0
    shape, at = (2, 2), 0.0
    done = 0.0
    for end, local in ((120.0, 8), (240.0, 16), (300.0, 32), (420.0, 64)):
        done += (end - at) * rate(curves.Batch(local), shape)
        at = end
    assert curve.left == pytest.approx(10_000_000 - done, rel=1e-4)


def test_a_job_may_keep_to_itself_how_much_it_has_left_to_do() -> None:
    sim = smallcases.prepared([learner(10_000_000.0)], "1x4", until_s=300.0, ends_told=False)
    asyncio.run(sim.run())
    job = asyncio.run(sim.store.read(lambda view: view.job("learner")))
    assert job is not None
    assert job.curve is not None
    assert job.curve.left is None
    assert job.live.tasks[0].progress.total_steps is None


def test_a_job_that_is_told_to_stop_keeps_its_progress() -> None:
    """Stopped at 300 s by a plan, placed anew at once, 30 s of starting up."""
    stopped: list[float] = []

    def plan(snapshot: plans.Snapshot, now: float, memo: Any) -> plans.Plan:
        due = [one for one in snapshot.running if not stopped and now >= simulation.ORIGIN_S + 300.0]
        if due:
            stopped.append(now)
            return plans.Plan(preemptions=(plans.Preemption(job=due[0].job, reason="to see"),))
        return published.first_come(snapshot, now, memo)

    _, found = run(smallcases.job("a", 0.0, 1000.0, batch=BATCH), plan, "1x1", restart_s=30.0)
    (story,) = found.stories
    assert stopped == [simulation.ORIGIN_S + 300.0]
    assert (story.starts, story.waited_s, story.lost_device_s) == (2, 0.0, 0.0)
    assert story.ended == pytest.approx(1000.0 + 2 * 30.0)
    assert [span.useful for span in found.spans] == [(30.0, 300.0), (330.0, 1060.0)]


def test_a_lost_end_is_not_waited_for_longer_than_was_said() -> None:
    _, found = run(smallcases.job("a", 0.0, 1e6), published.first_come, "1x1", until_s=1000.0)
    assert found.over <= 1000.0
    assert found.stories[0].ended is None
    assert found.spans[0].end == found.over


def test_work_until_the_simulation_is_given_up_counts() -> None:
    found = smallcases.run(
        [smallcases.job("a", 0.0, 1000.0, gpus=2), smallcases.job("b", 1.0, 1000.0)], "1x2", until_s=250.0
    )
    assert found.over == 250.0
    assert [(span.job, span.start, span.end, span.useful) for span in found.spans] == [("a", 0.0, 250.0, (0.0, 250.0))]
    assert [(one.job, one.advanced_device_s, one.waited_s) for one in found.stories] == [
        ("a", 500.0, 0.0),
        ("b", 0.0, 249.0),
    ]


def test_in_lockstep_all_jobs_wait_for_the_next_round() -> None:
    """Rounds are at whole minutes: an arrival at 10 s starts at 60 s; its device, free at 160 s, is taken at 180 s."""
    arrivals = [
        smallcases.job("a", 10.0, 100.0),
        smallcases.job("b", 20.0, 50.0),
        smallcases.job("c", 400.0, 50.0),
    ]
    found = smallcases.run(arrivals, "1x1", lockstep=True)
    assert [(story.first_start, story.ended) for story in found.stories] == [
        (60.0, 160.0),
        (180.0, 230.0),
        (420.0, 470.0),
    ]


def test_gangs_that_share_a_node_slow_each_other_down_where_both_lie_on_several() -> None:
    """Two share a node from 100 s on; the third lies on one node alone and is left in peace."""
    places = {"a": [("n1", 0), ("n1", 1), ("n1", 2), ("n2", 0)], "b": [("n2", 1), ("n3", 0)], "c": [("n3", 1)]}

    def plan(snapshot: plans.Snapshot, now: float, memo: Any) -> plans.Plan:
        launches = tuple(
            plans.Launch(
                job=gang.job,
                holdings=tuple(
                    holdings.Holding(
                        job=gang.job,
                        attempt=0,
                        role="worker",
                        index=index,
                        node=node,
                        amount=gang.asks[0].amount,
                        devices=(device,),
                    )
                    for index, (node, device) in enumerate(places[gang.job])
                ),
            )
            for gang in snapshot.waiting
        )
        return plans.Plan(launches=launches)

    arrivals = [
        smallcases.job("a", 0.0, 1000.0, gpus=4),
        smallcases.job("b", 100.0, 200.0, gpus=2),
        smallcases.job("c", 100.0, 500.0),
    ]
    found = smallcases.run(arrivals, "3x4", plan=plan, interference=0.2)
    ends = {story.job: story.ended for story in found.stories}
    assert ends["b"] == pytest.approx(100 + 200 / 0.8)
    assert ends["a"] == pytest.approx(1000 + 250 * 0.2)
    assert ends["c"] == pytest.approx(600.0)


def test_shares_of_devices_and_tasks_without_devices_are_counted_by_their_holdings() -> None:
    half = {roles.RoleName.WORKER: jobfile.Role(count=1, gpus=0.5, cpus=1)}
    none = {roles.RoleName.WORKER: jobfile.Role(count=3, cpus=2)}
    served = {
        roles.RoleName.WORKER: jobfile.Role(count=2, gpus=1, cpus=1),
        roles.RoleName.PS: jobfile.Role(count=1, cpus=1),
    }
    arrivals = [
        smallcases.job("half", 0.0, 100.0, roles=half),
        smallcases.job("none", 1000.0, 100.0, gpus=3, roles=none),
        smallcases.job("served", 2000.0, 100.0, gpus=2, roles=served),
    ]
    found = smallcases.run(arrivals, "2x1", plan=planning.plan, memo=memos.Memo())
    told = {story.job: (story.held_device_s, story.advanced_device_s) for story in found.stories}
    assert told == {
        "half": (pytest.approx(50.0), pytest.approx(50.0)),
        "none": (0.0, 0.0),
        "served": (pytest.approx(200.0), pytest.approx(200.0)),
    }
