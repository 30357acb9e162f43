"""The words for a job: its progress, its cells in a table, its events, its end."""

from __future__ import annotations

import msgspec
import pytest
from tests.display.samples import job, processing

from oarlock.display import durations
from oarlock.display.jobs import endings, eventlines, progress
from oarlock.display.tables import jobcells
from oarlock.spec import attempts, events, jobs, phases, refusals, roles, summaries


def row(of: jobs.Job, now: float) -> list[str]:
    return jobcells.row(summaries.of(of, now), now)


def test_time_left_is_at_the_pace_since_the_first_report() -> None:
    reading = summaries.read(processing(150, first=100, total_steps=200))
    assert reading is not None
    assert reading.left_s == 50.0, "50 steps took 50 s, whatever came before the first report"


def test_a_frozen_job_is_shown_as_one_until_its_time_is_over() -> None:
    attempt = msgspec.structs.replace(
        processing(40, total_steps=100).attempts[0],
        frozen_until=700.0,
        stop=attempts.Cause.ERROR,
        stop_message="worker-1 exited with code 3",
    )
    kept = job(phase=phases.Phase.PROCESSING, attempts=(attempt,), reason="worker-1 exited with code 3", started_at=110)
    cells = row(kept, 160.0)
    assert (cells[2], cells[-1]) == ("FROZEN", f"until {durations.clock(700.0, 160.0)}: worker-1 exited with code 3")
    assert row(kept, 701.0)[2] == "PROCESSING", "it is being released"
    assert progress.phase(kept) == "FROZEN"


def test_a_job_that_waits_again_runs_no_longer() -> None:
    waits = job(started_at=100.0, processed_s=4.0)
    assert row(waits, 160.0)[7] == "4s"
    goes_on = attempts.Attempt(number=2, started_at=150.0, processing_at=155.0)
    assert row(msgspec.structs.replace(waits, attempts=(goes_on,)), 160.0)[7] == "9s"
    stops = msgspec.structs.replace(goes_on, stop_at=157.0)
    assert row(msgspec.structs.replace(waits, attempts=(stops,)), 160.0)[7] == "6s"


def test_an_elastic_gang_is_as_large_as_it_is_and_no_longer_as_was_asked() -> None:
    grown = attempts.Attempt(
        number=1, started_at=1.0, tasks=tuple(attempts.Task(role=roles.RoleName.WORKER, index=i) for i in range(5))
    )
    over = msgspec.structs.replace(grown, ended_at=2.0)
    assert jobcells.tasks(summaries.of(job(), 160.0)) == "2 w"
    assert jobcells.tasks(summaries.of(job(attempts=(grown,)), 160.0)) == "5 w"
    assert jobcells.tasks(summaries.of(job(attempts=(over,)), 160.0)) == "2 w", "it waits again, with what it asks for"


def test_a_waiting_job_tells_its_reason() -> None:
    refused = refusals.Refusal(code=refusals.Code.NO_CAPACITY, message="1 of 2 GPUs is free")
    assert progress.waiting_for(job(refusal=refused, reason="back-off")) == "1 of 2 GPUs is free"
    assert progress.waiting_for(job(reason="back-off")) == "back-off"
    tasks = tuple(attempts.Task(role=roles.RoleName.WORKER, index=i) for i in range(2))
    attempt = attempts.Attempt(number=1, started_at=1.0, tasks=tasks)
    assert progress.waiting_for(job(phase=phases.Phase.DEPLOYING, attempts=(attempt,))) == "2 PENDING"
    fetching = (tasks[0], msgspec.structs.replace(tasks[1], detail="fetching 1 of 3 files"))
    attempt = msgspec.structs.replace(attempt, tasks=fetching)
    assert progress.waiting_for(job(phase=phases.Phase.DEPLOYING, attempts=(attempt,))) == "fetching 1 of 3 files"


def test_the_blame_is_told_with_its_last_lines() -> None:
    verdict = attempts.Verdict(
        cause=attempts.Cause.ERROR, message="exit code 1", at=1.0, task="worker-1", last_lines=("boom", "line 2")
    )
    attempt = attempts.Attempt(number=1, started_at=1.0, verdict=verdict, ended_at=2.0)
    failed = job(phase=phases.Phase.FAILED, attempts=(attempt,), ended_at=162.0, restarts=2)
    assert endings.heading(failed) == ", after 1m 02s, 2 restarts"
    blame = ["  blame        worker-1: exit code 1", "    | boom", "    | line 2"]
    assert endings.summary(failed, None) == blame
    assert endings.next_steps(failed)[1] == "  oarlock logs digits --tail 50 --role worker --index 1"
    assert endings.blame(failed, {"boom", "line 2"}.__contains__) == blame[:1], "they are not printed twice"
    assert endings.blame(failed, {"boom"}.__contains__) == blame, "one of the lines is new to the reader"
    final = msgspec.structs.replace(attempt, no_restart="it failed twice")
    failed = msgspec.structs.replace(failed, attempts=(final,))
    assert endings.blame(failed)[-1] == "  no restart   it failed twice"


def test_the_end_lists_where_everything_is() -> None:
    checkpoint = jobs.Checkpoint(
        job="j-1", attempt=1, round=1, step=40, path="/c/step-40", bytes=1, at=1.0, manifest_sha256=""
    )
    canceled = job(phase=phases.Phase.CANCELED, attempts=processing(40).attempts, directory="/work", reason="Ctrl-C")
    assert endings.summary(canceled, checkpoint, "/results") == [
        "  progress     step 40",
        "  results      /results",
        "  files        where the job wrote them: /work",
        "  checkpoint   step 40 in /c/step-40",
        "  go on        oarlock run --continue digits",
        "  reason       Ctrl-C",
    ]
    completed = msgspec.structs.replace(canceled, phase=phases.Phase.COMPLETED)
    assert len(endings.summary(completed, checkpoint)) == 3, "it needs no reason, and there is nothing to continue"


@pytest.mark.parametrize("phase", phases.Phase)
def test_three_commands_to_try_next(phase: phases.Phase) -> None:
    """`cancel` would fail for a job that has ended."""
    ended = job(phase=phase)
    steps = endings.next_steps(ended)
    assert len(steps) == 4
    assert not (ended.terminal and any("cancel" in step for step in steps))


def test_alike_events_are_one_line_in_the_order_of_the_last() -> None:
    def record(seq: int, kind: str) -> events.Record:
        return events.Record(seq=seq, at=float(seq), job="j-1", kind=kind, version=1, data={})

    kinds = ["submitted", "refused", "refused", "phase", "task_reported", "checkpoint_visible", "task_reported"]
    kinds += ["checkpoint_visible", "checkpoint_visible", "phase", "phase", "task_reported"]
    found = eventlines.folded([record(seq, kind) for seq, kind in enumerate(kinds)])
    assert [(one.seq, one.kind, count) for one, count in found] == [
        (0, "submitted", 1),
        (2, "refused", 2),
        (3, "phase", 1),
        (6, "task_reported", 2),
        (8, "checkpoint_visible", 3),
        (9, "phase", 1),
        (10, "phase", 1),
        (11, "task_reported", 1),
    ]


def test_the_facts_of_an_event_name_its_task() -> None:
    data = {"role": "worker", "index": 1, "incarnation": 1, "phase": "STORING", "reason": "", "tasks": [1, 2]}
    assert eventlines.facts(data) == "worker-1 phase=STORING"
    assert eventlines.facts({**data, "incarnation": 2}) == "worker-1 incarnation=2 phase=STORING"


def test_the_speed_of_an_attempt_names_the_waiting_and_the_straggler() -> None:
    assert progress.speed(attempts.Progress(step=3, at=1.0)) == []
    told = attempts.Progress(step=3, at=1.0, step_s=0.25, sync_s=0.1, data_s=0.02, sent_bytes=25e6)
    said = ["a step takes 0.25 s", "0.1 s of it waiting for gradients", "0.02 s for data", "25.0 MB sent"]
    assert progress.speed(told) == said
    slow = msgspec.structs.replace(told, slowest_rank=0, slowest_s=0.15, fastest_s=0.05)
    assert progress.speed(slow) == [*said, "rank 0 is slow: 0.15 s a step, the fastest rank 0.05 s"]
