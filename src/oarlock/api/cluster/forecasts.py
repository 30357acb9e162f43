"""The forecast of the whole cluster: expected starts of all waiting jobs, expected ends of all running ones.

All users see when which job is expected where, as they see which job holds what. Only those who may see a job are told
why it waits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from oarlock.api import routes
from oarlock.api.services import forecaster
from oarlock.scheduler import gangs
from oarlock.spec import bodies, holdings, jobs, plans


async def show_all(call: routes.Call) -> bodies.Forecasts:
    services = call.services
    now = services.clock()
    told = await services.forecaster.all(call.access, services.rules(), now)
    active = await call.access.shared(lambda view: {job.id: job for job in view.active()})
    if told is None:
        return _uncomputed(call, active, now)
    starts = [
        _start(call, active[job_id], forecast)
        for job_id, forecast in told.forecasts.items()
        if job_id in active and forecaster.waits(active[job_id])
    ]
    running = ((active[one.job], one) for one in told.look.snapshot.running if one.job in active)
    ends = [
        _end(call, job, None if job.id in told.look.bounded else one.expected_end, one.latest_end)
        for job, one in running
    ]
    return bodies.Forecasts(at=told.at, starts=_ordered(starts), ends=tuple(ends), seq=told.look.seq)


def _uncomputed(call: routes.Call, active: Mapping[str, jobs.Job], now: float) -> bodies.Forecasts:
    """Return the last refusals, and the ends that need no forecast."""
    waiting = [_start(call, job, forecaster.untold(job)) for job in active.values() if forecaster.waits(job)]
    live = [job for job in active.values() if job.live is not None]
    ends = [
        _end(call, job, gangs.expected_end(job) if forecaster.tells(job) else None, gangs.latest_end(job))
        for job in live
    ]
    return bodies.Forecasts(at=now, starts=_ordered(waiting), ends=tuple(ends), computed=False)


def _start(call: routes.Call, job: jobs.Job, forecast: plans.Forecast) -> bodies.ExpectedStart:
    return bodies.ExpectedStart(
        **msgspec.structs.asdict(call.access.tenant(job)),
        when=forecast.when,
        expected=forecast.expected,
        starts=forecast.starts,
        message=forecast.message if call.access.sees(job) else "",
        start=forecast.start,
        latest=forecast.latest,
        position=forecast.position,
        places=places(forecast.placement),
    )


def _end(call: routes.Call, job: jobs.Job, end: float | None, latest: float | None) -> bodies.ExpectedEnd:
    return bodies.ExpectedEnd(**msgspec.structs.asdict(call.access.tenant(job)), end=end, latest=latest)


def _ordered(starts: Iterable[bodies.ExpectedStart]) -> tuple[bodies.ExpectedStart, ...]:
    """Return those that start now, those of the queue in its order, and those that never start."""
    order = {plans.When.NOW: 0, plans.When.LATER: 1, plans.When.NEVER: 2}
    return tuple(sorted(starts, key=lambda one: (order[one.when], one.position)))


def places(held: Iterable[holdings.Holding]) -> tuple[bodies.Place, ...]:
    """Return the nodes of the holdings, each once, with all devices on it."""
    found: dict[str, list[int]] = {}
    for one in held:
        found.setdefault(one.node, []).extend(one.devices)
    return tuple(bodies.Place(node, tuple(sorted(set(devices)))) for node, devices in found.items())


ROUTES: tuple[routes.Route, ...] = (
    routes.look(
        "/api/v1/forecasts",
        show_all,
        "the expected starts of all waiting jobs, and the expected ends of all running ones",
        bodies.Forecasts,
    ),
)
