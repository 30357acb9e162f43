"""The past of the nodes: which job held which devices from one time to another, and how that ended.

It is made of the attempts that the store has counted, and of the jobs that still run. The places stand in a job's own
record, so that a removed job is missing here. All users see it, as far as they see which job holds what now.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from oarlock.api import routes
from oarlock.spec import attempts, bodies, jobs
from oarlock.store import stores

DAY_S = 86_400.0

_Time = Annotated[float, msgspec.Meta(ge=0, le=1e12)]


class HistoryQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    since: _Time | None = None  # None: a day ago
    until: _Time | None = None  # None: now
    limit: Annotated[int, msgspec.Meta(ge=1, le=5000)] = 1000


async def show(call: routes.Call) -> bodies.History:
    query = call.query(HistoryQuery)
    until = call.services.clock() if query.until is None else query.until
    since = until - DAY_S if query.since is None else query.since

    def look(view: stores.View) -> tuple[list[stores.Usage], dict[str, jobs.Job]]:
        ended = view.attempts_used(since=since, until=until, limit=query.limit + 1)
        found = {job.id: job for job in view.active()}
        for name in {one.job for one in ended[: query.limit]} - set(found):
            job = view.job(name)
            if job is not None:
                found[name] = job
        return ended, found

    ended, found = await call.access.shared(look)
    past = {(one.job, one.attempt) for one in ended[: query.limit]}
    items = [
        _held(call, job, attempt)
        for job in found.values()
        for attempt in job.attempts
        if (job.id, attempt.number) in past or (attempt.ended_at is None and attempt.started_at < until)
    ]
    items.sort(key=lambda one: (one.started_at, one.job, one.attempt))
    return bodies.History(since=since, until=until, items=tuple(items), cut=len(ended) > query.limit)


def _held(call: routes.Call, job: jobs.Job, attempt: attempts.Attempt) -> bodies.HeldBefore:
    by_node: dict[str, list[int]] = {}
    for task in attempt.tasks:
        if task.node:
            by_node.setdefault(task.node, []).extend(task.devices)
    return bodies.HeldBefore(
        **msgspec.structs.asdict(call.access.tenant(job)),
        attempt=attempt.number,
        started_at=attempt.started_at,
        ended_at=attempt.ended_at,
        outcome=job.outcome(attempt),
        places=tuple(bodies.Place(node, tuple(sorted(set(devices)))) for node, devices in by_node.items()),
    )


ROUTES: tuple[routes.Route, ...] = (
    routes.look(
        "/api/v1/history",
        show,
        "which job held which devices from one time to another",
        bodies.History,
        query=HistoryQuery,
    ),
)
