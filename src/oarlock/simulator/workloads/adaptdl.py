"""The workloads of Pollux (OSDI '21): `name,time,application,num_replicas,batch_size`, a line for each job.

`Freedom` sets, for all jobs, the choices that are left to the scheduler. Their speed comes from the traces.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path

from oarlock.simulator import csvfiles
from oarlock.simulator.models import traces
from oarlock.simulator.workloads import workload
from oarlock.spec import errors, jobfile, roles

COMMAND = "python train.py"
MAX_RESTARTS = 1_000_000
"""Failures of simulated processes are drawn at random, and do not mean a broken program."""


class Freedom(StrEnum):
    ADAPTIVE = "adaptive"  # the scheduler chooses devices and batch size
    ELASTIC = "elastic"  # the scheduler chooses the devices, for the file's batch size
    GIVEN = "given"  # the file's devices and batch size


def read(path: Path, models: dict[str, traces.Model], freedom: Freedom) -> workload.Workload:
    """Return the workload. Raises InvalidInput with the line's number."""
    arrivals = csvfiles.lines(
        path,
        lambda line: _arrival(line, models, freedom),
        "An AdaptDL workload has the columns name,time,application,num_replicas,batch_size.",
    )
    return workload.build(path.stem, arrivals)


def _arrival(line: csvfiles.Line, models: dict[str, traces.Model], freedom: Freedom) -> workload.Arrival:
    name, application = line.text("name"), line.text("application")
    if application not in models:
        raise errors.InvalidInput(
            f"{name} trains {application}, for which there are no traces",
            hint=f"There are traces for {', '.join(models)}.",
        )
    model = models[application]
    role, batch, asked = _asked(model, line.whole("num_replicas"), line.whole("batch_size"), freedom)
    spec = jobfile.JobSpec(
        command=COMMAND, name=name, roles={roles.RoleName.WORKER: role}, batch=batch, max_restarts=MAX_RESTARTS
    )
    return workload.Arrival(id=name, at=line.number("time"), spec=spec, job_model=traces.Trained(model, asked))


def _asked(
    model: traces.Model, replicas: int, size: int, freedom: Freedom
) -> tuple[jobfile.Role, jobfile.Batch | None, int | None]:
    """Return the job's role, the bounds on its batch size, and its own batch size."""
    if freedom is Freedom.GIVEN:
        return _workers(replicas, replicas, replicas), None, size
    if model.limits.rigid is not None:
        return _workers(1, 1, 1), None, model.limits.rigid.local
    if freedom is Freedom.ELASTIC:
        return _workers(1, 1, _most(size, model)), None, size
    batch = jobfile.Batch(size=model.initial, max=model.most, local_min=model.local_least, local_max=model.local_most)
    return _workers(1, 1, _most(model.most, model)), batch, None


def _workers(least: int, count: int, most: int) -> jobfile.Role:
    return jobfile.Role(count=count, min=least, max=most, gpus=1, cpus=1)


def _most(size: int, model: traces.Model) -> int:
    return max(1, min(traces.MOST_DEVICES, size // model.local_least))
