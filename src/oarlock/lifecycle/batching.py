"""The batch size that the processes of an attempt are told.

A policy that chooses batch sizes decides them for a number of workers. Other policies decide none, and under all of
them an elastic gang may get another number of workers. So a decision holds only while the whole gang's batch is at
least the job file's `batch.size`. Else, and where nothing was decided, the processes take the smallest batch with
which all of them together reach it.
"""

from __future__ import annotations

import math

from oarlock.lifecycle import ends
from oarlock.spec import attempts, curves, jobfile, jobs


def told(job: jobs.Job, live: attempts.Attempt) -> curves.Batch | None:
    """Return the batch of each process, in examples; None where the job file leaves it to the script."""
    if job.spec.batch is None:
        return live.batch
    train = live.tasks if jobfile.waits(job.spec) else live.members  # no step is made without one of them
    ranks = sum(job.spec.roles[task.role].nproc for task in train if task.role in ends.COLLECTIVE_ROLES)
    if not ranks:
        return live.batch
    decided, size = live.batch, job.spec.batch.size
    if decided is not None and decided.local * decided.accumulate * ranks >= size:
        return decided
    bounds = job.spec.batch.on(live.gpu_types[0] if len(live.gpu_types) == 1 else "")
    parts = max(1, math.ceil(size / (ranks * (bounds.local_max or size))))
    return curves.Batch(max(bounds.local_min, math.ceil(size / (ranks * parts))), parts)
