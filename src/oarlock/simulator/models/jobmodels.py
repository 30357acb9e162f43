"""Models of simulated jobs: the speed of a job at a shape, and the measurements that its processes would report.

They are the simulator's truth about jobs, separate from the scheduler's estimates: a scheduler that fits curves to
reports can be wrong, as in reality. Everything here is pure. Calls are frequent, so implementations cache results.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec

from oarlock.spec import curves, errors, jobfile

Shape = tuple[int, ...]
"""Devices on each node of a gang, ascending; tasks if it has no devices."""


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """The speed of a job.

    `rate` is progress per second, valid up to the progress `until`; `gain` is the progress of one step. The other
    values are those that the training library would report. If a step has accumulated parts, they hold for the last
    part, which waits for the exchange.
    """

    rate: float
    until: float
    gain: float
    step_s: float
    sync_s: float
    noise: float | None = None  # gradient noise scale, in examples


class JobModel(Protocol):
    """The model of one job. `total` is the progress at which its work is done."""

    total: float

    def batch(self, devices: int) -> curves.Batch | None:
        """Return the job's own batch on so many devices; None if it has none."""
        ...

    def pace(self, shape: Shape, batch: curves.Batch | None, progress: float) -> Pace:
        """Return the pace at `progress` < `total`, with `batch` (None: its own)."""
        ...


class Scaled:
    """A job that lasts `duration_s` on `devices` devices, and is `speedup(n)` times as fast on n devices as on one.

    Progress is in seconds at `devices` on one node. A step takes `step_s` seconds there, and `far` times as long on
    several nodes. The part of a step beyond the divided computation is reported as waiting.
    """

    def __init__(
        self,
        duration_s: float,
        devices: int,
        speedup: Callable[[int], float],
        *,
        step_s: float = 1.0,
        far: float = 1.0,
        examples: int | None = None,
    ) -> None:
        self.total = duration_s
        self._step_s = step_s
        self._speedup = speedup
        self._far = far
        self._of_one_s = step_s * speedup(devices)
        self._examples = examples

    def batch(self, devices: int) -> curves.Batch | None:
        return None if self._examples is None else curves.Batch(max(1, round(self._examples / devices)))

    def pace(self, shape: Shape, batch: curves.Batch | None, progress: float) -> Pace:
        devices = sum(shape)
        step_s = self._of_one_s / self._speedup(devices) * (self._far if len(shape) > 1 else 1.0)
        return Pace(
            rate=self._step_s / step_s,
            until=self.total,
            gain=self._step_s,
            step_s=step_s,
            sync_s=max(0.0, step_s - self._of_one_s / devices),
        )


def linear(devices: int) -> float:
    return float(devices)


def amdahl(serial: float) -> Callable[[int], float]:
    """Return the speedup of a job where the part `serial` of a step on one device is not divided."""
    return lambda devices: 1.0 / (serial + (1.0 - serial) / devices)


def from_speedups(speedups: tuple[float, ...]) -> Callable[[int], float]:
    """Return the speedup from values for 1, 2, 3... devices; it is constant beyond the last."""
    return lambda devices: speedups[min(devices, len(speedups)) - 1] / speedups[0]


class Modelled:
    """A synchronous job that follows the model of `spec.curves` exactly, with any batch size.

    Progress is in examples at the efficiency of the batch size `asked`: the job's own, for the whole gang. `local_most`
    is the largest batch that one process takes at once.
    """

    def __init__(self, model: curves.Allreduce, examples: float, *, asked: int, local_most: int | None = None) -> None:
        self.total = examples
        self._model = model
        self._asked = asked
        self._local_most = local_most
        self._known: dict[tuple[Shape, curves.Batch], Pace] = {}

    def batch(self, devices: int) -> curves.Batch:
        return divide(self._asked, devices, self._local_most)

    def pace(self, shape: Shape, batch: curves.Batch | None, progress: float) -> Pace:
        batch = batch or self.batch(sum(shape))
        found = self._known.get((shape, batch))
        if found is None:
            found = self._known[shape, batch] = self._pace(shape, batch)
        return found

    def _pace(self, shape: Shape, batch: curves.Batch) -> Pace:
        model, devices = self._model, sum(shape)
        grad_s = model.compute_s + model.compute_per_example_s * batch.local
        sync_s = self._sync_s(len(shape), devices)
        step_s = (grad_s**model.overlap + sync_s**model.overlap) ** (1.0 / model.overlap)
        examples = devices * batch.local * batch.accumulate
        gain = examples * _efficiency(model.noise, self._asked, examples)
        return Pace(
            rate=gain / ((batch.accumulate - 1) * grad_s + step_s),
            until=self.total,
            gain=gain,
            step_s=step_s,
            sync_s=step_s - grad_s,
            noise=model.noise,
        )

    def _sync_s(self, nodes: int, devices: int) -> float:
        model = self._model
        if devices == 1:
            return 0.0
        if nodes == 1:
            return model.near_s + model.near_per_device_s * (devices - 2)
        return model.far_s + model.far_per_device_s * (devices - 2)


def with_duration(model: curves.Allreduce, duration_s: float, shape: Shape, batch: jobfile.Batch) -> Modelled:
    """Return a job of that model that lasts `duration_s` at this shape with its own batch size."""
    most = batch.on("").local_max
    probe = Modelled(model, 1.0, asked=batch.size, local_most=most)
    examples = duration_s * probe.pace(shape, None, 0.0).rate
    return Modelled(model, examples, asked=batch.size, local_most=most)


def divide(examples: int, devices: int, local_most: int | None) -> curves.Batch:
    """Return a batch of the whole gang in equal parts, accumulated where a process cannot take its part at once."""
    if examples < 1 or devices < 1:
        raise errors.InvalidInput(f"{examples} examples on {devices} devices", hint="Both must be 1 or more.")
    part = -(-examples // devices)
    accumulate = 1 if local_most is None else -(-part // local_most)
    return curves.Batch(-(-part // accumulate), accumulate)


def _efficiency(noise: float | None, initial: int, examples: int) -> float:
    """Return the progress of an example in a batch of `examples`, relative to the initial batch (`spec.curves`)."""
    return 1.0 if noise is None else (noise + initial) / (noise + examples)
