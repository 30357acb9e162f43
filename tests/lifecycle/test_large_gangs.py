"""The cost of one event in a large gang: a thousand agents report every second."""

from __future__ import annotations

import pytest
from tests.lifecycle import script

from oarlock.lifecycle import ends, stepping
from oarlock.spec import attempts, events, phases

SIZE = 200


def test_a_fact_asks_for_the_policy_of_a_role_and_not_of_each_task(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = 0
    policy = ends.of

    def counted(*which: object) -> ends.Ends:
        nonlocal asked
        asked += 1
        return policy(*which)  # type: ignore[arg-type]

    monkeypatch.setattr(ends, "of", counted)
    job = script.new_job(f"{{framework: torch, roles: {{worker: {{count: {SIZE}}}}}}}")
    job = stepping.step(job, events.Admitted(attempt=1, holdings=script.places(job, 1)), 1000.0)
    job = stepping.step(job, events.Launched(attempt=1), 1001.0)
    for index in range(SIZE):
        job = stepping.step(job, registered(index), 1002.0)
    for step in range(2):
        for index in range(SIZE):
            job = stepping.step(job, reported(index, step), 1003.0 + step)
    assert job.phase is phases.Phase.PROCESSING
    assert asked <= 4 * 3 * SIZE, f"{asked} times for {3 * SIZE} facts"


def registered(index: int) -> events.TaskRegistered:
    return events.TaskRegistered(key=attempts.TaskKey("j", 1, "worker", index, 1), address="127.0.0.1")


def reported(index: int, step: int) -> events.TaskReported:
    progress = attempts.Progress(step=step, at=1003.0 + step)
    return events.TaskReported(key=attempts.TaskKey("j", 1, "worker", index, 1), phase="PROCESSING", progress=progress)
