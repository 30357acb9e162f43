"""Events that must change nothing, and what a wish leaves in the record."""

from __future__ import annotations

import msgspec
import pytest
from tests.lifecycle import script

from oarlock.lifecycle import deadlines, ends, shifting, stepping
from oarlock.spec import attempts, curves, events, holdings, intents, jobs, phases, refusals
from oarlock.spec.cluster import provisioning

FACTS: list[tuple[type[events.TaskEvent], dict[str, object]]] = [
    (events.TaskRegistered, {"address": "10.0.0.2"}),
    (events.TaskReported, {"phase": "PROCESSING", "detail": "news"}),
    (events.TaskHindered, {"obstacle": "its node is lost"}),
    (events.TaskExited, {"exit": attempts.Exit(code=1, cause=attempts.Cause.ERROR, at=script.START)}),
    (events.TaskGone, {}),
    (events.StacksTaken, {"request": 0, "stacks": {"0": "File train.py"}}),
    (events.TaskKept, {"kept": attempts.Kept(files=2, bytes=100)}),
    (events.LogsMissing, {"missing": 70}),
    (events.CheckpointRestored, {"step": 20}),
]


def launched(*lines: str) -> script.Play:
    play = script.Play()
    for line in ("job {grace: 5s, roles: {worker: {count: 2, gpus: 1}}}", "admit", "launched", *lines):
        play.run(line)
    return play


@pytest.mark.parametrize(("fact", "fields"), FACTS, ids=[fact.__name__ for fact, _ in FACTS])
@pytest.mark.parametrize(
    "other", [{"attempt": 2}, {"incarnation": 2}, {"incarnation": 0}, {"index": 2}, {"role": "ps"}], ids=str
)
def test_facts_of_another_task_are_not_believed(
    fact: type[events.TaskEvent], fields: dict[str, object], other: dict[str, object]
) -> None:
    play = launched()
    key = msgspec.structs.replace(attempts.TaskKey(play.job.id, 1, "worker", 1, 1), **other)
    strange = fact(key=key, **fields)  # type: ignore[arg-type]
    assert stepping.step(play.job, strange, play.now) is play.job


OF_ATTEMPT: list[tuple[type[events.Event], dict[str, object]]] = [
    (events.BatchDecided, {"batch": curves.Batch(8, 2)}),
    (events.Launched, {}),
    (events.LaunchFailed, {"reason": "no image"}),
    (events.StopDecided, {"cause": attempts.Cause.ERROR, "message": "it failed"}),
    (events.StacksAsked, {"task": "worker-0", "message": "it hangs"}),
    (events.Released, {}),
    (events.CheckpointVisible, {"checkpoint_step": 5, "path": "step-5"}),
]


@pytest.mark.parametrize(("fact", "fields"), OF_ATTEMPT, ids=[fact.__name__ for fact, _ in OF_ATTEMPT])
def test_facts_of_another_attempt_are_not_believed(fact: type[events.Event], fields: dict[str, object]) -> None:
    play = launched()
    assert stepping.step(play.job, fact(attempt=2, **fields), play.now) is play.job  # type: ignore[call-arg]
    waiting = script.new_job()
    assert stepping.step(waiting, fact(attempt=1, **fields), play.now) is waiting  # type: ignore[call-arg]


@pytest.mark.parametrize("number", [0, 1, 3])
def test_an_admission_is_of_the_next_attempt(number: int) -> None:
    """Its holdings are kept under that number: under another one they would never be released."""
    play = launched("intend preempt", "gone worker-0 worker-1", "do")
    assert play.job.live is None
    claims = script.places(play.job, number)
    assert stepping.step(play.job, events.Admitted(attempt=number, holdings=claims), play.now) is play.job
    assert stepping.step(play.job, events.Admitted(attempt=2, holdings=claims), play.now).live is not None


def test_an_attempt_that_saved_nothing_hands_the_checkpoint_on() -> None:
    play = launched("register worker-0 worker-1", "checkpoint 20")
    for _ in range(2):
        for line in ("intend preempt", "gone worker-0 worker-1", "do", "admit"):
            play.run(line)
        assert play.live.checkpoint_step is None
        assert play.live.offered_step == 20


def test_stacks_are_believed_for_the_present_request_and_once() -> None:
    play = script.Play()
    play.run("job {hang_timeout: 10s, roles: {worker: {count: 2}}}")
    for line in ("admit", "launched", "register worker-0 worker-1", "report worker-0 PROCESSING idle=20", "do"):
        play.run(line)
    of = {"key": attempts.TaskKey(play.job.id, 1, "worker", 0, 1), "stacks": {"0": "File train.py"}}
    for request in (0, 2):
        assert stepping.step(play.job, events.StacksTaken(**of, request=request), play.now) is play.job
    told = stepping.step(play.job, events.StacksTaken(**of, request=1), play.now)
    assert told.live is not None
    assert [one.task for one in told.live.stacks] == ["worker-0"]
    assert stepping.step(told, events.StacksTaken(**of, request=1), play.now) is told


def test_facts_about_a_task_are_in_its_record_alone() -> None:
    play = launched("register worker-0 worker-1", "report worker-1 PROCESSING")
    of = {"key": attempts.TaskKey(play.job.id, 1, "worker", 1, 1)}
    kept = attempts.Kept(files=2, bytes=100)
    told = stepping.step(play.job, events.TaskKept(**of, kept=kept), play.now)
    told = stepping.step(told, events.LogsMissing(**of, missing=70), play.now)
    told = stepping.step(told, events.CheckpointRestored(**of, step=20), play.now)
    assert told.live is not None
    assert told.live.restore_step == 20
    beside, task = told.live.tasks
    assert beside == play.live.tasks[0]
    assert task == msgspec.structs.replace(play.live.tasks[1], kept=kept, log_gap=70)
    assert stepping.step(told, events.LogsMissing(**of, missing=70), play.now) is told
    assert stepping.step(told, events.LogsMissing(**of, missing=0), play.now).live.tasks[1].log_gap == 0  # type: ignore[union-attr]


def test_a_refusal_is_of_a_job_that_waits() -> None:
    refusal = refusals.Refusal(code=refusals.Code.NO_CAPACITY, message="2 GPUs are needed, 1 is free")
    waiting = script.new_job()
    told = stepping.step(waiting, events.Refused(refusal=refusal), script.START)
    assert (told.refusal, told.reason) == (refusal, "2 GPUs are needed, 1 is free")
    running = launched().job
    assert stepping.step(running, events.Refused(refusal=refusal), script.START) is running


def test_a_measured_curve_is_kept() -> None:
    curve = curves.Curve(model=curves.Table(rates=(1.0, 1.9)))
    told = stepping.step(script.new_job(), events.Measured(curve=curve), script.START)
    assert told.curve == curve


def test_a_report_that_comes_after_the_exit_still_counts() -> None:
    play = launched("register worker-0 worker-1", "report worker-0 PROCESSING", "exit worker-0 code=1")
    assert play.run("report worker-0 detail=late") == ["same"]
    play.run("report worker-0 step=5")
    first = play.live.tasks[0].progress
    play.run("after 10")
    play.run("report worker-0 step=8")
    task = play.live.tasks[0]
    assert (task.first_progress, task.progress) == (first, attempts.Progress(step=8, at=play.now))
    assert play.job.reached_step == 8
    assert play.run("report worker-0 step=7") == ["same"]
    play.run("report worker-1 PROCESSING step=20")
    play.run("report worker-0 step=9")
    assert play.job.reached_step == 20, "another task was farther"


def test_a_halt_ends_a_freeze_at_once_and_leaves_one_that_is_over() -> None:
    play = script.Play()
    for line in ("job {freeze: 30m, max_restarts: 0}", "admit", "launched", "register worker-0"):
        play.run(line)
    for line in ("report worker-0 PROCESSING", "exit worker-0 code=1", "after 2", "do"):
        play.run(line)
    until = play.live.frozen_until
    assert until == play.now + 1800
    play.run("after 60")
    halted = stepping.step(play.job, events.Intended(intent=intents.Intent.HALT), play.now)
    assert halted.live is not None
    assert halted.live.frozen_until == play.now
    late = stepping.step(play.job, events.Intended(intent=intents.Intent.HALT), until + 60)
    assert late.live is not None
    assert late.live.frozen_until == until


def test_the_stacks_of_a_rank_are_in_the_record() -> None:
    play = script.Play()
    play.run("job {hang_timeout: 10s, roles: {worker: {count: 2}}}")
    for line in ("admit", "launched", "register worker-0 worker-1", "report worker-0 PROCESSING idle=20", "do"):
        play.run(line)
    play.run("stacks worker-0")
    assert play.live.stacks == (attempts.Stacks(task="worker-0", at=play.now, stacks={"0": "File train.py"}),)


def test_nothing_is_released_while_one_of_several_tasks_runs() -> None:
    play = launched("register worker-0 worker-1", "intend cancel", "exit worker-0 stopped signal=15", "gone worker-0")
    released = events.Released(attempt=1)
    assert stepping.step(play.job, released, play.now) is play.job
    for line in ("exit worker-1 stopped signal=15", "gone worker-1"):
        play.run(line)
    assert stepping.step(play.job, released, play.now).terminal


def test_nothing_is_released_that_was_not_stopped() -> None:
    play = launched()
    assert stepping.step(play.job, events.Released(attempt=1), play.now) is play.job


def test_an_older_checkpoint_does_not_replace_a_newer_one() -> None:
    play = launched("register worker-0 worker-1", "checkpoint 20")
    for step in (10, 20):
        late = events.CheckpointVisible(attempt=1, checkpoint_step=step, path=f"step-{step}")
        assert stepping.step(play.job, late, play.now + 1) is play.job
    play.run("checkpoint 21")
    assert play.live.checkpoint_step == 21


def test_a_resize_carries_where_the_gang_goes_and_a_stronger_wish_drops_it() -> None:
    to = (
        holdings.Holding(
            job="j", attempt=2, role="worker", index=0, node="n9", amount=holdings.Resources(gpus=1), devices=(3,)
        ),
    )
    play = launched("register worker-0 worker-1", "report worker-0 PROCESSING")
    wished = stepping.step(
        play.job, events.Intended(intent=intents.Intent.RESIZE, reason="moved to n9", to=to), play.now
    )
    assert wished.destined == to
    assert wished.reason == "moved to n9"
    halted = stepping.step(wished, events.Intended(intent=intents.Intent.HALT, by="ada"), play.now)
    assert halted.destined == ()
    assert halted.reason == "halted by ada"


def test_a_wish_other_than_a_resize_goes_nowhere() -> None:
    to = (holdings.Holding(job="j", attempt=2, role="worker", index=0, node="n9", amount=holdings.Resources()),)
    play = launched()
    wished = stepping.step(play.job, events.Intended(intent=intents.Intent.PREEMPT, to=to), play.now)
    assert wished.destined == ()


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"intent": intents.Intent.CANCEL}, "canceled"),
        ({"intent": intents.Intent.HALT, "by": "ada"}, "halted by ada"),
        (
            {"intent": intents.Intent.PREEMPT, "by": "urgent", "reason": "it gives way"},
            "preempted by urgent: it gives way",
        ),
        ({"intent": intents.Intent.RESIZE}, "resized"),
        ({"intent": intents.Intent.RESIZE, "by": "ada", "reason": "from 4 to 8"}, "from 4 to 8"),
    ],
)
def test_the_reason_of_a_wish(fields: dict[str, object], reason: str) -> None:
    play = launched()
    wished = stepping.step(play.job, events.Intended(**fields), play.now)  # type: ignore[arg-type]
    assert wished.reason == reason


def test_an_exit_tells_of_steps_that_no_report_told() -> None:
    play = launched("register worker-0 worker-1", "report worker-0 PROCESSING step=5", "report worker-1 PROCESSING")
    first = play.live.tasks[0].progress
    for line in ("after 10", "exit worker-0 code=1 at_step=9", "exit worker-1 code=1 at_step=7"):
        play.run(line)
    reported, silent = play.live.tasks
    assert (reported.first_progress, reported.progress) == (first, attempts.Progress(step=9, at=play.now))
    assert silent.first_progress == silent.progress == attempts.Progress(step=7, at=play.now)


def test_an_exit_at_the_step_of_the_last_report_leaves_the_report() -> None:
    play = launched("register worker-0 worker-1", "report worker-0 PROCESSING step=5 loss=0.5")
    last = play.live.tasks[0].progress
    for line in ("after 10", "exit worker-0 code=1 at_step=5"):
        play.run(line)
    assert play.live.tasks[0].progress == last


def test_a_checkpoint_behind_the_farthest_step_is_dated_and_moves_nothing_else() -> None:
    play = launched("register worker-0 worker-1", "report worker-0 PROCESSING step=20", "after 5", "checkpoint 10")
    assert play.job.reached_step == 20
    assert (play.live.checkpoint_step, play.live.checkpoint_at) == (10, play.now)


def test_a_failed_launch_blames_no_task() -> None:
    play = launched("launch_failed no such image")
    assert (play.live.stop, play.live.stop_task) == (attempts.Cause.PLATFORM, "")
    assert play.live.stop_message == "the launch failed: no such image"


def _first_worker(job: jobs.Job) -> attempts.TaskKey:
    return attempts.TaskKey(job.id, 1, "worker", 0, 1)


@pytest.mark.parametrize(("told", "kept"), [((), (20000, 20003)), ((31000, 31003), (31000, 31003))])
def test_the_ports_that_an_agent_found_replace_those_that_are_held(
    told: tuple[int, ...], kept: tuple[int, ...]
) -> None:
    play = script.Play()
    play.run("job {}")
    (claim,) = script.places(play.job, 1)
    held = msgspec.structs.replace(claim, ports=(20000, 20003))
    job = stepping.step(play.job, events.Admitted(attempt=1, holdings=(held,)), play.now)
    job = stepping.step(job, events.TaskRegistered(key=_first_worker(job), address="10.0.0.2", ports=told), play.now)
    assert job.live is not None
    assert (job.live.tasks[0].address, job.live.tasks[0].ports) == ("10.0.0.2", kept)


def test_a_report_that_was_overtaken_takes_no_progress_back() -> None:
    play = launched("register worker-0 worker-1", "report worker-0 PROCESSING step=9")
    old = attempts.Progress(step=3, at=play.now - 5.0)
    told = stepping.step(play.job, events.TaskReported(key=_first_worker(play.job), progress=old), play.now)
    assert told.live is not None
    assert told.live.tasks[0].progress == play.live.tasks[0].progress


def test_a_detail_is_of_the_phase_in_which_it_was_told() -> None:
    play = launched("report worker-0 DOWNLOADING detail=3/7", "report worker-0")
    assert play.live.tasks[0].detail == "3/7"
    play.run("register worker-0 worker-1")
    play.run("report worker-0 PROCESSING")
    play.run("report worker-0 detail=warming")
    play.run("report worker-0 STORING")
    assert play.live.tasks[0].detail == ""


def test_a_stop_without_a_decision_here_is_the_platforms_doing() -> None:
    """A drained node, say: the attempt fails, and no restart of the job's is spent."""
    play = launched("register worker-0 worker-1", "report worker-0 PROCESSING", "exit worker-0 stopped")
    how = play.live.tasks[0].exit
    assert how is not None
    assert (how.cause, how.reason, play.live.tasks[0].phase) == ("platform", "stopped", "FAILED")


def test_roles_whose_failure_is_no_loss_do_not_decide_a_success() -> None:
    """One of two workers that may fail has to end well; where both fail, every task has ended for nothing."""
    for last, outcome in (("exit worker-1 code=0", "COMPLETED"), ("exit worker-1 code=1", "FAILED worker-0 exited")):
        play = script.Play()
        play.run("job {max_restarts: 0, roles: {worker: {count: 2, on_failure: ignore}}}")
        for line in ("admit", "do", "register worker-0 worker-1", "report worker-0 PROCESSING"):
            play.run(line)
        for line in ("report worker-1 PROCESSING", "exit worker-0 code=1", last, "gone worker-0 worker-1", "do"):
            play.run(line)
        assert outcome in f"{play.job.phase} {play.job.reason}"


def test_an_ended_job_says_when_and_keeps_all_its_attempts() -> None:
    play = launched("intend preempt", "gone worker-0 worker-1", "do", "admit", "launched", "after 3")
    for line in ("intend cancel", "gone worker-0 worker-1", "do"):
        play.run(line)
    assert (play.job.phase, play.job.ended_at) == ("CANCELED", play.now)
    assert [one.number for one in play.job.attempts] == [1, 2]
    assert play.job.processed_s == 0.0, "its processes never ran"


def test_a_moment_of_processing_counts_as_a_moment() -> None:
    play = launched("register worker-0 worker-1", "report worker-0 PROCESSING", "after 0.25", "intend preempt")
    for line in ("gone worker-0 worker-1", "do"):
        play.run(line)
    assert play.job.processed_s == pytest.approx(0.25)


def test_a_job_that_is_canceled_while_it_waits_has_the_exit_code_of_a_canceled_one() -> None:
    waiting = script.new_job()
    ended = stepping.step(waiting, events.Intended(intent=intents.Intent.CANCEL, by="ann"), script.START + 1)
    assert (ended.phase, ended.exit_code, ended.ended_at) == ("CANCELED", 130, script.START + 1)


def test_a_job_began_when_its_first_attempt_did() -> None:
    play = launched("after 3", "register worker-0 worker-1", "report worker-0 PROCESSING")
    assert play.job.started_at == play.live.processing_at == script.START + 3
    for line in ("after 5", "intend preempt", "gone worker-0 worker-1", "do", "admit", "launched"):
        play.run(line)
    for line in ("register worker-0 worker-1", "report worker-0 PROCESSING"):
        play.run(line)
    assert play.live.processing_at == script.START + 8
    assert play.job.started_at == script.START + 3


def test_an_end_that_was_not_seen_is_a_kill_where_a_stop_was_wanted() -> None:
    for stopped, how in (("after 1", (1, "platform")), ("intend preempt", (137, "stopped"))):
        play = launched("register worker-0 worker-1", stopped, "gone worker-0")
        ended = play.live.tasks[0].exit
        assert ended is not None
        assert (ended.code, ended.cause, ended.reason) == (*how, "exit_unknown")


def test_a_good_end_before_the_barrier_is_none() -> None:
    play = launched("register worker-0", "exit worker-0 code=0")
    how = play.live.tasks[0].exit
    assert how is not None
    assert (how.cause, how.reason, play.live.tasks[0].phase) == ("platform", "not_admitted", "FAILED")


def test_the_wait_of_a_task_is_over_when_it_registers() -> None:
    play = launched("report worker-0 DOWNLOADING detail=3/7", "register worker-0")
    assert play.live.tasks[0].detail == ""


def test_a_late_report_without_news_changes_nothing() -> None:
    play = launched("register worker-0 worker-1", "report worker-0 PROCESSING step=5", "exit worker-0 code=1")
    told = play.live.tasks[0].progress
    for progress in (None, told):
        late = events.TaskReported(key=_first_worker(play.job), progress=progress)
        assert stepping.step(play.job, late, play.now + 1) is play.job


def test_the_next_incarnation_has_the_place_of_the_former() -> None:
    play = script.Play()
    for line in ("job {roles: {worker: {gpus: 1, on_failure: restart}}}", "admit", "launched", "register worker-0"):
        play.run(line)
    before = msgspec.structs.replace(play.live.tasks[0], node="n7", ports=(1, 4), devices=(3,))
    before = msgspec.structs.replace(before, exit=attempts.Exit(code=1, cause=attempts.Cause.ERROR, at=play.now))
    after = ends.fresh(play.job, before, play.now)
    assert (after.incarnation, after.node, after.ports, after.devices) == (2, "n7", (1, 4), (3,))


@pytest.mark.parametrize(
    ("roles", "good", "decided"),
    [
        ("{worker: {count: 2}, evaluator: {}}", "worker-0 worker-1", True),
        ("{worker: {count: 2}, evaluator: {}}", "worker-0 evaluator-0", False),
        ("{chief: {}, worker: {on_success: none}}", "chief-0", True),
        ("{chief: {}, worker: {on_success: none}}", "worker-0", False),
        ("{worker: {count: 2, on_success: none}}", "worker-0 worker-1", True),
        ("{worker: {count: 2, on_success: none}}", "worker-1", False),
    ],
)
def test_one_task_that_decides_or_all_that_count_are_a_success(roles: str, good: str, decided: bool) -> None:
    """Where no role counts, all tasks do."""
    play = script.Play()
    for line in (f"job {{framework: plain, roles: {roles}}}", "admit"):
        play.run(line)
    tasks = [
        msgspec.structs.replace(task, phase=phases.TaskPhase.SUCCEEDED) if task.name in good.split() else task
        for task in play.live.tasks
    ]
    assert ends.decided(play.job.spec, tasks) is decided


def test_the_start_of_a_job_moves_with_the_clock_in_its_first_attempt_alone() -> None:
    play = launched("after 3", "register worker-0 worker-1", "report worker-0 PROCESSING")
    moved = shifting.shifted(play.job, 60.0)
    assert moved.live is not None
    assert moved.started_at == moved.live.processing_at == script.START + 63
    assert [(task.phase_at, task.moved_at) for task in moved.live.tasks] == [
        (task.phase_at + 60, task.moved_at + 60) for task in play.live.tasks
    ]
    for line in ("after 5", "intend preempt", "gone worker-0 worker-1", "do", "admit", "launched"):
        play.run(line)
    assert shifting.shifted(play.job, 60.0).started_at == script.START + 3, "it is a date of the past"


def test_an_edited_job_keeps_its_destination_unless_its_size_or_pool_changed() -> None:
    to = script.places(script.new_job(), 1)
    refusal = refusals.Refusal(code=refusals.Code.NO_CAPACITY, message="2 GPUs are needed, 1 is free")
    job = msgspec.structs.replace(script.new_job(), destined=to, refusal=refusal)
    for edit, left in ((events.Edited(priority=70), to), (events.Edited(pool="research"), ())):
        edited = stepping.step(job, edit, script.START)
        assert (edited.destined, edited.refusal) == (left, None)


@pytest.mark.parametrize(("reason", "left"), [("2 GPUs are needed, 1 is free", ""), ("halted by ann", "halted by ann")])
def test_an_edited_job_forgets_the_reason_that_was_its_refusals(reason: str, left: str) -> None:
    refusal = refusals.Refusal(code=refusals.Code.NO_CAPACITY, message="2 GPUs are needed, 1 is free")
    job = msgspec.structs.replace(script.new_job(), refusal=refusal, reason=reason)
    assert stepping.step(job, events.Edited(priority=70), script.START).reason == left


def test_nodes_are_requested_for_a_job_that_waits_alone() -> None:
    need = provisioning.Need(nodes={"large": 1}, tasks=())
    request = provisioning.NodeRequest(number=1, need=need, at=script.START)
    waiting = script.new_job()
    told = stepping.step(waiting, events.NodesRequested(request=request), script.START)
    assert told.node_request == request
    assert stepping.step(told, events.NodesRequested(request=None), script.START).node_request is None
    running = launched().job
    assert stepping.step(running, events.NodesRequested(request=request), script.START) is running
    ended = msgspec.structs.replace(waiting, phase=phases.Phase.HALTED)
    assert stepping.step(ended, events.NodesRequested(request=request), script.START) is ended


@pytest.mark.parametrize(("processed_s", "failures"), [(299, 3), (300, 1)])
def test_a_platform_failure_after_a_long_time_is_the_first_again(processed_s: int, failures: int) -> None:
    play = launched("register worker-0 worker-1", "report worker-0 PROCESSING", f"after {processed_s}")
    play.job = msgspec.structs.replace(play.job, platform_failures=2)
    stop = events.StopDecided(attempt=1, cause=attempts.Cause.PLATFORM, message="the node is lost")
    play.job = stepping.step(play.job, stop, play.now)
    for line in ("gone worker-0 worker-1", "do"):
        play.run(line)
    assert play.job.platform_failures == failures


def test_an_attempt_that_tells_no_pace_leaves_the_time_that_is_needed() -> None:
    play = launched("register worker-0 worker-1", "report worker-0 PROCESSING")
    play.job = msgspec.structs.replace(play.job, lasts_s=900.0)
    for line in ("intend preempt", "gone worker-0 worker-1", "do"):
        play.run(line)
    assert (play.job.live, play.job.lasts_s) == (None, 900.0)


def test_a_task_that_leaves_is_ended_with_its_job_where_that_is_earlier() -> None:
    play = launched("register worker-0 worker-1", "report worker-0 PROCESSING")
    leaves = msgspec.structs.replace(play.live.tasks[1], leave_by=play.now + 500)
    live = msgspec.structs.replace(play.live, tasks=(play.live.tasks[0], leaves))
    assert deadlines.kill(play.job, live, leaves) == play.now + 500
    stopped = msgspec.structs.replace(live, stop=attempts.Cause.STOPPED, stop_at=play.now)
    at_end = deadlines.kill(play.job, stopped, live.tasks[0])
    assert at_end is not None
    assert deadlines.kill(play.job, stopped, leaves) == at_end < play.now + 500
