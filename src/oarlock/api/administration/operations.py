"""Liveness, readiness and measurements of the server, for its operators."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from starlette import responses

from oarlock.api import routes
from oarlock.api.services import meters
from oarlock.spec import phases
from oarlock.store import stores


class Healthy(msgspec.Struct, frozen=True):
    """The server answers."""

    status: str = "ok"


class Readiness(msgspec.Struct, frozen=True):
    """Whether the server is ready, and its problems by part."""

    ready: bool
    problems: dict[str, str]


class Counted(msgspec.Struct, frozen=True):
    """Counts from the store for the measurements."""

    jobs: dict[phases.Phase, int]
    epoch: int
    seq: int
    devices: int
    nodes_missing: dict[str, int]


async def alive(call: routes.Call) -> Healthy:
    return Healthy()


async def ready(call: routes.Call) -> Readiness | routes.Answer:
    problems = await call.services.health()
    answer = Readiness(not problems, problems)
    return answer if answer.ready else routes.Answer(503, answer)


async def measure(call: routes.Call) -> responses.Response:
    classes = [one.name for one in call.services.rules().node_classes]
    counted = await call.services.store.read(lambda view: _count(view, classes))
    told = call.services.meters
    told.counted(counted.jobs)
    told.leader_epoch.set(counted.epoch)
    told.event_seq.set(counted.seq)
    told.held_devices.set(counted.devices)
    for name, count in counted.nodes_missing.items():
        told.nodes_missing.labels(name).set(count)
    return responses.Response(told.exposition(), media_type=meters.CONTENT_TYPE)


def _count(view: stores.View, classes: Sequence[str]) -> Counted:
    leader = view.leader()
    return Counted(
        jobs=view.count(),
        epoch=leader.epoch if leader is not None else 0,
        seq=view.last_seq(),
        devices=len({(holding.node, device) for holding in view.holdings() for device in holding.devices}),
        nodes_missing=_missing(view, classes),
    )


def _missing(view: stores.View, classes: Sequence[str]) -> dict[str, int]:
    """Return the nodes that waiting jobs lack, by class. Without a declared class no job is read."""
    requests = [job.node_request for job in (view.active() if classes else ()) if job.node_request is not None]
    return {name: sum(request.need.nodes.get(name, 0) for request in requests) for name in classes}


ROUTES: tuple[routes.Route, ...] = (
    routes.Route(
        method="GET",
        path="/healthz",
        handler=alive,
        needs=routes.Open.ANYBODY,
        summary="the server answers",
        answer=Healthy,
    ),
    routes.Route(
        method="GET",
        path="/readyz",
        handler=ready,
        needs=routes.Open.ANYBODY,
        summary="store and folders take writes, a leader plans, the backend answers",
        answer=Readiness,
        others={503: "not ready, for the reasons in `problems`"},
    ),
    routes.Route(
        method="GET",
        path="/metrics",
        handler=measure,
        needs=routes.Open.LOOPBACK,
        summary="measurements of the server, for Prometheus",
        answer=str,
        media="text/plain",
    ),
)
