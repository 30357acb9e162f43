"""Observations of the backend that become events."""

from __future__ import annotations

import pytest
from tests.lifecycle import script

from oarlock.lifecycle import noticing, stepping
from oarlock.lifecycle.failures import blame
from oarlock.spec import attempts, events
from oarlock.spec.reconciling import observations

OF = {"key": attempts.TaskKey(script.new_job().id, 1, "worker", 1, 1)}
FAILED = attempts.Exit(code=3, cause=attempts.Cause.ERROR, at=script.START)


def deploying() -> script.Play:
    """Two tasks, both made and shown by the backend; none has registered."""
    play = script.Play()
    for line in ("job {roles: {worker: {count: 2}}}", "admit", "launched"):
        play.run(line)
    return play


def noticed(play: script.Play) -> list[events.AnyEvent]:
    return noticing.notices(play.job, list(play.shown.values()))


def test_a_known_fact_is_not_told_again() -> None:
    assert noticed(deploying()) == []


def test_an_end_that_only_the_backend_has_seen() -> None:
    play = deploying()
    play.run("see worker-1 ENDED code=3")
    assert noticed(play) == [events.TaskExited(**OF, exit=FAILED)]
    play.run("exit worker-1 code=3")
    assert noticed(play) == []


def test_a_task_that_is_gone_with_its_end() -> None:
    play = deploying()
    play.run("see worker-1 GONE code=3")
    assert noticed(play) == [events.TaskExited(**OF, exit=FAILED), events.TaskGone(**OF)]
    play.run("notice")
    assert noticed(play) == []


def test_a_task_that_was_made_and_is_not_listed_is_gone() -> None:
    play = deploying()
    play.run("lose worker-1")
    assert noticed(play) == [events.TaskGone(**OF)]


def test_a_task_that_was_not_made_is_not_missed() -> None:
    play = script.Play()
    for line in ("job {roles: {worker: {count: 2}}}", "admit"):
        play.run(line)
    assert noticed(play) == []


PHASES = {
    "deployed": [],
    "at the barrier": ["register worker-0 worker-1"],
    "running": ["register worker-0 worker-1", "report worker-1 PROCESSING"],
    "ended, and its agent said so": [
        "register worker-0 worker-1",
        "report worker-1 PROCESSING",
        "exit worker-1 code=3",
    ],
}


@pytest.mark.parametrize("lines", PHASES.values(), ids=list(PHASES))
def test_an_obstacle_is_recorded_in_each_phase_with_its_time_and_goes_when_it_has_passed(lines: list[str]) -> None:
    """Changing words do not give the task more time to come to the barrier."""
    play = deploying()
    for line in lines:
        play.run(line)
    moved_at = play.live.tasks[1].moved_at
    for obstacle in ("its node is lost", "its node is lost: no news"):
        play.run("after 30")
        play.run(f"see worker-1 RUNNING detail='{obstacle}'")
        assert noticed(play) == [events.TaskHindered(**OF, obstacle=obstacle)]
        play.run("notice")
        task = play.live.tasks[1]
        assert (task.obstacle, task.obstacle_at, task.moved_at) == (obstacle, play.now, moved_at)
        assert noticed(play) == [], "the same words are told once"
    play.run("see worker-1 RUNNING")
    play.run("notice")
    assert (play.live.tasks[1].obstacle, play.live.tasks[1].obstacle_at) == ("", 0.0)


def test_a_task_that_is_gone_has_no_obstacle() -> None:
    play = deploying()
    play.run("see worker-1 RUNNING detail='its pod is being deleted'")
    play.run("notice")
    play.run("see worker-1 GONE code=3 detail='evicted'")
    play.run("notice")
    assert play.live.tasks[1].obstacle == ""
    assert noticed(play) == []


def test_a_job_without_an_attempt_has_nothing_to_notice() -> None:
    play = deploying()
    play.run("lose worker-0 worker-1")
    play.run("job {}")
    assert noticed(play) == []


def test_the_backend_says_why_a_task_was_stopped_from_outside() -> None:
    """Its agent is heard first, and knows only of a SIGTERM."""
    play = deploying()
    for line in ("register worker-0 worker-1", "report worker-1 PROCESSING", "exit worker-1 stopped"):
        play.run(line)
    message = "worker-1 was lost: it was stopped from outside"
    guilty = blame.settle(play.live.tasks, play.job.spec)
    assert guilty is not None
    assert guilty.message == message
    decided = events.StopDecided(attempt=1, cause=guilty.cause, message=message, task=guilty.task)
    play.job = stepping.step(play.job, decided, play.now)
    why = "preempted by another scheduler: for kube-system/dns"
    told = attempts.Exit(code=143, cause=attempts.Cause.PLATFORM, at=script.START, reason=why)
    seen = observations.Observed(key=OF["key"], state=observations.State.GONE, exit=told)
    found = noticing.notices(play.job, [seen, *(one for key, one in play.shown.items() if key != OF["key"])])
    assert found == [events.TaskExited(**OF, exit=told), events.TaskGone(**OF)]
    after = stepping.step(play.job, found[0], play.now)
    assert after.live is not None
    assert after.live.stop_message == f"worker-1 was lost: {why}"
    assert found[0] not in noticing.notices(after, [seen])
    assert stepping.step(after, events.TaskExited(**OF, exit=FAILED), play.now) is after, "nothing else replaces it"
