"""Samples of the cluster over time: what each pool used and was entitled to, and the state of the devices."""

from __future__ import annotations

from typing import Annotated

import msgspec

from oarlock.api import routes
from oarlock.spec import bodies

DAY_S = 86_400.0

_Time = Annotated[float, msgspec.Meta(ge=0, le=1e12)]


class SamplesQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    since: _Time | None = None  # None: a day ago
    until: _Time | None = None  # None: now
    limit: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 288


async def show(call: routes.Call) -> bodies.Samples:
    query = call.query(SamplesQuery)
    until = call.services.clock() if query.until is None else query.until
    since = until - DAY_S if query.since is None else query.since
    found = await call.access.shared(lambda view: view.samples(since=since, until=until, limit=query.limit))
    return bodies.Samples(since=since, until=until, items=tuple(found))


ROUTES: tuple[routes.Route, ...] = (
    routes.look(
        "/api/v1/samples",
        show,
        "the use and the entitlement of each pool, and the state of the devices, every five minutes of a month",
        bodies.Samples,
        query=SamplesQuery,
    ),
)
