"""The barrier of an attempt that goes on: a task that is to join passes it once it stands there."""

from __future__ import annotations

import msgspec
import pytest
from tests.lifecycle import script

from oarlock.lifecycle import joining
from oarlock.spec import attempts, phases


def attempt(part: attempts.Part, phase: phases.TaskPhase) -> attempts.Attempt:
    """Two workers: one trains, the other is in this phase and has passed no barrier."""
    play = script.Play()
    for line in ("job {roles: {worker: {count: 2}}}", "admit", "launched", "register worker-0 worker-1"):
        play.run(line)
    trains, other = play.live.tasks
    return msgspec.structs.replace(
        play.live, tasks=(trains, msgspec.structs.replace(other, part=part, phase=phase, round=0))
    )


@pytest.mark.parametrize("phase", phases.TaskPhase)
def test_a_task_that_is_to_join_passes_the_barrier_when_it_stands_there(phase: phases.TaskPhase) -> None:
    live = attempt(attempts.Part.JOINING, phase)
    admitted = joining.admit(live)
    if phase is phases.TaskPhase.REGISTERED:
        assert [task.round for task in admitted.tasks] == [live.round, live.round]
    else:
        assert admitted is live


@pytest.mark.parametrize("part", [part for part in attempts.Part if part is not attempts.Part.JOINING])
def test_no_other_task_passes_it_alone(part: attempts.Part) -> None:
    live = attempt(part, phases.TaskPhase.REGISTERED)
    assert joining.admit(live) is live


def test_nothing_joins_an_attempt_that_stops() -> None:
    live = msgspec.structs.replace(
        attempt(attempts.Part.JOINING, phases.TaskPhase.REGISTERED), stop=attempts.Cause.STOPPED
    )
    assert joining.admit(live) is live
