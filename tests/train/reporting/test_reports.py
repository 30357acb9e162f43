"""The report files are what docs/agent-protocol.md says, whatever is logged and however the process ends."""

from __future__ import annotations

import errno
import io
import json
import math
import os
import struct
import subprocess
import sys
import threading
import time
import types
from pathlib import Path
from typing import Any

import pytest
import torch

from oarlock.train import errors
from oarlock.train.reporting import fetching, progress, reports


def frames(content: bytes) -> list[tuple[int, float, dict[str, float]]]:
    """(step, time, values) of each row: a reader written from the protocol's page alone."""
    rows, schemas, place = [], {}, 0
    while place < len(content):
        kind, length = struct.unpack_from("<BI", content, place)
        payload = content[place + 5 : place + 5 + length]
        assert len(payload) == length, "whole frames only"
        place += 5 + length
        if kind == 1:
            schema = json.loads(payload)
            schemas[schema["id"]] = schema["names"]
        else:
            assert kind == 2
            number, step, when = struct.unpack_from("<HQd", payload)
            names = schemas[number]
            rows.append((step, when, dict(zip(names, struct.unpack_from(f"<{len(names)}d", payload, 18), strict=True))))
    return rows


def events(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def opened(folder: Path) -> reports.Reports:
    return reports.Reports(events=folder / "events-0.jsonl", sinks=[reports.MetricFrames(folder / "metrics-0.bin")])


def test_the_thread_keeps_apart_from_captures_before_it_measures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The noise is on the GPU, too: a script that logs no values of the GPU may capture a graph meanwhile."""
    done: list[str] = []

    def note(what: str) -> None:
        if threading.current_thread() is not threading.main_thread():
            done.append(what)

    monkeypatch.setattr(fetching, "_keep_apart", lambda _: note("apart"))
    ours = opened(tmp_path)
    time.sleep(2 * reports.FLUSH_S)
    assert done == [], "CUDA is not in use"
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    pace = types.SimpleNamespace(since=lambda: types.SimpleNamespace(step_s=1, sync_s=0, data_s=0, sent_bytes=0))
    ours.progress.pace, ours.progress.measure_noise = pace, lambda: note("measured")  # type: ignore[assignment]
    for ours.progress.step in range(1, 100):
        if "measured" in done:
            break
        time.sleep(0.1)
    ours.close()
    assert done[:2] == ["apart", "measured"]
    assert done.count("apart") == 1


def test_rows_come_out_as_they_went_in(tmp_path: Path) -> None:
    before = time.time()
    ours = opened(tmp_path)
    total = torch.tensor(1.0)
    ours.log(1, {"loss": 0.5, "count": 3, "good": True})
    ours.log(2, {"accuracy": total, "double": torch.tensor([2.5], dtype=torch.float64)})
    total += 1  # in place: what was logged is what it was then
    ours.log(3, {"loss": torch.tensor(float("nan"), requires_grad=True), "count": 1 << 40, "good": -math.inf})
    ours.close()
    ours.close()
    rows = frames((tmp_path / "metrics-0.bin").read_bytes())
    assert [step for step, _, _ in rows] == [1, 2, 3]
    assert all(before <= when <= time.time() for _, when, _ in rows)
    assert rows[0][2] == {"loss": 0.5, "count": 3, "good": 1}
    assert rows[1][2] == {"accuracy": 1.0, "double": 2.5}
    assert math.isnan(rows[2][2].pop("loss"))
    assert rows[2][2] == {"count": 2.0**40, "good": -math.inf}


@pytest.mark.parametrize("value", [torch.zeros(2), "high", None, [1.0], torch.zeros(0)])
def test_a_value_that_is_not_a_number_is_refused_with_its_name(tmp_path: Path, value: object) -> None:
    ours = opened(tmp_path)
    with pytest.raises(errors.ReportError, match=r"^spread .*(log one number|log a number)"):
        ours.log(1, {"loss": 1.0, "spread": value})
    ours.close()
    assert frames((tmp_path / "metrics-0.bin").read_bytes()) == []


def test_no_flush_is_needed(tmp_path: Path) -> None:
    ours = opened(tmp_path)
    ours.log(1, {"loss": 1.0})
    deadline = time.monotonic() + 240
    while not frames((tmp_path / "metrics-0.bin").read_bytes()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    ours.close()


def test_a_large_amount_is_written_before_its_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reports, "FLUSH_S", 3600.0)
    ours = opened(tmp_path)
    for step in range(reports.FLUSH_BYTES // 26 + 1):
        ours.log(step, {"loss": 1.0})
    deadline = time.monotonic() + 240
    while not (tmp_path / "metrics-0.bin").stat().st_size:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    ours.close()
    assert len(frames((tmp_path / "metrics-0.bin").read_bytes())) == reports.FLUSH_BYTES // 26 + 1


SCRIPT = """
import os, sys
sys.modules["torch"] = None  # an import of torch would fail
from pathlib import Path
from oarlock.train import errors
from oarlock.train.checkpointing import manifests
from oarlock.train.reporting import progress, reports, tensorboard
folder = Path(sys.argv[1])
sinks = [reports.MetricFrames(folder / "metrics-0.bin"), tensorboard.EventFile(folder)]
ours = reports.Reports(events=folder / "events-0.jsonl", sinks=sinks)
ours.event("hello", library=reports.VERSION, can_rejoin=False, can_stack=False)
ours.log(1, {"loss": 2.0})
if os.fork() == 0:
    sys.exit()  # a child that ends must not write its parent's rows
os.wait()
sys.exit(3)
"""


def test_without_torch_and_at_an_exit_without_notice(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, tmp_path], capture_output=True, text=True, check=False, timeout=280
    )
    assert done.returncode == 3, done.stderr
    assert [(step, values) for step, _, values in frames((tmp_path / "metrics-0.bin").read_bytes())] == [
        (1, {"loss": 2.0})
    ]
    assert [each["event"] for each in events(tmp_path / "events-0.jsonl")] == ["hello"]


def test_progress_is_told_when_there_is_some_and_at_most_twice_a_second(tmp_path: Path) -> None:
    ours = opened(tmp_path)
    ours.begin(100, 1000)
    for step in range(101, 200):
        ours.progress.step, ours.progress.examples, ours.progress.epoch = step, step * 10, 3
        ours.log(step, {"loss": 1.0 / step, "other": 1.0})
        ours.flush()
        time.sleep(0.012)
    ours.close()
    told = events(tmp_path / "events-0.jsonl")
    assert [each["event"] for each in told] == ["progress"] * len(told)
    times = [each["time"] for each in told]
    assert len(told) >= 1
    assert all(later - earlier > 0.9 for earlier, later in zip(times, times[2:], strict=False))
    last = told[-1]
    assert (last["step"], last["total_steps"], last["epoch"]) == (199, None, 3)
    assert last["loss"] == pytest.approx(1 / 199)
    assert 0 < last["examples_per_s"] < 2000, "examples of an earlier attempt are no speed of this one"


def test_not_a_number_is_not_json() -> None:
    unknown = progress.Progress(step=1, loss=math.nan, examples_per_s=math.inf)
    assert unknown.fields() == {"step": 1, "total_steps": None}


def test_a_full_disk_is_said_once_and_leaves_whole_frames(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ours = opened(tmp_path)
    ours.log(1, {"loss": 1.0})
    ours.flush()
    write = os.write

    def half(descriptor: int, content: bytes) -> int:
        """Some bytes fit, then no more."""
        monkeypatch.setattr(os, "write", full)
        return write(descriptor, content[:7])

    def full(descriptor: int, content: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", half)
    for step in (2, 3):
        ours.log(step, {"loss": 2.0})
        ours.flush()
    monkeypatch.setattr(os, "write", write)
    ours.log(4, {"loss": 3.0})
    ours.close()
    assert [step for step, _, _ in frames((tmp_path / "metrics-0.bin").read_bytes())] == [1, 2, 3, 4]
    said = capsys.readouterr().err
    assert said.count("MetricFrames cannot be written (") == 1


def test_a_value_that_cannot_be_fetched_is_said_once_and_the_training_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(reports, "FLUSH_S", 3600.0)  # the thread leaves the rows to the calls below
    ours = opened(tmp_path)
    for step in (1, 2):
        ours.log(step, {"loss": torch.zeros((), device="meta")})  # it has no values
        ours.event("checkpoint", step=step)
    ours.log(3, {"loss": 3.0})
    ours.flush()
    ours.log(4, {"loss": torch.zeros((), device="meta")})
    ours.close()
    assert [each["event"] for each in events(tmp_path / "events-0.jsonl")] == ["checkpoint"] * 2
    assert [step for step, _, _ in frames((tmp_path / "metrics-0.bin").read_bytes())] == [3]
    assert capsys.readouterr().err.count("oarlock.train: reports cannot be written (") == 1


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_has_one_line_that_is_rewritten() -> None:
    stream = Terminal()
    line = progress.Line(stream)
    now = progress.Progress(step=5, total_steps=20, epoch=1, loss=0.12345, examples_per_s=1234.5)
    line.show(now, last=False)
    now.step = 6
    line.show(now, last=False)  # too soon
    now.step = 7
    line.show(now, last=True)
    line.close()
    shown = "\r\x1b[Kstep {}/20  epoch 1  loss 0.1235  1,234 examples/s"
    assert stream.getvalue() == shown.format(5) + shown.format(7) + "\n"


def test_a_log_file_has_a_line_from_time_to_time(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    line = progress.Line(stream)
    for step in range(1, 100):
        line.show(progress.Progress(step=step), last=False)
    assert stream.getvalue() == "", "nothing in the first ten seconds"
    line.show(progress.Progress(step=100), last=True)
    assert stream.getvalue() == "step 100\n"


def test_the_version_is_the_package_s() -> None:
    project = (Path(__file__).parents[3] / "pyproject.toml").read_text()
    assert f'version = "{reports.VERSION}"' in project
