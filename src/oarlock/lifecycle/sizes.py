"""How many tasks of each role an attempt has, which of an elastic job may be any number between `min` and `max`."""

from __future__ import annotations

import collections
from collections.abc import Iterable

from oarlock.spec import attempts, errors, holdings, jobs


def check(job: jobs.Job, claims: Iterable[holdings.Holding]) -> None:
    """Check that the claims are a gang of this job: each role whole, numbered from 0, within its bounds.

    Raises Conflict if they are not.
    """
    indexes: dict[str, list[int]] = {str(name): [] for name in job.spec.roles}
    for claim in claims:
        indexes.setdefault(claim.role, []).append(claim.index)
    for name, role in job.spec.roles.items():
        found = sorted(indexes.pop(str(name)))
        least = role.count if role.min is None else role.min
        most = role.count if role.max is None else role.max
        if found != list(range(len(found))) or not least <= len(found) <= most:
            raise _no_gang(job, f"{name} has the tasks {found}, and is to have {least} to {most}")
    if indexes:
        raise _no_gang(job, f"it has no role {next(iter(indexes))}")


def served_s(live: attempts.Attempt, now: float) -> float:
    """Return the device-seconds that the attempt has held by `now`; CPU-seconds where it holds no device."""
    spent = live.spent_at(now)
    return spent.device_s if live.held.devices else spent.cpu_s


def as_asked(job: jobs.Job, live: attempts.Attempt) -> bool:
    """Return whether it has as many tasks of every role as its owner would have."""
    held = collections.Counter(task.role for task in live.tasks if task.holds)
    return all(held[name] == role.count for name, role in job.spec.roles.items())


def _no_gang(job: jobs.Job, what: str) -> errors.Conflict:
    return errors.Conflict(f"that is no gang of {job.id}: {what}", hint="This is a defect: report it.")
