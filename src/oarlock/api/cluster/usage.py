"""Device-hours, CPU-hours and cost by user or pool: of ended attempts, from the store, and of running ones."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import msgspec

from oarlock.api import routes
from oarlock.spec import bodies, holdings


class By(StrEnum):
    USER = "user"
    POOL = "pool"


class UsageQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    since: Annotated[float, msgspec.Meta(ge=0, le=1e12)] = 0.0
    by: By = By.USER


async def show(call: routes.Call) -> bodies.UsageList:
    query = call.query(UsageQuery)
    now = call.services.clock()
    ended, running = await call.access.usage(query.since)
    held = await call.access.shared(lambda view: view.holdings())
    by_job: dict[str, holdings.Resources] = {}
    for holding in held:
        by_job[holding.job] = by_job.get(holding.job, holdings.Resources()) + holding.amount
    sums: dict[str, tuple[float, float, float]] = {}
    for row in ended:
        name = row.owner if query.by is By.USER else row.pool
        _count(sums, name, row.device_seconds, row.cpu_seconds, row.cost)
    for job in running:
        live, amount = job.live, by_job.get(job.id)
        if live is not None and amount is not None:
            seconds = max(0.0, now - max(live.started_at, query.since))
            name = job.owner if query.by is By.USER else job.pool
            cost = live.price_per_h * seconds / 3600
            _count(sums, name, amount.devices * seconds, amount.cpus_milli / 1000 * seconds, cost)
    rows = (bodies.UsageRow(name, devices / 3600, cpus / 3600, cost) for name, (devices, cpus, cost) in sums.items())
    return bodies.UsageList(tuple(sorted(rows, key=lambda row: row.name)))


def _count(
    sums: dict[str, tuple[float, float, float]], name: str, device_seconds: float, cpu_seconds: float, cost: float
) -> None:
    devices, cpus, costs = sums.get(name, (0.0, 0.0, 0.0))
    sums[name] = devices + device_seconds, cpus + cpu_seconds, costs + cost


ROUTES: tuple[routes.Route, ...] = (
    routes.look(
        "/api/v1/usage", show, "device-hours, CPU-hours and cost by user or pool", bodies.UsageList, query=UsageQuery
    ),
)
