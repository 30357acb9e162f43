"""Changes of a job after its submission: its priority, its pool, and the bounds of its number of workers.

Everything else of a job file stays as it was submitted: the tasks of an attempt were made from it.
"""

from __future__ import annotations

from typing import Any

import msgspec

from oarlock.spec import errors, jobfile, roles

_WORKER = roles.RoleName.WORKER


class Edit(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The fields to change: the body of `PATCH /api/v1/jobs/JOB`. An absent field stays.

    `min` and `max` bound the number of tasks of the role `worker`.
    """

    priority: int | None = None
    pool: str | None = None
    min: int | None = None
    max: int | None = None


FIELDS = tuple(field.name for field in msgspec.structs.fields(Edit))


def edited(spec: jobfile.JobSpec, edit: Edit) -> jobfile.JobSpec:
    """Return the spec with these changes: the same one where nothing changes. Raises InvalidInput without workers."""
    named = {"priority": edit.priority, "pool": edit.pool}
    changes: dict[str, Any] = {name: value for name, value in named.items() if value is not None}
    bounds = {name: value for name, value in (("min", edit.min), ("max", edit.max)) if value is not None}
    if bounds:
        worker = spec.roles.get(_WORKER)
        if worker is None:
            raise errors.InvalidInput(
                "This job has no workers, whose number could change.",
                path=next(iter(bounds)),
                hint="Only priority and pool of this job can be changed.",
            )
        changes["roles"] = spec.roles | {_WORKER: msgspec.structs.replace(worker, **bounds)}
    after = msgspec.structs.replace(spec, **changes)
    return spec if after == spec else after
