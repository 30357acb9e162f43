"""Models measured for Pollux (OSDI '21).

The measurements are the seconds per step over placements and batch sizes, and the course of training at several batch
sizes.

A directory holds one model, as the released simulator has it:

- `placements.csv` (`placement,local_bsz,step_time,sync_time`): every placement on up to four nodes; `1132` means four
  nodes with so many devices each;
- `scalability.csv` (`num_nodes,num_replicas,local_bsz,step_time,sync_time`): larger placements;
- `validation-BATCH.csv` (`progress,iteration,metric,grad_sqr,grad_var`): a line for each epoch; progress counts steps
  of the initial batch size.

Missing values are interpolated: linearly between local batch sizes; between placements first at equal devices per node
(one to four), then linearly in nodes. The released simulator does the latter over a triangulation of the same points;
where both were compared they agree within a few per cent (docs/simulator.md).
"""

from __future__ import annotations

import bisect
import csv
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from oarlock.simulator import csvfiles
from oarlock.simulator.models import jobmodels
from oarlock.spec import curves, errors

MOST_DEVICES_PER_NODE = 4
MOST_DEVICES = 64
"""Larger placements were not measured."""

Times = tuple[float, float]
"""Seconds of a step, and the part of it that waits for the exchange of gradients."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """The values that are not in the files, as in the released simulator.

    They are the epochs of training, and a limit of memory.
    """

    epochs: int
    local_most: int | None = None
    rigid: curves.Batch | None = None  # adaptive runs were measured only on one device with this batch


MODELS: dict[str, Limits] = {
    "bert": Limits(epochs=2),
    "cifar10": Limits(epochs=100),
    "deepspeech2": Limits(epochs=80),
    "imagenet": Limits(epochs=90),
    "ncf": Limits(epochs=10, rigid=curves.Batch(32768)),
    "yolov3": Limits(epochs=50, local_most=8),
}


class Model:
    """The measurements of one model. Sizes are in examples."""

    def __init__(self, directory: Path, limits: Limits) -> None:
        self.name = directory.name
        self.limits = limits
        self._steps = StepTimes(_rows(directory / "placements.csv"), _rows(directory / "scalability.csv"))
        found = {int(path.stem.partition("-")[2]): _rows(path) for path in directory.glob("validation-*.csv")}
        if not found:
            raise _unreadable(directory, "there is no validation-BATCH.csv")
        self._sizes = sorted(found)
        self._epochs = {size: [_epoch(row) for row in rows] for size, rows in found.items()}
        self.initial = self._sizes[0]
        self.most = self._sizes[-1]
        self.local_least = self._steps.local_least
        self.local_most = limits.local_most or self._steps.local_most
        ends = [min(epochs[place][0] for epochs in self._epochs.values()) for place in range(self._measured_epochs())]
        self._ends = ends[: limits.epochs]
        self.total = self._ends[-1]
        self._noises: dict[tuple[int, int], tuple[float, float]] = {}
        self._times: dict[tuple[jobmodels.Shape, int], Times] = {}

    def _measured_epochs(self) -> int:
        measured = min(len(epochs) for epochs in self._epochs.values())
        if measured < self.limits.epochs:
            raise errors.InvalidInput(
                f"{self.name} was measured for {measured} epochs, but {self.limits.epochs} are needed",
                hint="Take the files as they were released.",
            )
        return measured

    def epoch(self, progress: float) -> int:
        """Return the epoch at `progress`, from 0."""
        return bisect.bisect_right(self._ends, progress)

    def epoch_end(self, epoch: int) -> float:
        return self._ends[epoch]

    def gradient(self, examples: int, epoch: int) -> tuple[float, float]:
        """Return the square of the mean gradient, and its variance, in steps of `examples`.

        The variance is at the initial batch size.
        """
        found = self._noises.get((examples, epoch))
        if found is None:
            found = self._noises[examples, epoch] = self._gradient(examples, epoch)
        return found

    def _gradient(self, examples: int, epoch: int) -> tuple[float, float]:
        lower, upper, part = _around(self._sizes, examples)
        below, above = self._epochs[self._sizes[lower]][epoch], self._epochs[self._sizes[upper]][epoch]
        return _between(below[1], above[1], part), _between(below[2], above[2], part)

    def times(self, shape: jobmodels.Shape, local: int) -> Times:
        found = self._times.get((shape, local))
        if found is None:
            found = self._times[shape, local] = self._steps.times(shape, local)
        return found


class StepTimes:
    """Seconds of a step by shape and local batch size.

    The order of a shape's nodes does not matter: orders are averaged.
    """

    def __init__(self, placements: Sequence[dict[str, str]], scalability: Sequence[dict[str, str]]) -> None:
        shapes: dict[jobmodels.Shape, list[tuple[int, Times]]] = {}
        by_nodes: dict[int, dict[int, list[tuple[int, Times]]]] = {}
        for row in placements:
            shape = tuple(sorted(int(digit) for digit in row["placement"]))
            point = _point(row)
            shapes.setdefault(shape, []).append(point)
            if len(shape) == _MOST_PLACED_NODES:
                by_nodes.setdefault(len(shape), {}).setdefault(sum(shape), []).append(point)
        for row in scalability:
            column = by_nodes.setdefault(int(row["num_nodes"]), {})
            column.setdefault(int(row["num_replicas"]), []).append(_point(row))
        self._shapes = {shape: Line(points) for shape, points in shapes.items()}
        self._columns = {
            nodes: {devices: Line(points) for devices, points in sorted(column.items())}
            for nodes, column in sorted(by_nodes.items())
        }
        self.local_least = min(line.least for line in self._shapes.values())
        self.local_most = max(line.most for line in self._shapes.values())

    def times(self, shape: jobmodels.Shape, local: int) -> Times:
        """Return the times. Raises InvalidInput for a shape far from all measured ones."""
        line = self._shapes.get(shape)
        if line is not None:
            return line.at(local)
        if max(shape) > MOST_DEVICES_PER_NODE or sum(shape) > MOST_DEVICES or len(shape) <= _MOST_PLACED_NODES:
            raise _unmeasured(f"a gang with {'+'.join(map(str, shape))} devices on its nodes was not measured")
        known = list(self._columns)
        nodes = min(len(shape), known[-1])
        lower, upper, part = _around(known, nodes)
        per_node = sum(shape) / nodes
        below, above = (self._in_column(known[place], per_node, local) for place in (lower, upper))
        return _between(below[0], above[0], part), _between(below[1], above[1], part)

    def _in_column(self, nodes: int, per_node: float, local: int) -> Times:
        column = self._columns[nodes]
        known = list(column)
        lower, upper, part = _around(known, per_node * nodes)
        below, above = column[known[lower]].at(local), column[known[upper]].at(local)
        return _between(below[0], above[0], part), _between(below[1], above[1], part)


class Line:
    """Seconds of a step at one shape, by local batch size.

    They are linear between the measured sizes and beyond the largest; smaller sizes take as long as the smallest.
    """

    def __init__(self, points: Iterable[tuple[int, Times]]) -> None:
        measured: dict[int, list[Times]] = {}
        for local, times in points:
            measured.setdefault(local, []).append(times)
        self._sizes = sorted(measured)
        self._times = [_mean(measured[local]) for local in self._sizes]

    @property
    def least(self) -> int:
        return self._sizes[0]

    @property
    def most(self) -> int:
        return self._sizes[-1]

    def at(self, local: int) -> Times:
        lower, upper, part = _around(self._sizes, local, beyond=True)
        below, above = self._times[lower], self._times[upper]
        return _between(below[0], above[0], part), _between(below[1], above[1], part)


class Trained:
    """A `jobmodels.JobModel` of a job that trains a measured model. Progress counts steps of the initial batch size.

    `asked` is the batch size that its owner chose. None means the initial one, or the smallest larger one that so many
    devices need.
    """

    def __init__(self, model: Model, asked: int | None) -> None:
        self.model = model
        self.total = model.total
        self.asked = asked
        self._known: dict[tuple[jobmodels.Shape, curves.Batch, int], jobmodels.Pace] = {}

    def batch(self, devices: int) -> curves.Batch:
        """Return the batch, divided as in the released simulator.

        A single device accumulates at least two parts of a batch above the initial size, because its gradient noise
        could not be measured otherwise.
        """
        model = self.model
        examples = self.asked or max(model.initial, model.local_least * devices)
        part = -(-examples // devices)
        accumulate = max(-(-part // model.local_most), 2 if devices == 1 and examples > model.initial else 1)
        local = -(-part // accumulate)
        return curves.Batch(min(local, max(1, model.most // (devices * accumulate))), accumulate)

    def pace(self, shape: jobmodels.Shape, batch: curves.Batch | None, progress: float) -> jobmodels.Pace:
        batch = batch or self.batch(sum(shape))
        epoch = self.model.epoch(progress)
        found = self._known.get((shape, batch, epoch))
        if found is None:
            found = self._known[shape, batch, epoch] = self._pace(shape, batch, epoch)
        return found

    def _pace(self, shape: jobmodels.Shape, batch: curves.Batch, epoch: int) -> jobmodels.Pace:
        model = self.model
        examples = sum(shape) * batch.local * batch.accumulate
        step_s, sync_s = model.times(shape, batch.local)
        square, variance = model.gradient(examples, epoch)
        gain = (variance + square) / (variance * model.initial / examples + square)
        return jobmodels.Pace(
            rate=gain / (step_s + (batch.accumulate - 1) * (step_s - sync_s)),
            until=model.epoch_end(epoch),
            gain=gain,
            step_s=step_s,
            sync_s=sync_s,
            noise=model.initial * variance / square if square > 0 else None,
        )


def check(job: str, most: float, on_node: float) -> None:
    """Raise InvalidInput, before any run, if a job may get more devices, in all or on one node, than were measured."""
    if on_node > MOST_DEVICES_PER_NODE:
        raise _unmeasured(
            f"{job} may get {on_node:g} GPUs on one node, and no more than {MOST_DEVICES_PER_NODE} were measured"
        )
    if most > MOST_DEVICES:
        raise _unmeasured(f"{job} may get {most:g} GPUs, and no more than {MOST_DEVICES} were measured")


def load(directory: Path) -> dict[str, Model]:
    """Return every known model with a directory, by name. Raises NotFound if there is none."""
    found = {
        name: Model(directory / name, limits)
        for name, limits in MODELS.items()
        if (directory / name / "placements.csv").is_file()
    }
    if not found:
        raise errors.NotFound(
            f"{directory} has no measured models",
            hint=f"Name the directory that holds {', '.join(MODELS)} with --traces.",
        )
    return found


_MOST_PLACED_NODES = 4
_AS_RELEASED = "Take the files as they were released."


def _rows(path: Path) -> list[dict[str, str]]:
    try:
        with path.open(newline="", encoding="utf-8") as file:
            return list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise csvfiles.unreadable(path, error, _AS_RELEASED) from error


def _unmeasured(message: str) -> errors.InvalidInput:
    return errors.InvalidInput(
        message,
        path="nodes",
        hint=f"Name nodes of at most {MOST_DEVICES_PER_NODE} GPUs, {MOST_DEVICES} in all: "
        f"--nodes 16x{MOST_DEVICES_PER_NODE}.",
    )


def _unreadable(path: Path, why: str) -> errors.InvalidInput:
    return errors.InvalidInput(f"{path} cannot be read: {why}", hint=_AS_RELEASED)


def _point(row: dict[str, str]) -> tuple[int, Times]:
    return int(row["local_bsz"]), (float(row["step_time"]), float(row["sync_time"]))


def _epoch(row: dict[str, str]) -> tuple[float, float, float]:
    return float(row["progress"]), float(row["grad_sqr"]), float(row["grad_var"])


def _mean(times: Sequence[Times]) -> Times:
    return sum(one[0] for one in times) / len(times), sum(one[1] for one in times) / len(times)


def _around(known: Sequence[int], value: float, *, beyond: bool = False) -> tuple[int, int, float]:
    """Return the positions of the neighbours of `value`, and its relative position between them.

    The latter is from 0 to 1, or more if `beyond`.
    """
    upper = min(max(bisect.bisect_left(known, value), 1), len(known) - 1)
    if len(known) == 1:
        return 0, 0, 0.0
    part = (value - known[upper - 1]) / (known[upper] - known[upper - 1])
    return upper - 1, upper, max(0.0, part if beyond else min(1.0, part))


def _between(below: float, above: float, part: float) -> float:
    return below + (above - below) * part
