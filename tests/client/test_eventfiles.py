"""The event files that we write are those that TensorBoard reads."""

from __future__ import annotations

from pathlib import Path

from tensorboard.backend.event_processing import event_file_loader as loader
from tensorboard.compat.proto import event_pb2

from oarlock.client import answers, eventfiles


def series(name: str, *values: float | None) -> answers.Series:
    points = tuple(answers.Point(step, 100.0 + step, value) for step, value in enumerate(values))
    return answers.Series(task="worker-0", process=0, name=name, points=points)


def test_tensorboard_reads_them(tmp_path: Path) -> None:
    path = tmp_path / "events.out.tfevents.1.x"
    path.write_bytes(eventfiles.encoded([series("loss", 3.0, None, 1.5), series("größe", 1e300)]))
    found = [
        (event.step, value.tag, round(event.wall_time, 3), _number(value))
        for event in loader.RawEventFileLoader(str(path)).Load()
        for event in [_parsed(event)]
        for value in event.summary.value
    ]
    assert found == [
        (0, "größe", 100.0, float("inf")),
        (0, "loss", 100.0, 3.0),
        (2, "loss", 102.0, 1.5),
    ] or sorted(found) == sorted([(0, "loss", 100.0, 3.0), (0, "größe", 100.0, float("inf")), (2, "loss", 102.0, 1.5)])


def _parsed(raw: bytes) -> object:
    return event_pb2.Event.FromString(raw)


def _number(value: object) -> float:
    return value.simple_value  # type: ignore[attr-defined]
