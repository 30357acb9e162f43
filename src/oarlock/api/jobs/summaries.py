"""Jobs in short, for lists: filtered, sorted and counted by the server."""

from __future__ import annotations

from oarlock.api import routes
from oarlock.api.jobs import jobs
from oarlock.spec import bodies, summaries


async def show(call: routes.Call) -> bodies.SummaryPage:
    which, now = await jobs.chosen(call), call.services.clock()
    found, counts = await call.access.list_and_count(which)
    items = tuple(summaries.of(job, now) for job in found)
    return bodies.SummaryPage(items, jobs.following(found, which), phases=counts, now=now)


ROUTES: tuple[routes.Route, ...] = (
    routes.look(
        "/api/v1/summaries",
        show,
        "jobs in short: filtered, sorted, counted by phase",
        bodies.SummaryPage,
        query=jobs.ListQuery,
    ),
)
