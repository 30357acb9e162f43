"""Device-hours and CPU-hours by user or pool: of what ended, from the store's rows; of what runs, from its holdings."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import msgspec

from oarlock.api import routes
from oarlock.spec import attempts, holdings, jobs, users


class By(StrEnum):
    USER = "user"
    POOL = "pool"


class UsageQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    since: Annotated[float, msgspec.Meta(ge=0, le=1e12)] = 0.0
    by: By = By.USER


class UsageRow(msgspec.Struct, frozen=True):
    name: str
    device_hours: float
    cpu_hours: float


class UsageList(msgspec.Struct, frozen=True):
    items: list[UsageRow]
    next: str | None = None


async def show(call: routes.Call) -> UsageList:
    query = call.query(UsageQuery)
    now = call.services.clock()
    ended, running = await call.access.usage(query.since)
    held = await call.access.shared(lambda view: view.holdings())
    by_job: dict[str, holdings.Resources] = {}
    for holding in held:
        by_job[holding.job] = by_job.get(holding.job, holdings.Resources()) + holding.amount
    sums: dict[str, tuple[float, float]] = {}
    for row in ended:
        name = row.owner if query.by is By.USER else row.pool
        _count(sums, name, row.device_seconds, row.cpu_seconds)
    for job in running:
        live, amount = job.live, by_job.get(job.id)
        if live is not None and amount is not None:
            seconds = _since(live, query.since, now)
            name = _name(job, query.by)
            _count(sums, name, amount.gpus * seconds, amount.cpus_milli / 1000 * seconds)
    return UsageList([UsageRow(name, one / 3600, other / 3600) for name, (one, other) in sorted(sums.items())])


def _since(live: attempts.Attempt, since: float, now: float) -> float:
    return max(0.0, now - max(live.started_at, since))


def _name(job: jobs.Job, by: By) -> str:
    return job.owner if by is By.USER else job.pool


def _count(sums: dict[str, tuple[float, float]], name: str, device_seconds: float, cpu_seconds: float) -> None:
    devices, cpus = sums.get(name, (0.0, 0.0))
    sums[name] = devices + device_seconds, cpus + cpu_seconds


ROUTES: tuple[routes.Route, ...] = (
    routes.Route(
        method="GET",
        path="/api/v1/usage",
        handler=show,
        needs=users.Right.VIEWER,
        summary="device-hours and CPU-hours by user or pool",
        query=UsageQuery,
        answer=UsageList,
    ),
)
