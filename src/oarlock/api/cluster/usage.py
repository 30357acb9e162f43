"""Device-hours, held and useful, CPU-hours and cost by user, pool, type of GPU or day: of ended attempts, from the
store, and of running ones.

Each attempt counts by its part that lies within the asked time. Days are those of UTC.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated, NamedTuple

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
    GPU_TYPE = "gpu_type"
    DAY = "day"


NO_GPU = "none"
NOT_RECORDED = "not recorded"
"""The type of GPU in the records of an earlier version."""


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
        sums.count(_name(one, query.by), _part(one, since, now))
    return sums.told()


def _name(one: stores.Usage, by: By) -> str:
    if by is By.GPU_TYPE:
        return one.gpu_type or (NOT_RECORDED if one.device_seconds else NO_GPU)
    return one.owner if by is By.USER else one.pool


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
            sums.count(day, _part(one, first, last))
    return sums.told()


def _split(first: float, last: float) -> Iterator[tuple[str, float, float]]:
    """Yield each day between two times, with the part of it that lies between them."""
    while first < last:
        midnight = (first // DAY_S + 1) * DAY_S
        yield time.strftime("%Y-%m-%d", time.gmtime(first)), first, min(last, midnight)
        first = midnight


class _Part(NamedTuple):
    """Device-seconds held, of these useful and idle, CPU-seconds, and cost."""

    held: float = 0.0
    useful: float = 0.0
    idle: float = 0.0
    cpus: float = 0.0
    cost: float = 0.0


def _part(one: stores.Usage, first: float, last: float) -> _Part:
    """Return the part of the attempt between two times."""
    whole_s = one.ended_at - one.started_at
    part = max(0.0, min(last, one.ended_at) - max(first, one.started_at)) / whole_s if whole_s > 0 else 0.0
    held, useful = one.device_seconds, one.useful_seconds
    idle = 0.0 if useful is None else held - useful
    return _Part(*(part * amount for amount in (held, useful or 0.0, idle, one.cpu_seconds, one.cost)))


async def _running(call: routes.Call, running: list[jobs.Job], now: float) -> list[stores.Usage]:
    """Return the usage of the running jobs until now."""
    held: dict[str, holdings.Resources] = {}
    for holding in await call.access.shared(lambda view: view.holdings()):
        held[holding.job] = held.get(holding.job, holdings.Resources()) + holding.amount
    return [_until(job, job.live, held[job.id], now) for job in running if job.live is not None and job.id in held]


def _until(job: jobs.Job, live: attempts.Attempt, amount: holdings.Resources, now: float) -> stores.Usage:
    spent = msgspec.structs.replace(live, held=amount).spent_at(now)
    return stores.Usage(
        owner=job.owner,
        pool=job.pool,
        started_at=live.started_at,
        ended_at=now,
        gpu_type=", ".join(live.gpu_types),
        device_seconds=spent.device_s,
        useful_seconds=spent.useful_s,
        cpu_seconds=spent.cpu_s,
        cost=spent.cost,
    )


class _Sums:
    """Sums by name."""

    def __init__(self) -> None:
        self._by_name: dict[str, _Part] = {}

    def count(self, name: str, part: _Part) -> None:
        before = self._by_name.get(name, _Part())
        self._by_name[name] = _Part(*(one + other for one, other in zip(before, part, strict=True)))

    def told(self) -> bodies.UsageList:
        rows = (
            bodies.UsageRow(name, one.held / 3600, one.cpus / 3600, one.cost, one.useful / 3600, one.idle / 3600)
            for name, one in sorted(self._by_name.items())
        )
        return bodies.UsageList(tuple(rows))


ROUTES: tuple[routes.Route, ...] = (
    routes.look(
        "/api/v1/usage",
        show,
        "device-hours, held, useful and idle, CPU-hours and cost by user, pool, type of GPU or day",
        bodies.UsageList,
        query=UsageQuery,
    ),
)
