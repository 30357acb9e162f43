"""Metrics of a job: thinned series of numbers, ready to be drawn. Numbers that are not finite become null."""

from __future__ import annotations

from typing import Annotated

import msgspec

from oarlock.api import routes
from oarlock.data import storage

MAX_POINTS = 10_000
MAX_GROUP = 1_000
MAX_CURSOR = 15_000
"""The most characters of a cursor, which is part of a URL."""


class MetricsQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    name: tuple[str, ...] = ()
    points: Annotated[int, msgspec.Meta(ge=1, le=MAX_POINTS)] = 500
    first_step: Annotated[int, msgspec.Meta(ge=0, le=2**62)] = storage.ALL_STEPS[0]
    last_step: Annotated[int, msgspec.Meta(ge=0, le=2**62)] | None = None
    ranks: Annotated[int, msgspec.Meta(ge=1, le=2**31)] | None = None  # None: all
    series: bool = True
    after: Annotated[str, msgspec.Meta(max_length=MAX_CURSOR)] | None = None
    group: Annotated[int, msgspec.Meta(ge=0, le=MAX_GROUP)] = 0


class MetricsAnswer(msgspec.Struct, frozen=True):
    """The names of all metrics of the job, and the series of the requested ones.

    `after` and `groups` where the request has an `after`.
    """

    names: list[str]
    series: list[storage.Series]
    after: str | None = None
    groups: int | None = None


async def show(call: routes.Call) -> MetricsAnswer:
    query = call.query(MetricsQuery)
    job = await call.access.job(call.path["job"])
    names = await call.services.metrics.names(job.id)
    if query.after is not None:
        new = await call.services.metrics.news(job.id, query.after, points=query.points, group=query.group)
        return MetricsAnswer(names, new.series, new.after, new.groups)
    steps = (query.first_step, storage.ALL_STEPS[1] if query.last_step is None else query.last_step)
    wanted = list(query.name) or None
    if not query.series:
        return MetricsAnswer(names, [])
    found = await call.services.metrics.series(job.id, wanted, points=query.points, steps=steps, ranks=query.ranks)
    return MetricsAnswer(names, found)


ROUTES: tuple[routes.Route, ...] = (
    routes.look(
        "/api/v1/jobs/{job}/metrics",
        show,
        "series of numbers that the job reported, thinned to `points`",
        MetricsAnswer,
        query=MetricsQuery,
        tensorboard=True,
    ),
)
