"""A recorded workload: the file, the part of it that is used, and the reader.

The columns tell the kind of file: AdaptDL's has an `application`, Philly's a duration.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from oarlock.simulator import csvfiles
from oarlock.simulator.models import traces
from oarlock.simulator.workloads import adaptdl, distributions, philly, workload
from oarlock.spec import errors
from oarlock.spec.cluster import nodes

Freedom = adaptdl.Freedom


class Recorded(distributions.Part, frozen=True):
    """A recorded workload. `start` to `end`, and of that the first `jobs`, are used.

    `traces` is the directory with a folder of measurements for each model (AdaptDL). Its default is `traces` beside the
    file, or beside the file's directory.
    """

    file: str
    traces: str | None = None
    start: distributions.Quantity = 0.0
    end: distributions.Quantity | None = None
    jobs: int | None = None


def read(of: Recorded, base: Path, freedom: Freedom, scale: float) -> workload.Workload:
    """Return the workload. `base` is the base of relative paths, and `scale` the factor of the arrival rate."""
    if of.jobs is not None and of.jobs < 1:
        raise errors.InvalidInput(f"{of.jobs}", path="recorded.jobs", hint="1 or more.")
    path = base / of.file
    names = csvfiles.header(path)
    if "application" in names:
        found = adaptdl.read(path, traces.load(_traces(of, path, base)), freedom)
    elif "duration" in names:
        found = philly.read(path)
    else:
        raise errors.InvalidInput(
            f"{path} is not a known kind of workload: its columns are {', '.join(names) or 'none'}",
            hint="AdaptDL's have name,time,application,..., Philly's timestamp,duration,num_gpus,...",
        )
    return workload.cut(
        found,
        start_s=distributions.number(of.start, "recorded.start"),
        end_s=None if of.end is None else distributions.number(of.end, "recorded.end"),
        jobs=of.jobs,
        scale=scale,
    )


def check(arrivals: Iterable[workload.Arrival], machines: Sequence[nodes.Node]) -> None:
    """Raise InvalidInput if a model was not measured in all the places that it may get on `machines`."""
    devices = [len(node.devices) for node in machines]
    for one in arrivals:
        if isinstance(one.job_model, traces.Trained):
            asked = sum(role.gpus * (role.count if role.max is None else role.max) for role in one.spec.roles.values())
            traces.check(one.id, min(asked, sum(devices)), min(asked, max(devices)))


def _traces(of: Recorded, path: Path, base: Path) -> Path:
    if of.traces is not None:
        return base / of.traces
    near = [path.parent / "traces", path.parent.parent / "traces"]
    found = next((place for place in near if place.is_dir()), None)
    if found is None:
        raise errors.NotFound(
            f"{path} names measured models, and there is no directory `traces` near it",
            hint="Name the directory that has a folder for each model with --traces.",
        )
    return found
