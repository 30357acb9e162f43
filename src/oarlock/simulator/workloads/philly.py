"""Jobs of Microsoft's Philly clusters: `timestamp,duration,num_gpus,gpu_time,cluster`.

Other simulators use a form with `submit_time` and `num_gpu`, which is read too. Times are dates or plain seconds. Each
job becomes a gang with one device per task, with the recorded number of devices and the recorded duration.
"""

from __future__ import annotations

from pathlib import Path

from oarlock.simulator import csvfiles
from oarlock.simulator.models import jobmodels
from oarlock.simulator.workloads import workload
from oarlock.spec import jobfile, roles

COMMAND = "python train.py"
MAX_RESTARTS = 1_000_000
"""Failures of simulated processes are drawn at random, and do not mean a broken program."""

Row = tuple[float, float, int, str]
"""Submission time in seconds, duration in seconds, devices, owner."""


def read(path: Path) -> workload.Workload:
    """Return every job that had a device and a duration. Raises InvalidInput with the line's number."""
    rows = csvfiles.lines(
        path, _row, "The columns are timestamp,duration,num_gpus,... or submit_time,duration,num_gpu,..."
    )
    rows = sorted(row for row in rows if row[1] > 0 and row[2] > 0)
    start_s = rows[0][0] if rows else 0.0
    width = len(str(len(rows)))
    arrivals = [_arrival(f"p{number:0{width}}", start_s, row) for number, row in enumerate(rows, start=1)]
    return workload.build(path.stem, arrivals)


def _row(line: csvfiles.Line) -> Row:
    at, devices, owner = (
        ("timestamp", "num_gpus", "cluster") if line.has("timestamp") else ("submit_time", "num_gpu", "user")
    )
    return (
        line.instant(at),
        line.number("duration"),
        line.whole(devices),
        line.optional(owner) or workload.UNKNOWN_OWNER,
    )


def _arrival(name: str, start_s: float, row: Row) -> workload.Arrival:
    at, duration_s, devices, owner = row
    spec = jobfile.JobSpec(
        command=COMMAND,
        name=name,
        roles={roles.RoleName.WORKER: jobfile.Role(count=devices, gpus=1, cpus=1)},
        max_restarts=MAX_RESTARTS,
    )
    job_model = jobmodels.Scaled(duration_s, devices, jobmodels.linear)
    return workload.Arrival(id=name, at=at - start_s, spec=spec, job_model=job_model, owner=owner)
