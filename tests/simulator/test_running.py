"""From a file to a table, pictures and a page, with the real scheduler; and the numbers of the table by hand."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from oarlock.cli import main
from oarlock.cli.output import runtables
from oarlock.cli.verbs.cluster import simulate
from oarlock.simulator import running, scenario
from oarlock.simulator.outcomes import fairness, outcome
from oarlock.simulator.reports import charts, comparison, summary
from oarlock.spec import errors

SCENARIO = """
nodes: 2x2
jobs:
  - {name: j, count: 12, arrivals: {poisson: {per_h: 30}}, lasts: {uniform: {least: 60, most: 600}},
     gpus: {choice: {values: [1, 2, 3]}}}
run: {policy: fifo}
"""


@pytest.fixture
def workload(tmp_path: Path) -> Path:
    path = tmp_path / "few.yaml"
    path.write_text(SCENARIO)
    return path


def story(job: str, arrived: float, started: float, ended: float | None, **others: object) -> outcome.JobStory:
    fields: dict = {"phase": "COMPLETED" if ended else "QUEUED", "starts": 1, "alone_s": 100.0} | others
    return outcome.JobStory(job=job, arrived=arrived, first_start=started, ended=ended, **fields)


def test_the_numbers_of_the_table_by_hand() -> None:
    stories = (
        story("a", 0.0, 0.0, 100.0, held_device_s=200.0, advanced_device_s=150.0),
        story("b", 10.0, 110.0, 310.0, starts=3, waited_s=120.0, held_device_s=400.0, advanced_device_s=400.0),
        story("c", 20.0, 1020.0, 1220.0, lost_device_s=50.0, advanced_device_s=250.0, held_device_s=300.0),
        story("d", 30.0, 30.0, None, held_device_s=100.0),
    )
    found = outcome.Outcome(
        workload="w", run="r", settings={}, devices=2, over=1500.0, stories=stories, spans=(), faults={"nodes_lost": 2}
    )
    told = summary.of(found)
    assert (told.jobs, told.completed, told.unfinished, told.failed) == (4, 3, 1, 0)
    assert told.completion_mean_s == pytest.approx((100 + 300 + 1200) / 3)
    assert told.completion_median_s == 300.0
    assert told.completion_p99_s == pytest.approx(300 + 0.98 * 900)
    assert told.makespan_s == 1500.0
    assert told.held_share == pytest.approx(1000 / 3000)
    assert told.useful_share == pytest.approx(750 / 3000)
    assert (told.restarts, told.restarts_per_job) == (2, 0.5)
    assert told.queued_mean_s == pytest.approx((0 + 100 + 1000 + 0) / 4)
    assert told.queued_long_share == 0.25
    assert told.slower_share == pytest.approx(2 / 3)
    assert told.slowdown_median == 3.0
    assert told.jain == pytest.approx((1 + 3 + 12) ** 2 / (3 * (1 + 9 + 144)))


@pytest.mark.parametrize(("values", "expected"), [([5, 5, 5], 1.0), ([1, 0, 0, 0], 0.25), ([0, 0], 1.0)])
def test_jains_index(values: list[float], expected: float) -> None:
    assert fairness.jain(values) == pytest.approx(expected)


def test_how_many_are_there_on_average() -> None:
    presence = fairness.Presence([(0.0, 10.0), (5.0, 15.0), (5.0, 6.0)])
    assert presence.mean(0.0, 10.0) == pytest.approx((10 + 5 + 1) / 10)
    assert presence.mean(12.0, 14.0) == 1.0
    assert presence.mean(5.5, 5.75) == 3.0


def test_a_job_alone_with_its_part(tmp_path: Path) -> None:
    """Two devices each of two nodes: a rigid gang of three has them for part of the time, an elastic one fewer."""
    text = """
    nodes: 2x2
    jobs:
      - {name: rigid, lasts: 100, gpus: 3}
      - {name: elastic, lasts: 100, gpus: 3, least: 1}
    """
    (tmp_path / "s.yaml").write_text(text)
    case = scenario.case(scenario.load(tmp_path / "s.yaml"), tmp_path, "", "", None, scenario.Run())
    elastic, rigid = case.workload.arrivals
    alone = fairness.Alone(2, restart_s=30.0)
    assert alone.seconds(rigid, 2.0) == pytest.approx((30 + 100) * 1.5)
    assert alone.seconds(elastic, 2.0) == pytest.approx(30 + 150)
    assert alone.seconds(elastic, 0.5) == pytest.approx((30 + 300) * 2)
    assert alone.seconds(rigid, 4.0) == pytest.approx(130)


def told(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main.main(["simulate", *words])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_a_table_for_people(workload: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = told(capsys, str(workload), "--policy", "fifo", "--policy", "las", "--seed", "3")
    assert code == 0
    lines = {line[:30].strip(): line[30:].split() for line in out.splitlines()}
    assert lines[""] == ["fifo", "las"]
    assert lines["completed"] == ["12", "12"]
    assert "time of one, 99 % within" in out
    assert "Simulating fifo: 12 jobs." in err


def test_numbers_for_programs(workload: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = told(capsys, str(workload), "--json", "--restart", "1m", "--set", "las.band1_s=100", "--nodes", "4x1")
    (report,) = json.loads(out)
    assert report["figures"]["completed"] == 12
    assert report["settings"]["restart_s"] == "60.0"
    assert report["settings"]["policies"] == "{'las': {'band1_s': 100.0}}"
    assert report["measured"]["plans"] > 12


class Impatient(simulate.Watch):
    """A user presses Ctrl-C during the second run."""

    def begin(self, run: str, jobs: int) -> Any:
        heard = super().begin(run, jobs)

        def pressed(now_s: float, ended: int, total: int) -> None:
            heard(now_s, ended, total)
            if run == "las" and ended == 3:
                raise KeyboardInterrupt

        return pressed


@pytest.mark.parametrize("flags", [(), ("--json",)])
def test_an_interrupted_simulation_tells_its_progress(
    workload: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, flags: tuple[str, ...]
) -> None:
    monkeypatch.setattr(simulate, "Watch", Impatient)
    code, out, err = told(capsys, str(workload), "--policy", "fifo", "--policy", "las", "--policy", "fair", *flags)
    assert code == 130
    (line,) = [line for line in err.splitlines() if line.startswith("Interrupted")]
    assert re.fullmatch(r"Interrupted: las was at [0-9ms. ]+, with 3 of 12 jobs over; 1 of 3 runs done\.", line), line
    assert out.splitlines()[0].split() == ["fifo"] if not flags else not out
    assert "Simulating fair" not in err


def test_an_interrupt_while_the_workload_is_read_is_answered(
    workload: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(_: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("oarlock.simulator.scenario.load", load)
    code, out, err = told(capsys, str(workload))
    assert (code, out, err) == (130, "", "\nInterrupted.\n")


def test_pictures_and_one_page(workload: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "found" / "here"
    told(capsys, str(workload), "--policy", "fifo", "--policy", "las", "--out", str(out))
    names = sorted(path.name for path in out.iterdir())
    assert names == [
        "completion.png",
        "gantt-fifo.png",
        "gantt-las.png",
        "index.html",
        "outcome-fifo.json",
        "outcome-las.json",
        "report.json",
        "utilisation.png",
    ]
    for name in names:
        if name.endswith(".png"):
            assert (out / name).read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    page = (out / "index.html").read_text()
    assert page.count("data:image/png;base64,") == 4
    assert "http" not in page
    assert "<td>time to the end, mean</td>" in page


def test_a_directory_that_cannot_be_written_is_refused_before_anything_runs(
    workload: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = told(capsys, str(workload), "--out", str(workload))
    assert (code, "Name another directory with --out." in err, "Simulating" in err) == (1, True, False)


def test_figures_of_jobs_that_never_ended_are_left_out(workload: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A mean of 0 s would be the best of all."""
    _, out, _ = told(capsys, str(workload), "--nodes", "1x0", "--until", "1h", "--policy", "las", "--policy", "las")
    lines = {line[:30].strip(): line[30:].split() for line in out.splitlines()}
    assert lines[""] == ["las"], "the same policy twice is one"
    about = (
        "time to the end, mean",
        "time to the end, 99 % within",
        "wait for first start, mean",
        "waited over 15 minutes",
        "slower than an equal share",
    )
    assert [lines[one] for one in about] == [["-"]] * len(about)


def test_the_same_seed_gives_the_same_files(workload: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for place in ("one", "two"):
        told(capsys, str(workload), "--seed", "9", "--job-mtbf", "20m", "--out", str(tmp_path / place))
    for name in ("completion.png", "utilisation.png", "gantt-fifo.png", "outcome-fifo.json"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes(), name


def test_without_matplotlib_the_table_works_and_the_error_names_the_package(workload: Path, tmp_path: Path) -> None:
    """In a process of its own, where the import fails."""
    code = (
        "import sys; sys.modules.update({'matplotlib': None, 'numpy': None}); from oarlock.cli import main;"
        f"words = ['simulate', {str(workload)!r}];"
        "table = main.main(words); sys.exit(10 * table + main.main([*words, '--out', 'nowhere']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert "time to the end, mean" in done.stdout
    assert "[simulate]'" in done.stderr
    assert done.returncode == 1
    assert not (tmp_path / "nowhere").exists()


def test_an_unknown_policy_is_refused_before_any_run(workload: Path) -> None:
    begun = []

    def watch(run: str, jobs: int):
        begun.append(run)
        return lambda now_s, ended, total: None

    with pytest.raises(errors.InvalidInput, match="there is no policy 'fiifo'"):
        list(running.results(scenario.load(workload), workload.parent, scenario.Run(), ("fifo", "fiifo"), watch))
    assert begun == []


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--jobs", "3"], "--jobs, --from, --to and --traces need a recorded workload"),
        (["--round", "0"], "1 second or more"),
        (["--set", "las=3"], "'las=3' is not a parameter with its value"),
        (["--set", "las.frist_s=3"], "las has no parameter 'frist_s'"),
        (["--set", "lsa.band1_s=3"], "there is no policy 'lsa'"),
        (["--nodes", "lots"], "'lots' does not describe nodes"),
        (["--launch-failures", "2"], "launch_failures"),
        (["--nodes", "1000000x8"], "1,000,000 nodes"),
    ],
)
def test_a_wrong_argument_is_named(workload, capsys, words: list[str], says: str) -> None:
    code, out, err = told(capsys, str(workload), *words)
    assert (code, out) == (2, "")
    assert says in err


def test_a_missing_file_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = told(capsys, str(tmp_path / "none.yaml"))
    assert code == 1
    assert "none.yaml cannot be read" in err


def test_a_chart_of_nothing_and_of_one_short_job() -> None:
    empty = outcome.Outcome(workload="w", run="r", settings={}, devices=0, over=0.0, stories=(), spans=())
    for drawn in (charts.gantt(empty), charts.utilisation([empty]), charts.completion([empty])):
        assert drawn.startswith(b"\x89PNG")
    assert comparison.table([]) == ([""], [])
    assert charts.steps([(1.0, 3.0, 2), (2.0, 3.0, 1), (5.0, 5.0, 9)]) == [(0.0, 0), (1.0, 2), (2.0, 3), (3.0, 0)]


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def test_a_line_on_a_terminal_shows_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    seen = Terminal()
    watch = simulate.Watch(seen)
    heard = watch.begin("las", 4)
    heard(7200.0, 1, 4)
    heard(7201.0, 1, 4)  # too soon to be drawn again
    heard(9000.0, 4, 4)
    watch.end()
    lines = seen.getvalue().split("\r")
    assert [line.split("]")[1].split("  ")[1:3] for line in lines if "jobs" in line] == [
        ["1/4 jobs", "2h 00m in 0 s\x1b[K"],
        ["4/4 jobs", "2h 30m in 0 s\x1b[K"],
    ]
    assert lines[-1] == "\x1b[K"
    assert all(len(line) < 110 for line in lines)


def test_runs_that_do_not_fit_side_by_side_come_below_each_other() -> None:
    assert runtables.side_by_side([30, 10, 10, 10, 10, 10], 80) == [[1, 2, 3, 4], [5]]
    assert runtables.side_by_side([30, 10, 90, 10], 80) == [[1], [2], [3]]
    assert runtables.side_by_side([0], 80) == []
