"""Ends that are the same once more, where no scenario comes: restarts in place, and ends without a guilty task."""

from __future__ import annotations

import msgspec
import pytest
from tests.lifecycle import script

from oarlock.lifecycle import settling
from oarlock.lifecycle.failures import retries
from oarlock.spec import attempts, intents, jobs, phases, roles

Cause = attempts.Cause


def failed(how: attempts.Exit | None, last: attempts.End | None = None) -> attempts.Task:
    return attempts.Task(
        role=roles.RoleName.WORKER, index=0, phase=phases.TaskPhase.FAILED, exit=how, last_end=last, phase_at=9.0
    )


def job(reached_step: int | None = None) -> jobs.Job:
    return msgspec.structs.replace(script.new_job(), reached_step=reached_step)


@pytest.mark.parametrize(
    ("number", "hopeless"), [(11, True), (9, False)], ids=["a crash of its own", "killed by a person"]
)
def test_the_same_signal_twice_in_place(number: int, hopeless: bool) -> None:
    how = attempts.Exit(code=128 + number, cause=Cause.SIGNAL, signal=number, at=9.0)
    last = retries.end_of("worker", how.cause, how, None)
    assert retries.hopeless_in_place(job(), failed(how, last)) is hopeless


@pytest.mark.parametrize(("reached", "hopeless"), [(5, True), (6, False)])
def test_the_same_error_twice_in_place_is_hopeless_without_progress_between(reached: int, hopeless: bool) -> None:
    how = attempts.Exit(code=1, cause=Cause.ERROR, at=9.0)
    last = retries.end_of("worker", how.cause, how, 5)
    assert retries.hopeless_in_place(job(reached), failed(how, last)) is hopeless


def test_the_first_step_of_all_is_progress() -> None:
    how = attempts.Exit(code=1, cause=Cause.ERROR, at=9.0)
    before = retries.end_of("worker", how.cause, how, None)
    assert not retries.hopeless_in_place(job(1), failed(how, before))


def test_a_task_without_an_end_is_not_hopeless() -> None:
    assert not retries.hopeless_in_place(job(), failed(None))


def test_a_gang_that_twice_did_not_come_to_the_barrier_does_not_try_a_third_time() -> None:
    play = script.Play()
    play.run("job {start_timeout: 60s, max_restarts: 5}")
    for _ in range(2):
        for line in ("admit", "do", "after 60", "do", "exit worker-0 stopped", "gone worker-0", "do"):
            play.run(line)
    assert play.job.phase is phases.Phase.FAILED
    assert play.job.attempts[-1].no_restart == retries.TWICE


@pytest.mark.parametrize(
    ("freeze", "intent", "until"),
    [
        ("30m", "run", 1810.0),
        ("30m", "preempt", 1810.0),
        ("30m", "halt", None),
        ("30m", "cancel", None),
        ("", "run", None),
    ],
)
def test_how_long_a_failure_is_kept_for_a_look_inside(freeze: str, intent: str, until: float | None) -> None:
    spec = script.new_job(f"{{freeze: {freeze}}}" if freeze else "{}")
    assert settling.frozen_until(msgspec.structs.replace(spec, intent=intents.Intent(intent)), 10.0) == until
