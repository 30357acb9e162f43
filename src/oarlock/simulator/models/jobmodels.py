"""What a simulated job does at a shape: how fast it advances there, and what its processes would report of it.

The simulator's own truth about jobs, kept apart from what the scheduler believes: a scheduler that fits curves to what
is reported can be wrong, as in life. Everything here is pure, and asked for often: implementations remember.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec

from oarlock.spec import curves, errors, jobfile

Shape = tuple[int, ...]
"""Devices on each node that a gang lies on, fewest first; tasks where it has no devices."""


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """`rate` in progress per second, until the progress `until`; `gain` is the progress of one step. The rest is what
    the training library would report: of a step that adds up several parts, the time of the last one, which waits.
    """

    rate: float
    until: float
    gain: float
    step_s: float
    sync_s: float
    noise: float | None = None  # gradient noise scale, in examples


class JobModel(Protocol):
    """`total` is the progress at which the job has done its work."""

    total: float

    def batch(self, devices: int) -> curves.Batch | None:
        """What the job takes on so many devices where nobody decides it; None: it does not say."""
        ...

    def pace(self, shape: Shape, batch: curves.Batch | None, progress: float) -> Pace:
        """At `progress` < `total`, with `batch` (None: its own)."""
        ...


class Scaled:
    """A job that lasts `duration_s` on `devices` devices, and is `speedup(n)` times as fast on n as on one.

    Progress is in seconds at `devices` on one node. A step takes `step_s` seconds there, and `far` times as long where
    the gang lies on several nodes. What of it is not the computation divided by the devices is waiting.
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
    """A part of every step, `serial` of it on one device, is not divided."""
    return lambda devices: 1.0 / (serial + (1.0 - serial) / devices)


def measured(speedups: tuple[float, ...]) -> Callable[[int], float]:
    """On 1, 2, 3... devices; no faster beyond the last."""
    return lambda devices: speedups[min(devices, len(speedups)) - 1] / speedups[0]


class Modelled:
    """A synchronous job that follows the model of `spec.curves` exactly, with the batch size that it is given.

    Progress is in examples at the efficiency of the batch size `asked`: the one of the whole gang that it takes where
    nobody decides. `local_most` is what one process takes at once.
    """

    def __init__(self, model: curves.Allreduce, examples: float, *, asked: int, local_most: int | None = None) -> None:
        self.total = examples
        self._model = model
        self._asked = asked
        self._local_most = local_most
        self._known: dict[tuple[Shape, curves.Batch], Pace] = {}

    def batch(self, devices: int) -> curves.Batch:
        return divided(self._asked, devices, self._local_most)

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


def lasting(model: curves.Allreduce, duration_s: float, shape: Shape, batch: jobfile.Batch) -> Modelled:
    """A job of that model that lasts `duration_s` at this shape with its own batch size."""
    most = batch.on("").local_max
    probe = Modelled(model, 1.0, asked=batch.size, local_most=most)
    examples = duration_s * probe.pace(shape, None, 0.0).rate
    return Modelled(model, examples, asked=batch.size, local_most=most)


def divided(examples: int, devices: int, local_most: int | None) -> curves.Batch:
    """A batch of the whole gang in equal parts, added up where one process cannot take its part at once."""
    if examples < 1 or devices < 1:
        raise errors.InvalidInput(f"{examples} examples on {devices} devices", hint="Both must be 1 or more.")
    part = -(-examples // devices)
    accumulate = 1 if local_most is None else -(-part // local_most)
    return curves.Batch(-(-part // accumulate), accumulate)


def _efficiency(noise: float | None, initial: int, examples: int) -> float:
    """Progress of one example in a batch of so many, against the initial batch (`spec.curves`)."""
    return 1.0 if noise is None else (noise + initial) / (noise + examples)
