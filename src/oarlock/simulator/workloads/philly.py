"""Jobs of Microsoft's Philly clusters: `timestamp,duration,num_gpus,gpu_time,cluster`, or the form with `submit_time`
and `num_gpu` that other simulators use; times are dates or plain seconds. Gangs of one device a task that want what
they had, and last as long as they did.
"""

from __future__ import annotations

from pathlib import Path

from oarlock.simulator import csvfiles
from oarlock.simulator.models import jobmodels
from oarlock.simulator.workloads import workload
from oarlock.spec import jobfile, roles

COMMAND = "python train.py"
MAX_RESTARTS = 1_000_000
"""Failures of simulated processes are drawn, and mean no broken program."""

Row = tuple[float, float, int, str]
"""Submitted at, seconds; duration, seconds; devices; whose."""


def read(path: Path) -> workload.Workload:
    """Every job that had a device and lasted. Raises InvalidInput, naming the line."""
    rows = csvfiles.lines(
        path, _row, "The columns are timestamp,duration,num_gpus,... or submit_time,duration,num_gpu,..."
    )
    rows = sorted(row for row in rows if row[1] > 0 and row[2] > 0)
    start_s = rows[0][0] if rows else 0.0
    width = len(str(len(rows)))
    arrivals = [_arrival(f"p{number:0{width}}", start_s, row) for number, row in enumerate(rows, start=1)]
    return workload.made(path.stem, arrivals)


def _row(line: csvfiles.Line) -> Row:
    at, devices, owner = (
        ("timestamp", "num_gpus", "cluster") if line.has("timestamp") else ("submit_time", "num_gpu", "user")
    )
    return (
        line.instant(at),
        line.number("duration"),
        line.whole(devices),
        line.said(owner) or "somebody",
    )


def _arrival(name: str, start_s: float, row: Row) -> workload.Arrival:
    at, duration_s, devices, owner = row
    spec = jobfile.JobSpec(
        command=COMMAND,
        name=name,
        roles={roles.RoleName.WORKER: jobfile.Role(count=devices, gpus=1, cpus=1)},
        max_restarts=MAX_RESTARTS,
    )
    does = jobmodels.Scaled(duration_s, devices, jobmodels.linear)
    return workload.Arrival(id=name, at=at - start_s, spec=spec, does=does, owner=owner)
