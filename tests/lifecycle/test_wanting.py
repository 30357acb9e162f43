"""Decisions of `wants` that no scenario tells apart."""

from __future__ import annotations

import msgspec
import pytest
from tests.lifecycle import script

from oarlock.lifecycle import stepping
from oarlock.spec import attempts, errors, events
from oarlock.spec.reconciling import actions


def test_a_stale_task_is_killed_under_its_own_incarnation() -> None:
    play = script.Play()
    for line in ("job {}", "admit", "launched", "see 1/worker-0/1 GONE", "notice", "after 2", "do"):
        play.run(line)
    play.run("see 1/worker-0/2 RUNNING")
    (kill,) = play.wants()
    assert isinstance(kill, actions.Kill)
    assert [task.key("j", kill.attempt) for task in kill.tasks] == [attempts.TaskKey("j", 1, "worker", 0, 2)]


def test_the_task_that_has_not_come_is_named_and_not_those_that_wait_for_it() -> None:
    play = script.Play()
    for line in ("job {start_timeout: 10m, roles: {worker: {count: 3}}}", "admit", "do", "register worker-0 worker-2"):
        play.run(line)
    play.run("after 10m")
    said = "worker-1 was still DEPLOYING when the start-up time of 10m 00s was over"
    assert play.run("wants") == [f"note stop_decided: start_timeout, {said}"]


def test_claims_that_are_no_gang_are_a_defect() -> None:
    job = script.new_job("{roles: {worker: {count: 2}}}")
    with pytest.raises(errors.Conflict) as refused:
        stepping.step(job, events.Admitted(attempt=1, holdings=script.places(job, 1, {"worker": 1})), script.START)
    assert refused.value.message == "that is no gang of j: worker has the tasks [0], and is to have 2 to 2"
    assert refused.value.hint == "This is a defect: report it."
    stranger = msgspec.structs.replace(script.places(job, 1)[0], role="ps")
    with pytest.raises(errors.Conflict, match="that is no gang of j: it has no role ps"):
        stepping.step(job, events.Admitted(attempt=1, holdings=(*script.places(job, 1), stranger)), script.START)


def test_only_those_of_the_communicator_that_still_run_are_asked_whether_they_can_rejoin() -> None:
    """An evaluator and a worker that has ended say nothing; a worker that runs must have said so."""
    play = script.Play()
    play.run("job {framework: torch, roles: {worker: {count: 3, on_failure: restart}, evaluator: {}}}")
    for line in ("admit", "do", "register worker-0 worker-1 worker-2 evaluator-0", "report worker-0 PROCESSING step=1"):
        play.run(line)
    for line in ("report worker-1 PROCESSING step=1", "report worker-2 PROCESSING step=1", "exit worker-2 code=0"):
        play.run(line)
    before = play.job
    for line in ("exit worker-1 code=1", "gone worker-1"):
        play.run(line)
    assert play.live.tasks[1].incarnation == 1, "worker-0 cannot rejoin"
    play.job = before
    for line in ("report worker-0 rejoin", "exit worker-1 code=1", "gone worker-1"):
        play.run(line)
    assert play.live.tasks[1].incarnation == 2


def test_under_parameter_servers_a_task_is_replaced_alone() -> None:
    """A server where the job file names the strategy; else, and a worker, where the others have said that they go on
    without it. The servers of other frameworks are not ours: the gang restarts.
    """
    for told, replaced, ours in (
        ("strategy: {kind: ps}", {"ps-0"}, True),
        ("framework: torch", set(), True),
        ("framework: tensorflow", set(), False),
    ):
        play = script.Play()
        play.run(f"job {{{told}, roles: {{worker: {{count: 2}}, ps: {{}}}}}}")
        tasks = "worker-0 worker-1 ps-0"
        for line in (
            "admit",
            "do",
            f"register {tasks}",
            *(f"report {task} PROCESSING step=1" for task in tasks.split()),
        ):
            play.run(line)
        before = play.job
        for task in ("ps-0", "worker-1"):
            for rejoin in (False, True):
                play.job = before
                for line in (*(["report worker-0 rejoin"] * rejoin), f"exit {task} signal=9", f"gone {task}"):
                    play.run(line)
                found = next(one for one in play.live.tasks if one.name == task)
                expected = task in replaced or (ours and rejoin)
                assert (found.incarnation == 2) == expected, (told, task, rejoin)


def test_where_no_task_is_to_blame_none_is_named() -> None:
    play = script.Play()
    for line in ("job {}", "admit", "launched", "register worker-0", "report worker-0 PROCESSING", "after 10"):
        play.run(line)
    live = msgspec.structs.replace(play.live, failing_since=play.now - 10)
    play.job = msgspec.structs.replace(play.job, attempts=(live,))
    (stop,) = [one.event for one in play.wants() if isinstance(one, actions.Note)]
    assert isinstance(stop, events.StopDecided)
    assert (stop.cause, stop.task) == ("error", "")
