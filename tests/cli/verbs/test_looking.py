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
from tests.display.samples import job, processing

from oarlock.cli import main
from oarlock.cli.following import statusline
from oarlock.cli.output import tables, terminal
from oarlock.cli.verbs.jobs import show
from oarlock.client import verbs
from oarlock.display.jobs import endings
from oarlock.display.tables import columns
from oarlock.spec import attempts, bodies, errors, holdings, intents, phases, refusals, roles
from oarlock.spec.cluster import samples


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


def test_the_end_of_an_attempt_names_the_ranks_that_failed_with_it(capsys: pytest.CaptureFixture[str]) -> None:
    peer = attempts.Exit(code=1, cause=attempts.Cause.PEER, at=1.0)
    failed = attempts.Task(role=roles.RoleName.WORKER, index=0, phase=phases.TaskPhase.FAILED, exit=peer)
    verdict = attempts.Verdict(cause=attempts.Cause.OOM, message="no memory", at=1.0, task="worker-1")
    show._verdict(attempts.Attempt(number=1, started_at=0.0, tasks=(failed,), verdict=verdict), ())
    assert "worker-0 failed because worker-1 did." in capsys.readouterr().out


def test_the_live_line_has_all_known_facts() -> None:
    full = {"total_steps": 100, "loss": 0.25, "examples_per_s": 1234.5}
    refused = refusals.Refusal(code=refusals.Code.NO_CAPACITY, message="it needs 2 GPUs, 1 is free")
    deploying = attempts.Attempt(
        number=1, started_at=1.0, tasks=tuple(attempts.Task(role=roles.RoleName.WORKER, index=i) for i in range(2))
    )
    said = [
        statusline.status(one, 160.0, columns, unicode=False)
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
        assert terminal.cells(statusline.status(one, 1e6, columns)) <= max(columns, 40)


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


def test_heavy_columns_give_way_first() -> None:
    titles = [columns.Column("NAME", weight=1), columns.Column("PHASE"), columns.Column("REASON", weight=9)]
    assert tables.fitted([10, 10, 100], titles, 80) == [10, 10, 55]
    assert tables.fitted([60, 10, 30], titles, 80) == [57, 10, 8]
    assert tables.fitted([60, 10, 30], titles, 20) == [8, 7, 0]
    assert tables.fitted([10, 10, 10], titles, 80) == [10, 10, 10]


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


def test_the_queue_says_when_each_job_should_start_or_end(
    type_: Typed, server: live.LiveServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.rig.take_time(monkeypatch)
    runs = server.submit(name="runs", roles={"worker": {"cpus": 8}}, timeout="2h")
    server.launch(runs.id)
    server.do(server.rig.store.write(lambda tx: tx.hold([whole_node(runs.id)])))
    server.process(runs.id)
    server.submit(name="waits", roles={"worker": {"cpus": 8}})
    shown = type_("ps", "--everybody", "--expected").splitlines()
    assert shown[0].split()[-1] == "EXPECTED"
    assert shown[1].endswith("Its time-out ends it within 2h.")
    assert "It should start within" in shown[2]
    assert "EXPECTED" not in type_("ps", "--everybody")
    told = json.loads(type_("ps", "--everybody", "--expected", "--json"))
    assert [one["name"] for one in told["forecasts"]["starts"]] == ["waits"]
    type_("ps", "--expected", code=2)


def test_nodes_names_the_jobs_that_held_them(type_: Typed, server: live.LiveServer) -> None:
    server.rig.clock.now = time.time()
    runs = server.submit(name="runs")
    server.launch(runs.id)
    server.rig.clock.now += 1
    shown = type_("nodes", "--since", "1h").splitlines()
    assert shown[0].split() == ["USER", "POOL", "NAME", "ATTEMPT", "FROM", "HELD"]
    assert [word for word in shown[1].split() if ":" not in word] == ["root", "default", "runs", "1", "here"]
    assert json.loads(type_("nodes", "--since", "1h", "--json"))["items"][0]["ended_at"] is None
    assert "runs" not in type_("nodes", "--since", "2h", "--until", "1h")
    assert "DEVICE-HOURS" in type_("usage", "--by", "day")


def whole_node(job: str) -> holdings.Holding:
    amount = holdings.Resources(8000, 0, 0)
    return holdings.Holding(job=job, attempt=1, role="worker", index=0, node="here", amount=amount)


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
    assert "left" in type_("show", runs.id[-6:]), "the short id is taken"
    type_("halt", runs.id[-6:])
    server.release(runs.id)
    said = type_("show", "runs")
    assert "HALTED" in said
    assert " left" not in said
    assert "step 45/100" in said
    assert "halted by root" in type_("ps").lower()


def test_show_fits_80_columns(server: live.LiveServer) -> None:
    """A long reason, environment and path. In a pipe every line is whole, so that grep finds it."""
    reason = "it needs 8 GPUs on one node; 2 are free, 6 are held by others " * 3
    made = server.submit(name="waits", env={"LONG": "word " * 30}, results="/a/very/long/path" * 6)
    server.refuse(made.id, reason.strip())
    with typed.terminal("show", "waits") as shown:
        assert shown.ended() == 0
    lines = re.sub(r"\x1b\[[0-9;]*m", "", shown.text).splitlines()
    assert max(map(len, lines)) <= 80
    assert " ".join(reason.split()) in " ".join(" ".join(lines).split())
    for words in ((), ("--events",)):
        piped = typed.run("show", "waits", *words).stdout.splitlines()
        for wanted in (reason.strip(), ("word " * 30).strip(), "/a/very/long/path" * 6):
            assert any(wanted in line for line in piped), wanted


SHOWN = """\
digits  ✗ FAILED  j-ID
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
  worker-1 failed, too.

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
    assert terminal.broken("x" * 50, 30) == ["x" * 30, "x" * 20]


def test_a_line_in_a_pipe_is_whole_unless_its_width_is_set(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    terminal.paragraph("word " * 40)
    assert capsys.readouterr().out.count("\n") == 1, "grep finds words on one line"
    monkeypatch.setenv("COLUMNS", "60")
    terminal.paragraph("word " * 40)
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 60


def test_an_empty_filtered_list_does_not_say_how_to_begin(server: live.LiveServer) -> None:
    assert "No such jobs." in typed.run("ps", "--owner", "nobody").stderr
    assert "Start one" in typed.run("ps").stderr


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


def test_a_job_is_changed_and_its_new_values_are_said(
    server: live.LiveServer, capsys: pytest.CaptureFixture[str]
) -> None:
    server.submit(name="digits", roles={"worker": {"count": 2}})
    assert main.main(["set", "digits", "--priority", "80"]) == 0
    assert capsys.readouterr().err == "digits has priority 80, pool default, 2 workers.\n"
    assert main.main(["set", "digits", "--max", "4"]) == 1
    assert "does not support `roles.worker.max`" in capsys.readouterr().err
    assert main.main(["set", "digits", "--pool", "absent"]) == 2
    assert "absent" in capsys.readouterr().err
    assert main.main(["set", "digits"]) == 2
    assert "Give --priority, --pool, --min or --max." in capsys.readouterr().err
    assert main.main(["set", "digits", "--priority", "81", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["spec"]["priority"] == 81


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
    assert told == ["one has no checkpoint: it starts again from its first step.", "one goes on: QUEUED."]
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
    assert "loss" in type_("metrics", "measured", "--ranks", "1")


def test_tensorboard_gets_event_files(type_: Typed, server: live.LiveServer, tmp_path: Path) -> None:
    server.submit(name="measured")
    where = type_("tensorboard", "measured", "--write-only", "--dir", str(tmp_path / "tb")).strip()
    files = list(Path(where).rglob("events.out.tfevents.*"))
    assert len(files) == 1
    assert struct.unpack("<Q", files[0].read_bytes()[:8])[0] > 0


@pytest.mark.parametrize(
    ("backend", "images", "said"),
    [("kubernetes", (), True), ("kubernetes", ("image:tensorboard",), False), ("local", (), False)],
)
def test_a_cluster_without_an_image_for_tensorboard_is_said(
    type_: Typed,
    server: live.LiveServer,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    backend: str,
    images: tuple[str, ...],
    said: bool,
) -> None:
    from oarlock.cli.verbs.results import tensorboard
    from oarlock.client.synchronous import clients

    about = clients.Client.server
    facts = {"backend": backend, "capabilities": images}
    monkeypatch.setattr(clients.Client, "server", lambda self: msgspec.structs.replace(about(self), **facts))
    monkeypatch.setattr(tensorboard, "starter", lambda: ["true"])
    monkeypatch.setattr(tensorboard.tunnels, "await_running", lambda client, job: False)
    server.submit(name=f"board-{backend}-{len(images)}", tensorboard=True)
    assert main.main(["tensorboard", f"board-{backend}-{len(images)}"]) == 0
    assert ("The cluster runs none beside the job" in capsys.readouterr().err) is said


def test_tensorboard_prefers_the_files_that_the_job_wrote(
    type_: Typed, server: live.LiveServer, tmp_path: Path
) -> None:
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
    assert f"  results      {place}" in endings.summary(made, None, str(place))


def test_tensorboard_that_is_not_installed_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    from oarlock.cli.verbs.results import tensorboard

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
    type_("users", "remove", "dora")
    assert "dora" not in type_("users", "list")
    type_("ps", "--token", token, code=1)
    type_("users", "remove", "dora", code=1)


def test_the_jobs_of_a_time(type_: Typed, server: live.LiveServer, capsys: pytest.CaptureFixture[str]) -> None:
    from oarlock.client.synchronous import clients

    with clients.Client() as client:
        made = client.submit({"command": "true", "name": "timed"}, directory=None)
    before, after = f"{made.created_at - 10:.1f}", f"{made.created_at + 10:.1f}"
    assert "timed" in type_("ps", "--since", before, "--until", after)
    assert "timed" not in type_("ps", "--since", after)
    assert [one["name"] for one in json.loads(type_("ps", "--since", before, "--json"))["items"]] == ["timed"]
    assert json.loads(type_("ps", "--until", before, "--json"))["items"] == []
    assert main.main(["ps", "--until", before]) == 0
    assert "Without --until there may be others." in capsys.readouterr().err
    assert main.main(["ps", "--until", "soon"]) in (1, 2)
    assert "--until" in capsys.readouterr().err


def test_the_use_of_pools_over_time(type_: Typed, server: live.LiveServer) -> None:
    one = samples.Sample(
        at=server.rig.clock.now - 60, pools={"research": samples.PoolUse({"gpus": 1.5}, {"gpus": 2.0})}
    )
    server.do(server.rig.store.write(lambda tx: tx.add_sample(one)))
    said = type_("pools", "--since", f"{server.rig.clock.now - 3600:.1f}")
    assert [line.split() for line in said.splitlines()][1] == ["research", "gpus", "1.5", "1.5", "2", "1"]


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
