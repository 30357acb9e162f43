"""Measured models return measured values, interpolate between them, and refuse values far from them."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec
import pytest

from oarlock.simulator import running, scenario
from oarlock.simulator.engine import work
from oarlock.simulator.models import jobmodels, traces
from oarlock.simulator.workloads import adaptdl, recorded
from oarlock.spec import curves, errors

LOCALS = (16, 32, 64)


def step_s(nodes: int, devices: int, local: int) -> tuple[float, float]:
    """A machine that is linear in everything: straight lines between measured points find it exactly."""
    sync = 0.0 if devices == 1 else 0.01 * nodes + 0.002 * devices / nodes
    return 0.02 + 0.001 * local + sync, sync


def write(path: Path, head: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(head)
        writer.writerows(rows)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A directory `traces` with one model, under a name that is known."""
    home = tmp_path / "traces" / "bert"
    home.mkdir(parents=True)
    placed = [(1,), (2,), (3,), (4,), (1, 1), (1, 2), (2, 1), (2, 2), (4, 4), (1, 1, 1), (4, 4, 4), (2, 2, 2, 2)]
    placed += [(1, 1, 1, 1), (4, 4, 4, 4), (1, 2, 1, 2), (1, 1, 2, 2)]
    write(
        home / "placements.csv",
        ["placement", "local_bsz", "step_time", "sync_time"],
        [("".join(map(str, one)), local, *step_s(len(one), sum(one), local)) for one in placed for local in LOCALS],
    )
    write(
        home / "scalability.csv",
        ["num_nodes", "num_replicas", "local_bsz", "step_time", "sync_time"],
        [
            (nodes, nodes * each, local, *step_s(nodes, nodes * each, local))
            for nodes in (8, 16)
            for each in (1, 2, 4)
            for local in LOCALS
        ],
    )
    for size, steps in ((32, (100, 200)), (256, (30, 55))):
        write(
            home / f"validation-{size}.csv",
            ["progress", "iteration", "metric", "grad_sqr", "grad_var"],
            [(100.0 + size / 1000, steps[0], 0.5, 2.0, 4.0), (200.0 + size / 1000, steps[1], 0.9, 1.0, 4.0 + size)],
        )
    return home.parent


@pytest.fixture
def model(directory: Path) -> traces.Model:
    return traces.load(directory)["bert"]


@pytest.mark.parametrize(
    ("shape", "local"),
    [((1,), 16), ((4,), 64), ((1, 2), 32), ((4, 4, 4, 4), 16), ((2,) * 8, 32), ((4,) * 16, 64)],
)
def test_measured_values_are_returned(model: traces.Model, shape: jobmodels.Shape, local: int) -> None:
    assert model.times(shape, local) == pytest.approx(step_s(len(shape), sum(shape), local))


@pytest.mark.parametrize(
    ("shape", "local"),
    [((4,), 24), ((4,), 100), ((4,) * 6, 32), ((2,) * 5, 48), ((1, 3) * 5, 40), ((3,) * 12, 20)],
)
def test_between_measured_values_lines_are_straight(model: traces.Model, shape: jobmodels.Shape, local: int) -> None:
    assert model.times(tuple(sorted(shape)), local) == pytest.approx(step_s(len(shape), sum(shape), local))


def test_a_smaller_batch_than_was_measured_is_no_faster(model: traces.Model) -> None:
    assert model.times((2,), 4) == model.times((2,), 16)


@pytest.mark.parametrize("shape", [(5,), (8, 8), (1, 4, 4), (4,) * 17])
def test_a_value_far_from_all_measured_ones_is_refused(model: traces.Model, shape: jobmodels.Shape) -> None:
    with pytest.raises(errors.InvalidInput, match="was not measured"):
        model.times(shape, 32)


def test_progress_in_an_epoch_is_that_of_the_slowest_batch_size(model: traces.Model) -> None:
    assert (model.initial, model.most, model.total) == (32, 256, 200.032)
    assert [model.epoch(progress) for progress in (0.0, 100.0, 100.032, 200.0)] == [0, 0, 1, 1]


def test_the_gain_of_a_larger_batch_by_hand(model: traces.Model) -> None:
    """Epoch 1 of 128 examples: 3/7 of the way from 32 to 256, so sqr 1 and var 36 + 96 = 132, scale 4."""
    job_model = traces.Trained(model, None)
    pace = job_model.pace((2, 2), curves.Batch(16, 2), 150.0)
    variance = 36 + (128 - 32) / (256 - 32) * (260 - 36)
    step, sync = step_s(2, 4, 16)
    assert pace.rate == pytest.approx((variance + 1) / (variance / 4 + 1) / (step + (step - sync)))
    assert pace.noise == pytest.approx(32 * variance)
    assert (pace.until, pace.step_s, pace.sync_s) == (200.032, pytest.approx(step), pytest.approx(sync))


@pytest.mark.parametrize(
    ("asked", "devices", "expected"),
    [
        (32, 1, curves.Batch(32)),
        (64, 1, curves.Batch(32, 2)),  # one device alone measures its noise between two parts
        (256, 1, curves.Batch(64, 4)),
        (256, 3, curves.Batch(42, 2)),  # 43 x 2 x 3 would be more than the largest size
        (256, 4, curves.Batch(64)),
        (None, 1, curves.Batch(32)),
        (None, 4, curves.Batch(16)),
    ],
)
def test_how_a_batch_is_divided(model: traces.Model, asked: int | None, devices: int, expected: curves.Batch) -> None:
    assert traces.Trained(model, asked).batch(devices) == expected


def test_it_ends_after_all_epochs(model: traces.Model) -> None:
    job_model = traces.Trained(model, 32)
    did = work.Work(job_model)
    did.start(0.0, 1, (1,), None, ready_s=0.0)
    assert did.ends_at == pytest.approx(200.032 * step_s(1, 1, 32)[0])


def workload_file(directory: Path, *lines: str) -> Path:
    path = directory.parent / "workload-1.csv"
    path.write_text("\n".join(["name,time,application,num_replicas,batch_size", *lines]) + "\n")
    return path


@pytest.mark.parametrize(
    ("freedom", "bounds", "batch", "asked"),
    [
        (recorded.Freedom.GIVEN, (4, 4, 4), None, 128),
        (recorded.Freedom.ELASTIC, (1, 1, 8), None, 128),
        (recorded.Freedom.ADAPTIVE, (1, 1, 16), (32, 256, 16, 64), None),
    ],
)
def test_the_choices_that_a_job_leaves_to_the_scheduler(directory: Path, freedom, bounds, batch, asked) -> None:
    path = workload_file(directory, "b-1,200,bert,4,128", "b-0,100,bert,1,32")
    found = recorded.read(recorded.Recorded(file=path.name), path.parent, freedom, scale=2.0)
    assert [(one.id, one.at) for one in found.arrivals] == [("b-0", 50.0), ("b-1", 100.0)]
    one = found.arrivals[1]
    role = one.spec.roles["worker"]
    assert (role.min, role.count, role.max) == bounds
    told = one.spec.batch
    assert (told and (told.size, told.max, told.local_min, told.local_max)) == batch
    assert one.job_model.asked == asked


def test_a_recorded_workload_can_be_cut(directory: Path) -> None:
    path = workload_file(directory, *(f"b-{number},{100 * number},bert,1,32" for number in range(10)))
    cut = recorded.Recorded(file=path.name, start="5m", end=800, jobs=4)
    found = recorded.read(cut, path.parent, recorded.Freedom.GIVEN, scale=1.0)
    assert [(one.id, one.at) for one in found.arrivals] == [("b-3", 0), ("b-4", 100), ("b-5", 200), ("b-6", 300)]


@pytest.mark.parametrize("cut", [{"start": "1h"}, {"end": 0}, {"start": 50, "end": 60}])
def test_a_cut_without_jobs_tells_when_there_are_some(directory: Path, cut: dict[str, object]) -> None:
    path = workload_file(directory, "b-0,0,bert,1,32", "b-1,90,bert,1,32")
    with pytest.raises(
        errors.InvalidInput,
        match=r"no job of workload-1 arrives then: the first arrives at 0.0 s, the last arrives at 1m",
    ):
        recorded.read(
            recorded.Recorded(file=path.name, **cut),
            path.parent,
            recorded.Freedom.GIVEN,
            scale=1.0,  # type: ignore[arg-type]
        )


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("b-0,100,gpt,1,32", "b-0 trains gpt"),
        ("b-0,soon,bert,1,32", "line 2: `time` is not a number: soon"),
        ("b-0,100,bert,1", "line 2: `batch_size` is empty"),
        ("b-0,100,bert,1.5,32", "`num_replicas` is not a whole number: 1.5"),
        ("b-0,nan,bert,1,32", "`time` is not a number: nan"),
    ],
)
def test_a_line_that_cannot_be_read_is_named(directory: Path, line: str, says: str) -> None:
    with pytest.raises(errors.InvalidInput, match=says):
        adaptdl.read(workload_file(directory, line), traces.load(directory), recorded.Freedom.GIVEN)


@pytest.mark.parametrize(
    ("nodes", "freedom", "refused"),
    [
        ("1x8", recorded.Freedom.GIVEN, ""),  # four are never more than four on a node
        ("4x4,1x8", recorded.Freedom.ELASTIC, "b-0 may get 8 GPUs on one node"),
        ("1x6", recorded.Freedom.ELASTIC, "b-0 may get 6 GPUs on one node"),
        ("4x4", recorded.Freedom.ADAPTIVE, ""),
    ],
)
def test_places_that_were_not_measured_are_refused_before_anything_runs(
    directory: Path, nodes: str, freedom: recorded.Freedom, refused: str
) -> None:
    path = workload_file(directory, "b-0,100,bert,4,128")
    of, over = scenario.load(path), scenario.Run(nodes=nodes, freedom=freedom)
    if not refused:
        assert scenario.case(of, path.parent, "t", "", "fifo", over).workload.arrivals
        return
    begun: list[str] = []
    of = msgspec.structs.replace(of, runs={"good": scenario.Run(), "bad": over})
    with pytest.raises(errors.InvalidInput, match=refused) as error:
        list(running.results(of, path.parent, scenario.Run(policy="fifo"), (), lambda run, jobs: begun.append(run)))
    assert "--nodes 16x4" in error.value.hint
    assert not begun, "not after the good one has run for hours"


PHILLY = """timestamp,duration,num_gpus,gpu_time,cluster
2017-10-09 07:01:55,66.0,1,66.0,11cb48
2017-10-09 06:59:55,2951.0,8,23608.0,6214e9
2017-10-09 07:00:00,0.0,1,0.0,6214e9
2017-10-09 07:00:01,10.0,0,0.0,6214e9
"""


def test_philly_jobs_come_in_the_order_of_their_time(tmp_path: Path) -> None:
    (tmp_path / "philly.csv").write_text(PHILLY)
    found = recorded.read(recorded.Recorded(file="philly.csv"), tmp_path, recorded.Freedom.GIVEN, 1.0)
    told = [(one.id, one.at, one.job_model.total, one.spec.roles["worker"].count, one.owner) for one in found.arrivals]
    assert told == [("p1", 0.0, 2951.0, 8, "6214e9"), ("p2", 120.0, 66.0, 1, "11cb48")]


def test_so_do_those_of_the_other_form(tmp_path: Path) -> None:
    text = "job_id,user,num_gpu,submit_time,iterations,model_name,duration\n7,vc,4,90,1,r,211\n8,vc,1,30,1,r,5\n"
    (tmp_path / "jobs.csv").write_text(text)
    found = recorded.read(recorded.Recorded(file="jobs.csv"), tmp_path, recorded.Freedom.GIVEN, 1.0)
    assert [(one.id, one.at, one.job_model.total) for one in found.arrivals] == [("p1", 0.0, 5.0), ("p2", 60.0, 211.0)]


@pytest.mark.parametrize(
    "times",
    [("100", "220.5"), ("20171009", "20171129.5"), ("2017-10-09T00:01:40", "2017-10-09T02:03:40.5+02:00")],
)
def test_times_are_seconds_or_dates(tmp_path: Path, times: tuple[str, str]) -> None:
    """With a byte order mark, a missing optional column, and empty lines, as spreadsheets write them."""
    rows = "\r\n\r\n".join(f"{time},10,2" for time in times)
    (tmp_path / "jobs.csv").write_text(f"timestamp,duration,num_gpus\r\n{rows}\r\n", encoding="utf-8-sig")
    found = recorded.read(recorded.Recorded(file="jobs.csv"), tmp_path, recorded.Freedom.GIVEN, 1.0)
    assert [(one.at, one.owner) for one in found.arrivals] == [(0.0, "unknown"), (120.5, "unknown")]


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ("yesterday,1,1", "line 4: `timestamp` is neither seconds nor a time as 2017-10-09 07:01:55: yesterday"),
        ("1,inf,1", "`duration` is not a number: inf"),
        ("1,1", "`num_gpus` is empty"),
    ],
)
def test_a_line_that_says_nothing_is_named_in_words(tmp_path: Path, row: str, says: str) -> None:
    (tmp_path / "jobs.csv").write_text(f"timestamp,duration,num_gpus\n1,1,1\n\n{row}\n")
    with pytest.raises(errors.InvalidInput) as error:
        recorded.read(recorded.Recorded(file="jobs.csv"), tmp_path, recorded.Freedom.GIVEN, 1.0)
    assert says in error.value.message
    assert "timestamp,duration,num_gpus" in error.value.hint


@pytest.mark.parametrize("name", ["nowhere.csv", "nowhere.yaml", "folder", "bytes.csv"])
def test_a_file_that_cannot_be_read_is_said_in_words(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "bytes.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(errors.NotFound, match=r"cannot be read: (No such file|Is a directory|it is not text)") as error:
        scenario.case(scenario.load(tmp_path / name), tmp_path, "t", "", "fifo", scenario.Run())
    assert "Errno" not in error.value.message


@pytest.mark.parametrize("text", ["", "a,b\n1,2\n"])
def test_a_file_of_unknown_columns_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.csv").write_text(text)
    with pytest.raises(errors.InvalidInput, match="not a known kind of workload"):
        recorded.read(recorded.Recorded(file="x.csv"), tmp_path, recorded.Freedom.GIVEN, 1.0)
