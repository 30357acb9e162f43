"""The gang of a job, and its possible ends while it runs."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.lifecycle import script
from tests.scheduler import reported

from oarlock.scheduler import gangs
from oarlock.spec import attempts, curves, holdings, intents, jobs

TWO = "{roles: {worker: {count: 2, gpus: 1}}}"
LIMITED = "{timeout: 100s, start_timeout: 20s, grace: 5s, roles: {worker: {count: 2, gpus: 1}}}"
HALT, CANCEL, PREEMPT = intents.Intent.HALT, intents.Intent.CANCEL, intents.Intent.PREEMPT
GIB = 1 << 30


def live(job: jobs.Job, **change: Any) -> jobs.Job:
    """Return the job with another live attempt."""
    return msgspec.structs.replace(job, attempts=(msgspec.structs.replace(job.live, **change),))


def firsts(job: jobs.Job, *steps: float | None) -> jobs.Job:
    """Return the job whose tasks reported their first steps at these times."""
    told = job.live.tasks[0].progress
    found = [None if at is None else msgspec.structs.replace(told, at=at) for at in steps]
    tasks = tuple(
        msgspec.structs.replace(task, first_progress=first) for task, first in zip(job.live.tasks, found, strict=True)
    )
    return live(job, tasks=tasks)


@pytest.mark.parametrize(
    ("role", "wanted"),
    [
        ("{count: 2}", {"count": 2, "min": 2, "max": 2, "ports": 4, "nproc": 1}),
        ("{count: 2, min: 1, max: 4}", {"count": 2, "min": 1, "max": 4}),
        ("{nproc: 4}", {"ports": 7, "nproc": 4}),
        ("{gpus: 2, cpus: 0.5, memory: 1Gi}", {"amount": holdings.Resources(500, GIB, 2)}),
        ("{gpus: 0.25, cpus: 1}", {"amount": holdings.Resources(1000, 0, 0, 250)}),
        ("{gpus: 1, gpu_type: h100}", {"gpu_types": ("h100",)}),
        ("{gpus: 1, gpu_type: [h100, a100]}", {"gpu_types": ("h100", "a100")}),
        ("{gpus: 1, gpu_memory: 40Gi}", {"gpu_memory_bytes": 40 * GIB}),
    ],
)
def test_the_request_of_a_role(role: str, wanted: dict[str, object]) -> None:
    (ask,) = gangs.asks(script.new_job(f"{{roles: {{worker: {role}}}}}").spec)
    assert {name: getattr(ask, name) for name in wanted} == wanted


def test_the_deciding_tasks_are_placed_first() -> None:
    spec = script.new_job("{framework: tensorflow, roles: {evaluator: {}, ps: {}, worker: {}, chief: {}}}").spec
    assert [ask.role for ask in gangs.asks(spec)] == ["chief", "worker", "ps", "evaluator"]
    spec = script.new_job("{framework: mpi, roles: {worker: {}, launcher: {}}}").spec
    assert [ask.role for ask in gangs.asks(spec)] == ["launcher", "worker"]


@pytest.mark.parametrize(
    ("servers", "beside"), [("", None), ("ps_placement: beside, ", True), ("ps_placement: apart, ", False)]
)
def test_the_place_of_parameter_servers(servers: str, beside: bool | None) -> None:
    job = script.new_job(f"{{framework: tensorflow, {servers}roles: {{worker: {{}}, ps: {{}}}}}}")
    assert gangs.gang(job).beside is beside


@pytest.mark.parametrize(
    ("intent", "stop", "returns"),
    [
        (PREEMPT, None, True),
        (PREEMPT, attempts.Cause.STOPPED, True),
        (PREEMPT, attempts.Cause.PLATFORM, True),
        (HALT, attempts.Cause.STOPPED, False),
        (CANCEL, attempts.Cause.PLATFORM, False),
        (intents.Intent.RUN, attempts.Cause.SUCCEEDED, False),
        (intents.Intent.RUN, attempts.Cause.TIMEOUT, False),
        (intents.Intent.RUN, attempts.Cause.ERROR, True),
        (intents.Intent.RUN, None, False),  # it is not stopping
    ],
)
def test_a_stopping_gang_waits_again_unless_its_end_is_final(
    intent: intents.Intent, stop: attempts.Cause | None, returns: bool
) -> None:
    job = msgspec.structs.replace(live(reported.job(TWO, ranks=2, local=8), stop=stop), intent=intent)
    found = gangs.running(job, ())
    assert found.returns is returns
    assert found.stopping is (stop is not None or intent is not intents.Intent.RUN)


@pytest.mark.parametrize(("restarts", "no_restart", "returns"), [(0, False, True), (1, False, False), (0, True, False)])
def test_a_failed_gang_waits_again_while_it_has_restarts(restarts: int, no_restart: bool, returns: bool) -> None:
    job = reported.job("{max_restarts: 1, roles: {worker: {count: 2}}}", ranks=2, local=8, restarts=restarts)
    failed = live(job, stop=attempts.Cause.ERROR, no_restart=no_restart)
    assert gangs.running(failed, ()).returns is returns


def test_a_gang_starts_until_it_trains() -> None:
    """A job that reported steps once has begun only when it reports the next one; else when its processes begin."""
    job = reported.job(TWO, ranks=2, local=8)
    curve = curves.Curve(model=curves.Table(rates=(1.0,)))
    rows = [
        (live(job, processing_at=None), True, None),
        (job, False, 1.0),
        (msgspec.structs.replace(job, curve=curve), True, 1.0),
        (msgspec.structs.replace(firsts(job, 9.0, 8.0), curve=curve), False, 8.0),
        (msgspec.structs.replace(job, attempts=()), False, None),
    ]
    for one, starting, began_at in rows:
        found = gangs.running(one, ())
        assert (found.starting, found.began_at) == (starting, began_at)


def test_the_cost_of_a_restart_is_the_time_of_the_last_start() -> None:
    job = reported.job(TWO, ranks=2, local=32)
    assert gangs.gang(job).restart_s is None, "none of its processes has told of a step"
    assert gangs.gang(firsts(job, 50.0, 42.0)).restart_s == 42.0
    assert gangs.gang(live(firsts(job, 50.0, 42.0), started_at=45.0)).restart_s == 0.0


def test_starts_without_a_step_are_counted_since_the_last_start_with_one() -> None:
    job = reported.job(TWO, ranks=2, local=8)
    good, bad = firsts(job, 5.0, None).live, job.live
    past = [msgspec.structs.replace(one, ended_at=9.0) for one in (bad, good, bad, bad)]
    assert gangs.gang(msgspec.structs.replace(job, attempts=tuple(past))).silent_starts == 2
    assert gangs.gang(msgspec.structs.replace(job, attempts=(*past, bad))).silent_starts == 2, "the live one may yet"
    assert gangs.gang(msgspec.structs.replace(job, attempts=tuple(past[:2]))).silent_starts == 0


@pytest.mark.parametrize(("processed_s", "at_most_s"), [(0.0, 135.0), (30.0, 105.0), (200.0, 35.0)])
def test_a_start_is_over_after_its_timeouts_and_the_grace(processed_s: float, at_most_s: float) -> None:
    """20 s to start, what is left of 100 s, 5 s of grace, and 10 s until nothing is there any more."""
    job = msgspec.structs.replace(script.new_job(LIMITED), processed_s=processed_s)
    assert gangs.at_most_s(job) == at_most_s
    assert gangs.at_most_s(script.new_job(TWO)) is None


def test_the_expected_end_is_that_of_the_last_task_and_never_behind_the_timeout() -> None:
    """Both tasks have 100 steps left: 50 s at the pace of the one, 90 s at that of the other."""
    for text, paces, expected, latest in (
        (TWO, (0.5, 0.9), 95.0, None),
        (LIMITED, (0.5, 0.9), 95.0, 116.0),
        (LIMITED, (0.5, 9.0), 101.0, 116.0),
        (TWO, (None, 0.5), 55.0, None),
        (TWO, (None, None), None, None),
        (LIMITED, (None, None), 101.0, 116.0),
    ):
        found = gangs.running(reported.paced(reported.job(text, ranks=2, local=8), *paces), ())
        assert (found.expected_end, found.latest_end) == (expected, latest), (text, paces)
    waits = live(reported.job(LIMITED, ranks=2, local=8), processing_at=None)
    assert (gangs.expected_end(waits), gangs.latest_end(waits)) == (None, None)
