"""Groups of jobs in a scenario: their number, arrivals, sizes, durations and scaling."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from oarlock.simulator.models import jobmodels
from oarlock.simulator.workloads import distributions, workload
from oarlock.spec import curves, errors, jobfile
from oarlock.spec.input import validation

COMMAND = "train"


class Model(distributions.Part, frozen=True):
    """`curves.Allreduce`, with its field names. `noise` is at the batch size of the job file."""

    compute_s: float
    compute_per_example_s: float
    near_s: float = 0.0
    near_per_device_s: float = 0.0
    far_s: float = 0.0
    far_per_device_s: float = 0.0
    overlap: float = 1.0
    noise: float | None = None


class Speed(distributions.Part, frozen=True):
    """The scaling of a job with its devices: one of these, or linear.

    `far` is the factor of a step's duration on several nodes. (`allreduce` has its own values for that.)
    """

    amdahl: float | None = None
    speedups: tuple[float, ...] | None = None
    allreduce: Model | None = None
    far: float = 1.0


class Group(distributions.Part, frozen=True):
    """`count` similar jobs. `lasts` is the duration at the requested size, on as few nodes as possible.

    `gpus` is the number of tasks, with a GPU each, that a job requests; `least` and `most` bound it. Without `gpus` the
    roles of `spec` say the size.
    """

    name: str = "job"
    count: int = 1
    arrivals: distributions.Arrivals = distributions.Arrivals()
    lasts: distributions.Distribution | distributions.Quantity = 3600.0
    gpus: distributions.Distribution | int | None = None
    least: int | None = None
    most: int | None = None
    speed: Speed = Speed()
    spec: dict[str, Any] = msgspec.field(default_factory=dict)  # fields of the job file; `command` is optional
    owner: str = workload.UNKNOWN_OWNER
    apart: bool = False  # each task is a job of its own; these work once all of them run
    types: dict[str, float] = msgspec.field(default_factory=dict)  # relative speed by type of GPU
    jitter: distributions.Quantity = 0.0  # with `apart`: tasks are submitted within this time, in any order


def arrivals(
    group: Group, *, over: Mapping[str, Any], apart: bool, seed: str, path: str, per_node: int
) -> Iterator[workload.Arrival]:
    """Yield the jobs of the group.

    `over` is merged over their job files; `per_node` is the largest number of devices per node. Each property is drawn
    from its own sequence, so that a change of one does not change another.
    """
    if not 0 < group.count <= workload.MOST_JOBS:
        raise errors.InvalidInput(
            f"{group.count} jobs", path=f"{path}.count", hint=f"From 1 to {workload.MOST_JOBS:,}."
        )
    _check_sizes(group, path)
    times = distributions.arrival_times(group.arrivals, random.Random(f"{seed}/arrivals"), f"{path}.arrivals")
    lasting = distributions.draws(group.lasts, random.Random(f"{seed}/lasts"), f"{path}.lasts")
    sizes: Iterator[float | None] = itertools.repeat(None)
    if group.gpus is not None:
        sizes = distributions.draws(group.gpus, random.Random(f"{seed}/gpus"), f"{path}.gpus")
    jitter = distributions.draws(
        distributions.Distribution(uniform=distributions.Uniform(least=0.0, most=group.jitter)),
        random.Random(f"{seed}/jitter"),
        f"{path}.jitter",
    )
    width = len(str(group.count))
    for number, at, lasts_s, size in zip(range(1, group.count + 1), times, lasting, sizes, strict=False):
        name = group.name if group.count == 1 else f"{group.name}-{number:0{width}}"
        spec = _spec(group, over, name, None if size is None else max(1, round(size)), path)
        if apart:
            yield from _separate_tasks(group, spec, name, at, lasts_s, jitter)
        else:
            job_model = _job_model(group.speed, spec, lasts_s, per_node, path)
            yield workload.Arrival(
                id=name, at=at, spec=spec, job_model=job_model, owner=group.owner, types=_types(group, path)
            )


def merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Return one table merged over another, key by key."""
    found = dict(below)
    for key, value in above.items():
        known = found.get(key)
        found[key] = merged(known, value) if isinstance(known, dict) and isinstance(value, dict) else value
    return found


def _types(group: Group, path: str) -> dict[str, float]:
    for name, times in group.types.items():
        if not 0 < times < math.inf:
            raise errors.InvalidInput(f"{times:g}", path=f"{path}.types.{name}", hint="4 is four times as fast.")
    return group.types


def _check_sizes(group: Group, path: str) -> None:
    """Check a fixed size against its bounds. A drawn size is moved within them."""
    if not isinstance(group.gpus, int):
        return
    if group.gpus < 1:
        raise errors.InvalidInput(f"{group.gpus} GPUs", path=f"{path}.gpus", hint="1 or more; leave it out for none.")
    for name, least, most in (("least", group.least, group.gpus), ("most", group.gpus, group.most)):
        if least is not None and most is not None and least > most:
            raise errors.InvalidInput(
                f"{getattr(group, name)} of {group.gpus} GPUs",
                path=f"{path}.{name}",
                hint="Write least <= gpus <= most.",
            )


def _spec(group: Group, over: Mapping[str, Any], name: str, size: int | None, path: str) -> jobfile.JobSpec:
    raw: dict[str, Any] = {"command": COMMAND, "name": name}
    if size is not None:
        least = size if group.least is None else min(size, group.least)
        most = size if group.most is None else max(size, group.most)
        raw["roles"] = {"worker": {"count": size, "min": least, "max": most, "gpus": 1}}
    try:
        return validation.decode(merged(merged(raw, group.spec), over))
    except errors.InvalidInput as error:
        error.path = f"{path}.spec.{error.path}".rstrip(".")
        raise


def _job_model(speed: Speed, spec: jobfile.JobSpec, lasts_s: float, per_node: int, path: str) -> jobmodels.JobModel:
    said = [name for name in ("amdahl", "speedups", "allreduce") if getattr(speed, name) is not None]
    if len(said) > 1:
        raise errors.InvalidInput(f"both {' and '.join(said)}", path=f"{path}.speed", hint="Give one of them.")
    devices = round(sum(role.count * role.gpus for role in spec.roles.values())) or sum(
        role.count for role in spec.roles.values()
    )
    if speed.allreduce is not None:
        if spec.batch is None:
            raise errors.InvalidInput(
                "a job that scales by `allreduce` needs a batch size", path=f"{path}.spec.batch", hint="Give its size."
            )
        model = curves.Allreduce(**{name: getattr(speed.allreduce, name) for name in Model.__struct_fields__})
        return jobmodels.with_duration(model, lasts_s, compact(devices, per_node), spec.batch)
    speedup: Callable[[int], float] = jobmodels.linear
    if speed.amdahl is not None:
        speedup = jobmodels.amdahl(_share(speed.amdahl, f"{path}.speed.amdahl"))
    if speed.speedups is not None:
        if not speed.speedups or min(speed.speedups) <= 0:
            raise errors.InvalidInput("no speeds", path=f"{path}.speed.speedups", hint="Of 1, 2, 3... devices.")
        speedup = jobmodels.from_speedups(speed.speedups)
    if not speed.far > 0:
        raise errors.InvalidInput(f"{speed.far:g}", path=f"{path}.speed.far", hint="1 costs nothing, 1.5 half more.")
    return jobmodels.Scaled(
        lasts_s, devices, speedup, far=speed.far, examples=None if spec.batch is None else spec.batch.size
    )


def compact(devices: int, per_node: int) -> jobmodels.Shape:
    """Return the shape of so many devices on as few nodes as possible."""
    if per_node < 1:
        return (devices,)
    whole, rest = divmod(devices, per_node)
    return tuple(sorted([per_node] * whole + [rest] * (rest > 0)))


def _separate_tasks(
    group: Group, spec: jobfile.JobSpec, name: str, at: float, lasts_s: float, jitter: Iterator[float]
) -> Iterator[workload.Arrival]:
    """Yield the tasks of a job as jobs of their own; the scheduler does not know that they belong together."""
    for role_name, role in spec.roles.items():
        for index in range(role.count):
            alone = {role_name: jobfile.Role(**{**_fields(role), "count": 1, "min": None, "max": None})}
            task = f"{name}-{role_name}-{index}"
            yield workload.Arrival(
                id=task,
                at=at + next(jitter),
                spec=jobfile.JobSpec(**{**_fields(spec), "name": task, "roles": alone}),
                job_model=jobmodels.Scaled(lasts_s, max(1, round(role.gpus)), jobmodels.linear),
                owner=group.owner,
                group=name,
            )


def _fields(of: Any) -> dict[str, Any]:
    return {name: getattr(of, name) for name in of.__struct_fields__}


def _share(value: float, path: str) -> float:
    if not 0 <= value <= 1:
        raise errors.InvalidInput(f"{value:g}", path=path, hint="A share of a step, from 0 to 1.")
    return value
