"""Device-hours, CPU-hours and cost by user, pool or day: of ended attempts, from the store, and of running ones.

Each attempt counts by its part that lies within the asked time. Days are those of UTC.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated

import msgspec

from oarlock.api import routes
from oarlock.spec import attempts, bodies, errors, holdings, jobs
from oarlock.store import stores

DAY_S = 86_400.0
DAYS = 30
"""The days that are shown where no time is given."""

MOST_DAYS = 400


class By(StrEnum):
    USER = "user"
    POOL = "pool"
    DAY = "day"


class UsageQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    since: Annotated[float, msgspec.Meta(ge=0, le=1e12)] | None = None
    by: By = By.USER


async def show(call: routes.Call) -> bodies.UsageList:
    query = call.query(UsageQuery)
    now = call.services.clock()
    if query.by is By.DAY:
        return await _days(call, query.since, now)
    since = query.since or 0.0
    ended, running = await call.access.usage_between(since, now)
    sums = _Sums()
    for one in [*ended, *await _running(call, running, now)]:
        sums.count(one.owner if query.by is By.USER else one.pool, *_part(one, since, now))
    return sums.told()


async def _days(call: routes.Call, since: float | None, now: float) -> bodies.UsageList:
    begin = (now // DAY_S - DAYS + 1) * DAY_S if since is None else since
    if now - begin > MOST_DAYS * DAY_S:
        raise errors.InvalidInput(
            f"The usage by day covers {MOST_DAYS} days at most.", path="since", hint="Give a later time: since=30d"
        )
    ended, running = await call.access.usage_between(begin, now)
    sums = _Sums()
    for one in [*ended, *await _running(call, running, now)]:
        for day, first, last in _split(max(one.started_at, begin), min(one.ended_at, now)):
            sums.count(day, *_part(one, first, last))
    return sums.told()


def _split(first: float, last: float) -> Iterator[tuple[str, float, float]]:
    """Yield each day between two times, with the part of it that lies between them."""
    while first < last:
        midnight = (first // DAY_S + 1) * DAY_S
        yield time.strftime("%Y-%m-%d", time.gmtime(first)), first, min(last, midnight)
        first = midnight


def _part(one: stores.Usage, first: float, last: float) -> tuple[float, float, float]:
    """Return the device-seconds, CPU-seconds and cost of the attempt between two times."""
    whole_s = one.ended_at - one.started_at
    part = max(0.0, min(last, one.ended_at) - max(first, one.started_at)) / whole_s if whole_s > 0 else 0.0
    return one.device_seconds * part, one.cpu_seconds * part, one.cost * part


async def _running(call: routes.Call, running: list[jobs.Job], now: float) -> list[stores.Usage]:
    """Return the usage of the running jobs until now."""
    held: dict[str, holdings.Resources] = {}
    for holding in await call.access.shared(lambda view: view.holdings()):
        held[holding.job] = held.get(holding.job, holdings.Resources()) + holding.amount
    return [_until(job, job.live, held[job.id], now) for job in running if job.live is not None and job.id in held]


def _until(job: jobs.Job, live: attempts.Attempt, amount: holdings.Resources, now: float) -> stores.Usage:
    seconds = max(0.0, now - live.held_since)
    return stores.Usage(
        owner=job.owner,
        pool=job.pool,
        started_at=live.started_at,
        ended_at=now,
        device_seconds=live.spent.device_s + amount.devices * seconds,
        cpu_seconds=live.spent.cpu_s + amount.cpus_milli / 1000 * seconds,
        cost=live.cost_at(now),
    )


class _Sums:
    """Sums by name: device-seconds, CPU-seconds and cost."""

    def __init__(self) -> None:
        self._by_name: dict[str, tuple[float, float, float]] = {}

    def count(self, name: str, device_seconds: float, cpu_seconds: float, cost: float) -> None:
        devices, cpus, costs = self._by_name.get(name, (0.0, 0.0, 0.0))
        self._by_name[name] = devices + device_seconds, cpus + cpu_seconds, costs + cost

    def told(self) -> bodies.UsageList:
        rows = (bodies.UsageRow(name, one / 3600, two / 3600, cost) for name, (one, two, cost) in self._by_name.items())
        return bodies.UsageList(tuple(sorted(rows, key=lambda row: row.name)))


ROUTES: tuple[routes.Route, ...] = (
    routes.look(
        "/api/v1/usage",
        show,
        "device-hours, CPU-hours and cost by user, pool or day",
        bodies.UsageList,
        query=UsageQuery,
    ),
)
