"""`ps`, `show`, `why`, `metrics`, `nodes`, `pools`, `tensorboard`, `login`, `users`: what people read, and programs."""

from __future__ import annotations

import json
import os
import re
import struct
import sys
import time
from pathlib import Path

import msgspec
import pytest
from tests.cli import typed
from tests.client import live

from oarlock.cli import main
from oarlock.cli.following import endings
from oarlock.cli.output import progress, tables, terminal
from oarlock.cli.verbs import metrics, ps, show
from oarlock.client import verbs
from oarlock.spec import attempts, bodies, errors, events, intents, jobfile, jobs, phases, refusals, roles


class Typed:
    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *words: str, code: int = 0) -> str:
        found = main.main(words)
        said = self._capsys.readouterr()
        assert found == code, said.err
        return said.out


@pytest.fixture
def type_(capsys: pytest.CaptureFixture[str]) -> Typed:
    return Typed(capsys)


def test_the_speed_curve_is_one_line_for_each_size(capsys: pytest.CaptureFixture[str]) -> None:
    show._speed(
        bodies.Speed(
            items=(
                bodies.SpeedPoint(devices=1, nodes=1, per_s=1234.5, local=32, measured=1),
                bodies.SpeedPoint(devices=2, nodes=1, per_s=2.5, servers=1),
                bodies.SpeedPoint(devices=16, nodes=2, per_s=12345.6, local=32, measured=9),
            ),
            noise=4321.0,
        )
    )
    said = capsys.readouterr().out.strip().splitlines()
    assert "examples per second, gradient noise 4,321 examples" in said[0]
    assert [" ".join(line.split()) for line in said[1:]] == [
        "1 device 1,234 measured 1 time, 32 at once",
        "2 devices, 1 server 2.5 expected",
        "16 devices on 2 nodes 12,346 measured 9 times, 32 at once",
    ]
    show._speed(bodies.Speed(()))
    assert capsys.readouterr().out == ""


def job(**changes: object) -> jobs.Job:
    spec = jobfile.JobSpec(command="python train.py", roles={roles.RoleName.WORKER: jobfile.Role(count=2)})
    given = {
        "id": "j-1",
        "name": "digits",
        "owner": "o",
        "spec": spec,
        "created_at": 100.0,
        "phase_at": 100.0,
        **changes,
    }
    return jobs.Job(**given)  # type: ignore[arg-type]


def processing(step: int, first: int = 0, **facts: object) -> jobs.Job:
    """A second a step, since its first report at step `first`."""
    began = attempts.Progress(step=first, at=110.0 + first)
    told = attempts.Progress(step=step, at=110.0 + step, **facts)  # type: ignore[arg-type]
    task = attempts.Task(
        role=roles.RoleName.WORKER, index=0, first_progress=began, progress=told, phase=phases.TaskPhase.PROCESSING
    )
    attempt = attempts.Attempt(number=1, started_at=105.0, processing_at=110.0, tasks=(task,))
    return job(phase=phases.Phase.PROCESSING, attempts=(attempt,), started_at=110.0)


def test_the_live_line_says_what_there_is_to_say() -> None:
    full = {"total_steps": 100, "loss": 0.25, "examples_per_s": 1234.5}
    refused = refusals.Refusal(code=refusals.Code.NO_CAPACITY, message="it needs 2 GPUs, 1 is free")
    deploying = attempts.Attempt(
        number=1, started_at=1.0, tasks=tuple(attempts.Task(role=roles.RoleName.WORKER, index=i) for i in range(2))
    )
    said = [
        progress.status(one, 160.0, columns, unicode=False)
        for one, columns in [
            (job(), 79),
            (job(refusal=refused), 79),
            (job(phase=phases.Phase.DEPLOYING, attempts=(deploying,)), 79),
            (processing(40, **full), 79),
            (processing(40, **full), 50),
            (processing(40, **full), 20),
            (processing(40), 79),
            (processing(0, total_steps=100), 79),
            (processing(200, total_steps=100), 79),
        ]
    ]
    assert said == [
        "digits  QUEUED  1m 00s",
        "digits  QUEUED  1m 00s  it needs 2 GPUs, 1 is free",
        "digits  DEPLOYING  1m 00s  2 PENDING",
        "digits  [######--------]  step 40/100  loss 0.25  1m 00s left  1,234 examples/s",
        "digits  [######----------]  step 40/100  loss 0.25",
        "digits  PROCESSING  ",
        "digits  PROCESSING  step 40",
        "digits  [------------------------------]  step 0/100",
        "digits  [##############################]  step 200/100  0.0 s left",
    ]


@pytest.mark.parametrize("columns", [20, 30, 40, 60, 79, 120, 200])
def test_the_live_line_never_wraps(columns: int) -> None:
    long = "x" * 300 + "漢字" * 50
    refused = refusals.Refusal(code=refusals.Code.NO_CAPACITY, message=long)
    for one in (
        job(name="n" * 63, refusal=refused),
        processing(10**9, total_steps=10**12, loss=-1.23e-9, examples_per_s=1e9, epoch=3.0),
        job(intent=intents.Intent.CANCEL, phase=phases.Phase.STORING),
    ):
        assert terminal.cells(progress.status(one, 1e6, columns)) <= max(columns, 40)


def test_time_left_is_at_the_pace_since_the_first_report() -> None:
    reading = progress.read(processing(150, first=100, total_steps=200))
    assert reading is not None
    assert reading.left_s == 50.0, "50 steps took 50 s, whatever came before the first report"


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (0.123456, "0.1235"), (1e-7, "1e-07"), (12345.6, "12,346"), (2.5e9, "2.5e+09"), (float("nan"), "nan")],
)
def test_numbers_are_short(value: float, text: str) -> None:
    assert progress.number(value) == text


def test_a_frozen_job_is_shown_as_one_until_its_time_is_over() -> None:
    attempt = msgspec.structs.replace(
        processing(40, total_steps=100).attempts[0],
        frozen_until=700.0,
        stop=attempts.Cause.ERROR,
        stop_message="worker-1 exited with code 3",
    )
    kept = job(phase=phases.Phase.PROCESSING, attempts=(attempt,), reason="worker-1 exited with code 3", started_at=110)
    cells = ps.row(kept, 160.0)
    assert (cells[2], cells[-1]) == ("FROZEN", f"until {ps.since(700.0, 160.0)}: worker-1 exited with code 3")
    assert ps.row(kept, 701.0)[2] == "PROCESSING", "it is being released"
    assert progress.status(kept, 160.0, 79).startswith("digits  FROZEN  ")


def test_the_blame_is_told_with_its_last_lines() -> None:
    verdict = attempts.Verdict(
        cause=attempts.Cause.ERROR, message="exit code 1", at=1.0, task="worker-1", last_lines=("boom\x1b[2J", "line 2")
    )
    attempt = attempts.Attempt(number=1, started_at=1.0, verdict=verdict, ended_at=2.0)
    failed = job(phase=phases.Phase.FAILED, attempts=(attempt,), ended_at=162.0, restarts=2)
    assert endings.summary(failed, None, colour=False) == [
        "digits FAILED, after 1m 02s, 2 restarts",
        "  blame        worker-1: exit code 1",
        "    | boom",
        "    | line 2",
    ]
    assert endings.next_steps(failed)[1] == "  oarlock logs digits --tail 50 --role worker --index 1"
    above = ["worker-1 | boom", "worker-1 | line 2"]
    assert endings.blame(failed, above) == ["  blame        worker-1: exit code 1"], "it is not printed twice"
    assert len(endings.blame(failed, above[:1])) == 3
    final = msgspec.structs.replace(attempt, no_restart="it failed twice")
    failed = msgspec.structs.replace(failed, attempts=(final,))
    assert endings.blame(failed, above)[-1] == "  no restart   it failed twice"


@pytest.mark.parametrize("phase", phases.Phase)
def test_three_commands_to_try_next_for_every_end(phase: phases.Phase) -> None:
    assert len(endings.next_steps(job(phase=phase))) == 4


@pytest.mark.parametrize(
    ("phase", "code", "exits"),
    [
        (phases.Phase.COMPLETED, 0, 0),
        (phases.Phase.COMPLETED, None, 0),
        (phases.Phase.FAILED, 3, 3),
        (phases.Phase.FAILED, None, 1),
        (phases.Phase.FAILED, 0, 1),
        (phases.Phase.CANCELED, None, 130),
        (phases.Phase.HALTED, 0, 130),
    ],
)
def test_the_exit_code_is_the_job_s(phase: phases.Phase, code: int | None, exits: int) -> None:
    assert verbs.exit_code(phase, code) == exits


def test_since_is_a_time_or_how_long_ago() -> None:
    assert verbs.since_of("10m", now=1000.0) == 400.0
    assert verbs.since_of("1700000000") == 1_700_000_000.0
    assert verbs.since_of("2026-01-31T12:00:00+00:00") == 1_769_860_800.0
    for wrong in ("yesterday", "-5m", "", "9" * 400):
        with pytest.raises(errors.InvalidInput):
            verbs.since_of(wrong)


def test_a_course_is_drawn_from_the_least_to_the_greatest() -> None:
    assert metrics.sparkline([1, 2, 3, 4, 5, 6, 7, 8], 8) == "▁▂▃▄▅▆▇█"
    assert metrics.sparkline([5, 5], 8) == "▁▁"
    assert metrics.sparkline([0, 1], 8, unicode=False) == "_#"
    assert metrics.sparkline([], 8) == ""
    assert len(metrics.sparkline(list(range(1000)), 32)) == 32


def test_heavy_columns_give_way_first() -> None:
    columns = [tables.Column("NAME", weight=1), tables.Column("PHASE"), tables.Column("REASON", weight=9)]
    assert tables.fitted([10, 10, 100], columns, 80) == [10, 10, 55]
    assert tables.fitted([60, 10, 30], columns, 80) == [57, 10, 8]
    assert tables.fitted([60, 10, 30], columns, 20) == [8, 7, 0]
    assert tables.fitted([10, 10, 10], columns, 80) == [10, 10, 10]


def test_cutting_counts_cells() -> None:
    assert terminal.cut("漢字漢字漢字", 9) == "漢字漢..."
    assert terminal.cut("abcdef", 6) == "abcdef"
    assert terminal.cut("abcdef", 2) == ".."
    assert terminal.cut("abcdef", 0) == ""


def test_ps_in_80_columns(server: live.LiveServer) -> None:
    """Many columns, long names and reasons: each row is one row."""
    server.rig.clock.now = time.time()
    server.submit(name="a-very-long-name-that-somebody-gave-to-this-job-of-theirs")
    refused = server.submit(name="waits")
    server.refuse(refused.id, "it needs 8 GPUs on one node; 2 are free, 6 are held by others " * 3)
    running = server.submit(name="runs", roles={"worker": {"count": 2}, "ps": {}})
    server.launch(running.id)
    server.process(running.id)
    server.progress(running.id, step=45, total_steps=100, loss=0.5)
    with typed.terminal("ps") as shown:
        assert shown.ended() == 0
    rows = typed.screen(shown.text)
    assert len([row for row in rows if row]) == 4
    assert max(map(len, rows)) <= 80
    assert "45%" in shown.text
    assert "2 w 1 ps" in shown.text
    assert "it needs 8" in shown.text
    assert "a-very-" in shown.text
    whole = typed.run("ps").stdout
    assert "6 are held by others" * 1 in whole, "nothing is cut for a pipe"
    assert " 0.5 " in typed.run("ps", "--wide").stdout
    assert "\x1b" not in whole


def test_ps_says_since_when_and_where_or_why(type_: Typed, server: live.LiveServer) -> None:
    """The reason of a job that runs is no place in the queue; where nothing runs, no time is left."""
    server.rig.clock.now = time.time()
    runs = server.submit(name="runs", roles={"worker": {"count": 2, "gpus": 1}})
    server.launch(runs.id)
    server.process(runs.id)
    server.progress(runs.id, step=10, total_steps=100)
    server.rig.clock.now += 1
    server.progress(runs.id, step=45, total_steps=100)
    shown = type_("ps").splitlines()
    clock = time.strftime("%H:%M", time.localtime(server.job(runs.id).phase_at))
    assert shown[0].split() == ["ID", "NAME", "PHASE", "TASKS", "SINCE", "RAN", "PROGRESS", "WHERE,", "OR", "WHY"]
    cells = shown[1].split()
    assert cells[:6] == [runs.id[-6:], "runs", "PROCESSING", "2", "w", clock]
    assert shown[1].endswith("  45%       on here")
    assert ps._cards([3, 0, 1]) == " (GPUs 0-1, 3)"
    assert "left" in type_("show", runs.id[-6:]), "the short id is taken"
    type_("halt", runs.id[-6:])
    server.release(runs.id)
    said = type_("show", "runs")
    assert "HALTED" in said
    assert " left" not in said
    assert "step 45/100" in said
    assert "halted by root" in type_("ps").lower()


def test_alike_events_are_one_line_in_the_order_of_the_last() -> None:
    def record(seq: int, kind: str) -> events.Record:
        return events.Record(seq=seq, at=float(seq), job="j-1", kind=kind, version=1, data={})

    kinds = ["submitted", "refused", "refused", "phase", "task_reported", "checkpoint_visible", "task_reported"]
    kinds += ["checkpoint_visible", "checkpoint_visible", "phase", "phase", "task_reported"]
    found = show.folded([record(seq, kind) for seq, kind in enumerate(kinds)])
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


def test_show_fits_80_columns(server: live.LiveServer) -> None:
    """A long reason, environment and path. In a pipe lines are broken between words alone, so that a path is whole."""
    reason = "it needs 8 GPUs on one node; 2 are free, 6 are held by others " * 3
    made = server.submit(name="waits", env={"LONG": "word " * 30}, results="/a/very/long/path" * 6)
    server.refuse(made.id, reason.strip())
    with typed.terminal("show", "waits") as shown:
        assert shown.ended() == 0
    lines = re.sub(r"\x1b\[[0-9;]*m", "", shown.text).splitlines()
    assert max(map(len, lines)) <= 80
    assert " ".join(reason.split()) in " ".join(" ".join(lines).split())
    for words in ((), ("--events",)):
        piped = typed.run("show", "waits", *words).stdout
        assert reason.strip() in " ".join(piped.split())
        assert [line.strip() for line in piped.splitlines() if len(line) > 80] == ["/a/very/long/path" * 6]


SHOWN = """\
digits  FAILED  j-ID
  worker-0 failed
  [━━━━━━━━━━━━━━━━━━━╌╌╌╌╌]  step 7/9  loss 0.5
  submitted CLOCK, started CLOCK, ended CLOCK after 5.0 s
  owner root, pool default, restarts 0 of 0, exit code 3

Spec
  command: true
  roles:
    worker: {count: 2}
  max_restarts: 0
  env: {LR: 0.1}

Decisions
  CLOCK  admitted             attempt 1: 2 tasks on here

Attempt 1
  began CLOCK, lasted 5.0 s
  TASK      PHASE   NODE  STEP  EXIT
  worker-0  FAILED  here  7     3 error
  worker-1  FAILED  here        3 error
  error: worker-0 failed
    | Traceback
    | KeyError: 'lr'

Events
  ... 1 earlier one: --events
  CLOCK  admitted               attempt=1 price_per_h=0.0
  CLOCK  phase                  from=QUEUED to=DEPLOYING
  CLOCK  launched               attempt=1
  CLOCK  task_registered        worker-0 attempt=1 address=127.0.0.1
  CLOCK  phase                  from=DEPLOYING to=DOWNLOADING
  CLOCK  task_registered        worker-1 attempt=1 address=127.0.0.1
  CLOCK  task_reported          worker-0 attempt=1 phase=PROCESSING
  CLOCK  phase                  from=DOWNLOADING to=PROCESSING
  CLOCK  task_reported          worker-1 attempt=1 phase=PROCESSING
  CLOCK  task_registered x2     worker-1 attempt=1 address=127.0.0.1
  CLOCK  task_exited x2         worker-1 attempt=1
  CLOCK  task_gone x2           worker-1 attempt=1
  CLOCK  stop_decided           attempt=1 cause=error message=worker-0 fai...
  CLOCK  released               attempt=1
  CLOCK  phase                  from=PROCESSING to=FAILED reason=worker-0 ...
"""


def test_a_failed_job_as_it_is_shown(server: live.LiveServer) -> None:
    server.rig.clock.now = time.time()
    made = server.submit(name="digits", max_restarts=0, roles={"worker": {"count": 2}}, env={"LR": "0.1"})
    server.launch(made.id)
    server.process(made.id)
    server.progress(made.id, step=7, total_steps=9, loss=0.5)
    server.end(made.id, 3, last_lines=("Traceback", "KeyError: 'lr'"))
    with typed.terminal("show", "digits") as shown:
        assert shown.ended() == 0
    plain = re.sub(r"\x1b\[[0-9;]*m", "", shown.text).replace(made.id, "j-ID")
    plain = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d|\d\d:\d\d:\d\d", "CLOCK", plain)
    assert plain.rstrip() == SHOWN.strip(), plain


def test_lines_are_broken_between_words_and_hang() -> None:
    assert terminal.broken("one two three four", 80, indent=2) == ["  one two three four"]
    assert terminal.broken("one two three four five six", 24, indent=2, hang=2) == [
        "  one two three four",
        "    five six",
    ]
    assert terminal.broken("a " + "x" * 50, 30, whole_words=True) == ["a", "x" * 50]
    assert terminal.broken("x" * 50, 30) == ["x" * 30, "x" * 20]


def test_who_waits_again_runs_no_longer() -> None:
    waits = job(started_at=100.0, processed_s=4.0)
    assert ps.row(waits, 160.0)[7] == "4s"
    goes_on = attempts.Attempt(number=2, started_at=150.0, processing_at=155.0)
    assert ps.row(msgspec.structs.replace(waits, attempts=(goes_on,)), 160.0)[7] == "9s"
    stops = msgspec.structs.replace(goes_on, stop_at=157.0)
    assert ps.row(msgspec.structs.replace(waits, attempts=(stops,)), 160.0)[7] == "6s"


def test_an_elastic_gang_is_as_large_as_it_is_and_no_longer_as_was_asked() -> None:
    grown = attempts.Attempt(
        number=1, started_at=1.0, tasks=tuple(attempts.Task(role=roles.RoleName.WORKER, index=i) for i in range(5))
    )
    over = msgspec.structs.replace(grown, ended_at=2.0)
    assert ps.tasks(job()) == "2 w"
    assert ps.tasks(job(attempts=(grown,))) == "5 w"
    assert ps.tasks(job(attempts=(over,))) == "2 w", "it waits again, with what it asks for"


def test_who_asks_for_some_and_finds_none_is_not_told_to_begin(server: live.LiveServer) -> None:
    assert "No such jobs." in typed.run("ps", "--owner", "nobody").stderr
    assert "Begin with" in typed.run("ps").stderr


def test_ps_for_programs(type_: Typed, server: live.LiveServer) -> None:
    one = server.submit(name="one")
    server.rig.clock.now += 1
    other = server.submit(name="two")
    assert [item["id"] for item in json.loads(type_("ps", "--json"))["items"]] == [other.id, one.id]
    assert type_("ps", "--quiet", "--limit", "1") == other.id + "\n"
    assert type_("ps", "-q", "--name", "one") == one.id + "\n"
    assert type_("ps", "-q", "--phase", "completed") == ""


def test_an_intent_that_is_not_yet_so_is_seen(type_: Typed, server: live.LiveServer) -> None:
    running = server.submit(name="runs")
    server.launch(running.id)
    server.process(running.id)
    type_("cancel", "runs")
    assert "cancel" in type_("ps")
    assert "wanted: cancel" in type_("show", "runs")


def test_show_tells_the_whole_story(type_: Typed, server: live.LiveServer) -> None:
    made = server.submit(name="story", max_restarts=0, roles={"worker": {"count": 2}}, env={"A": "1"})
    server.launch(made.id)
    server.process(made.id)
    server.progress(made.id, step=7, total_steps=9, loss=0.5)
    server.end(made.id, 3)
    said = type_("show", "story")
    for part in ("story  FAILED", "Spec", "env: {A: 1}", "Attempt 1", "worker-1", "here", "3 error", "Events", "7/9"):
        assert part in said, part
    everything = json.loads(type_("show", "story", "--json"))
    assert set(everything) == {"job", "continued_by", "cost", "speed", "decisions", "events", "checkpoints"}
    assert type_("why", "story").count("\n") == 3
    assert json.loads(type_("why", "story", "--json"))["phase"] == "FAILED"


def test_a_name_that_was_mistyped_is_guessed(server: live.LiveServer, capsys: pytest.CaptureFixture[str]) -> None:
    server.submit(name="slow")
    for name, hint in (("slwo", "Did you mean `slow`?"), ("quite-another", "See `oarlock ps` for your jobs.")):
        assert main.main(["show", name]) == 1
        assert hint in capsys.readouterr().err


def test_show_tells_the_same_last_lines_once(type_: Typed, server: live.LiveServer) -> None:
    made = server.submit(name="again")
    for _ in range(2):
        server.launch(made.id)
        server.process(made.id)
        server.progress(made.id, step=7)
        server.end(made.id, 3, last_lines=("Traceback", "KeyError: 'lr'"))
    said = type_("show", "again")
    assert said.count("KeyError: 'lr'") == 1
    assert "the same last lines as in the attempt before" in said
    assert "no restart: it failed twice in the same way, without progress between" in said


def test_several_jobs_at_once_and_one_that_fails(
    type_: Typed, server: live.LiveServer, capsys: pytest.CaptureFixture[str]
) -> None:
    one, other = server.submit(name="one"), server.submit(name="two")
    type_("halt", "one", "nobody", "two", "--reason", "lunch", code=1)
    assert {server.job(each.id).phase for each in (one, other)} == {phases.Phase.HALTED}
    shown = type_("show", "one")
    assert ", halted " in shown
    assert "running" not in shown
    assert main.main(["resume", "one"]) == 0
    told = capsys.readouterr().err.splitlines()
    assert told == ["one has no checkpoint: it begins anew, at its first step.", "one goes on: QUEUED."]
    assert main.main(["resume", "one"]) == 0
    assert capsys.readouterr().err.splitlines() == ["one is QUEUED: it was not halted."]
    type_("cancel", "one", "two", "--wait")
    type_("rm", "one", "two")
    type_("show", "one", code=1)


def test_the_cluster(type_: Typed, server: live.LiveServer) -> None:
    made = server.submit(name="holder")
    server.launch(made.id)
    assert "h100" in type_("nodes")
    assert json.loads(type_("nodes", "--json"))["items"][0]["node"]["name"] == "here"
    assert "default" in type_("pools")
    assert json.loads(type_("pools", "--json"))["items"][0]["pool"]["name"] == "default"
    assert "DEVICE-HOURS" in type_("usage", "--by", "pool", "--since", "30d")


def test_metrics_for_people_and_programs(type_: Typed, server: live.LiveServer) -> None:
    server.submit(name="measured")
    assert "loss" in type_("metrics", "measured")
    assert json.loads(type_("metrics", "measured", "--json"))["names"] == ["loss"]
    assert type_("metrics", "measured", "--csv").splitlines()[0] == "task,process,name,step,time,value"


def test_tensorboard_gets_event_files(type_: Typed, server: live.LiveServer, tmp_path: Path) -> None:
    server.submit(name="measured")
    where = type_("tensorboard", "measured", "--write-only", "--dir", str(tmp_path / "tb")).strip()
    files = list(Path(where).rglob("events.out.tfevents.*"))
    assert len(files) == 1
    assert struct.unpack("<Q", files[0].read_bytes()[:8])[0] > 0


def test_tensorboard_prefers_what_the_job_wrote(type_: Typed, server: live.LiveServer, tmp_path: Path) -> None:
    own = tmp_path / "out" / "run"
    own.mkdir(parents=True)
    (own / "events.out.tfevents.1.host").write_bytes(b"")
    server.submit(name="wrote", results=str(tmp_path / "out"))
    assert type_("tensorboard", "wrote", "--write-only").strip() == str(tmp_path / "out")


def test_results_in_the_servers_own_place_are_found(type_: Typed, server: live.LiveServer, home: Path) -> None:
    made = server.submit(name="kept")
    place = Path(server.rig.services.about.home, "results", made.id)
    assert str(place) not in type_("show", "kept"), "there are none yet"
    place.mkdir(parents=True)
    (place / "events.out.tfevents.1.host").write_bytes(b"")
    assert str(place) in type_("show", "kept")
    assert type_("tensorboard", "kept", "--write-only").strip() == str(place)
    assert f"  results      {place}" in endings.summary(made, None, str(place), colour=False)


def test_tensorboard_that_is_not_installed_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    from oarlock.cli.verbs import tensorboard

    monkeypatch.setattr(sys, "path", [])
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(errors.NotFound, match="pip install"):
        tensorboard.starter()


def test_login_is_tried_before_it_is_kept(server: live.LiveServer, home: Path, tmp_path: Path) -> None:
    other = {"OARLOCK_HOME": str(tmp_path / "other")}
    wrong = typed.run("login", server.url, stdin="nonsense\n", env=other)
    assert wrong.returncode == 1
    assert not (tmp_path / "other" / "login.json").exists()
    right = typed.run("login", server.url, stdin=server.token + "\n", env=other)
    assert right.returncode == 0, right.stderr
    assert "as root (admin)" in right.stderr
    assert (tmp_path / "other" / "login.json").stat().st_mode & 0o777 == 0o600
    assert typed.run("nodes", env=other).returncode == 0
    assert typed.run("login", "--forget", env=other).returncode == 0
    assert typed.run("nodes", env=other).returncode == 1


def test_users_and_their_tokens(type_: Typed, server: live.LiveServer) -> None:
    token = type_("users", "add", "dora", "--right", "viewer").strip()
    assert "dora  viewer" in type_("users", "list")
    assert type_("ps", "--token", token) == ""
    made = json.loads(type_("users", "token", "dora", "--note", "laptop", "--json"))
    type_("users", "revoke", "dora", made["sha256"])
    type_("ps", "--token", made["token"], code=1)
    type_("users", "list", "--token", token, code=1)


def test_versions(type_: Typed, server: live.LiveServer) -> None:
    assert "server  0 at http" in type_("version")
    assert json.loads(type_("version", "--json"))["server"] == "0"
    assert type_("--version").startswith("oarlock 0.")


def test_no_server_is_a_version_of_none(type_: Typed) -> None:
    assert json.loads(type_("version", "--json"))["server"] is None


def test_output_that_the_encoding_cannot_say_is_escaped(server: live.LiveServer) -> None:
    made = server.submit(name="x")
    server.refuse(made.id, "größe 漢")
    done = typed.run("ps", env={"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0", "LC_ALL": "C"})
    assert done.returncode == 0
    assert "\\u6f22" in done.stdout
    assert os.environ.get("OARLOCK_SERVER") is None
