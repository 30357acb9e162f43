"""Fairness: the time that each job would have taken alone with an equal part of the cluster.

The part is 1/N of the devices, where N is the mean number of waiting and running jobs during the job's life (Themis,
NSDI '20, calls the resulting measure finish-time fairness). A job that needs more devices than its part has them for a
part of the time; an elastic job uses as many as the part has.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Sequence

from oarlock.simulator.models import jobmodels, traces
from oarlock.simulator.workloads import jobgroups, workload
from oarlock.spec import curves, jobfile

CANDIDATES = 24
"""Batch sizes that are tried for a job without a fixed one."""


class Presence:
    """The mean number of jobs between two times."""

    def __init__(self, stays: Iterable[tuple[float, float]]) -> None:
        changes: dict[float, int] = {}
        for start, end in stays:
            changes[start] = changes.get(start, 0) + 1
            changes[end] = changes.get(end, 0) - 1
        self._times = sorted(changes)
        self._counts: list[int] = []
        self._sums = [0.0]  # job-seconds up to each time
        count = 0
        for place, at in enumerate(self._times):
            if place:
                self._sums.append(self._sums[-1] + count * (at - self._times[place - 1]))
            count += changes[at]
            self._counts.append(count)

    def mean(self, start: float, end: float) -> float:
        if end <= start:
            return 1.0
        return (self._until(end) - self._until(start)) / (end - start)

    def _until(self, at: float) -> float:
        place = bisect.bisect_right(self._times, at) - 1
        return self._sums[place] + self._counts[place] * (at - self._times[place]) if place >= 0 else 0.0


class Alone:
    """The seconds that jobs take alone with a part of the cluster. Results are cached."""

    def __init__(self, per_node: int, restart_s: float) -> None:
        self._per_node = per_node
        self._restart_s = restart_s
        self._known: dict[tuple[str, int | None, int], float] = {}

    def seconds(self, arrival: workload.Arrival, part: float) -> float:
        """Return the seconds with `part` devices, which need not be a whole number."""
        least, most = bounds(arrival.spec)
        devices = min(most, max(least, int(part)))
        return self._duration_s(arrival, devices) * max(1.0, devices / part)

    def _duration_s(self, arrival: workload.Arrival, devices: int) -> float:
        job_model, shape = arrival.job_model, jobgroups.compact(devices, self._per_node)
        if not isinstance(job_model, traces.Trained):
            return self._restart_s + duration_s(job_model, shape, arrival.spec.batch)
        key = (job_model.model.name, job_model.asked, devices)
        if key not in self._known:
            self._known[key] = self._restart_s + duration_s(job_model, shape, arrival.spec.batch)
        return self._known[key]


def bounds(spec: jobfile.JobSpec) -> tuple[int, int]:
    """Return the fewest and the most devices on which the job can run; tasks if it has no devices."""
    without = 0.0 if any(role.gpus for role in spec.roles.values()) else 1.0
    weights = [(role, role.gpus or without) for role in spec.roles.values()]
    least = sum((role.count if role.min is None else role.min) * weight for role, weight in weights)
    most = sum((role.count if role.max is None else role.max) * weight for role, weight in weights)
    return max(1, round(least)), max(1, round(most))


def duration_s(job_model: jobmodels.JobModel, shape: jobmodels.Shape, batch: jobfile.Batch | None) -> float:
    """Return the whole duration at that shape. An open batch size is the best one half-way through."""
    chosen = None if batch is None or batch.max is None else _best(job_model, shape, batch)
    at, progress = 0.0, 0.0
    while progress < job_model.total:
        pace = job_model.pace(shape, chosen, progress)
        at, progress = at + (pace.until - progress) / pace.rate, pace.until
    return at


def _best(job_model: jobmodels.JobModel, shape: jobmodels.Shape, batch: jobfile.Batch) -> curves.Batch:
    devices, most = sum(shape), batch.max or batch.size
    sizes = {round(batch.size * (most / batch.size) ** (place / (CANDIDATES - 1))) for place in range(CANDIDATES)}
    possible = [divided for size in sorted(sizes) if (divided := _divided(size, devices, batch)) is not None]
    return max(possible or [job_model.batch(devices) or curves.Batch(1)], key=lambda one: _rate(job_model, shape, one))


def _divided(size: int, devices: int, batch: jobfile.Batch) -> curves.Batch | None:
    found = jobmodels.divide(max(size, devices * batch.local_min), devices, batch.on("").local_max)
    whole = found.local * found.accumulate * devices
    return found if batch.size <= whole <= (batch.max or batch.size) else None


def _rate(job_model: jobmodels.JobModel, shape: jobmodels.Shape, batch: curves.Batch) -> float:
    return job_model.pace(shape, batch, job_model.total / 2).rate


def jain(values: Sequence[float]) -> float:
    """Return Jain's index: 1 if all values are equal, 1/n if one has everything (Jain, Chiu and Hawe, 1984)."""
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares else 1.0
