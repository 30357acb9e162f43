"""Home: what runs, what waits and why, what failed last, and which devices and pools are used, at a glance."""

from __future__ import annotations

import asyncio
import collections
from collections.abc import Sequence
from typing import Any

from oarlock.display import forecasts, poolbars, progress
from oarlock.spec import bodies, errors, phases, summaries
from oarlock.web import routing, visits
from oarlock.web.drawing import charts
from oarlock.web.pages import jobs as listed

SHOWN = 8
WAITING = 12
POINTS = 60
CELLS = 40


async def show(visit: visits.Visit) -> routing.Filled:
    client = visit.client
    running, failed, queue, nodes, pools = await asyncio.gather(
        client.summaries(phases=sorted(phases.RUNNING), limit=SHOWN),
        client.summaries(phases=(phases.Phase.FAILED,), limit=5),
        client.queue(),
        client.nodes(),
        client.pools(),
    )
    waiting = [one for one in queue if one.phase is phases.Phase.QUEUED]
    own, expected = await asyncio.gather(_reasons(visit), _expected(visit, waiting))
    words, order = expected
    sparks = await asyncio.gather(*(_spark(visit, one) for one in running.items))
    return routing.Filled(
        template="home.html",
        facts={
            "now": running.now,
            "counts": [(phase, running.phases.get(phase, 0)) for phase in phases.Phase],
            "running": [
                {**listed.row(one, running.now), "spark": spark, "facts": _facts(one)}
                for one, spark in zip(running.items, sparks, strict=True)
            ],
            "hidden_running": sum(running.phases.get(one, 0) for one in phases.RUNNING) - len(running.items),
            "waiting": [
                {"row": one, "reason": own.get(one.job, ""), "expected": words.get(_key(one), "")}
                for one in sorted(waiting, key=lambda one: order.get(_key(one), len(order)))[:WAITING]
            ],
            "hidden_waiting": max(0, len(waiting) - WAITING),
            "failed": [listed.row(one, failed.now) for one in failed.items],
            "devices": devices(nodes),
            "not_ready": [one.node for one in nodes if not one.node.ready],
            "pools": [_pool(one) for one in pools],
            "refresh": 5 if running.items else 0,
        },
    )


def devices(nodes: Sequence[bodies.NodeState]) -> list[dict[str, Any]]:
    """Return for each type of GPU, and for the CPUs, how many are used, idle and not ready."""
    found: dict[str, collections.Counter[str]] = {}
    for state in nodes:
        held = {device for holding in state.holdings for device in holding.devices}
        for device in state.node.devices:
            kind = "not_ready" if not state.node.ready else "used" if device.index in held else "idle"
            found.setdefault(device.type, collections.Counter())[kind] += 1
        cpus = state.node.capacity.cpus_milli / 1000
        used = state.held.cpus_milli / 1000
        counted = found.setdefault("CPUs", collections.Counter())
        counted["used" if state.node.ready else "not_ready"] += round(used if state.node.ready else cpus)
        counted["idle"] += round(cpus - used) if state.node.ready else 0
    rows = []
    for kind, counts in found.items():
        total = sum(counts.values()) or 1
        rows.append(
            {
                "type": kind,
                "total": sum(counts.values()),
                **{name: counts[name] for name in ("used", "idle", "not_ready")},
                "used_width": 100 * counts["used"] / total,
                "not_ready_width": 100 * counts["not_ready"] / total,
            }
        )
    return rows


async def _reasons(visit: visits.Visit) -> dict[str, str]:
    """Return why the user's own waiting jobs wait, by id."""
    page = await visit.client.summaries(phases=(phases.Phase.QUEUED,), limit=100)
    return {one.id: one.reason for one in page.items}


async def _expected(
    visit: visits.Visit, waiting: Sequence[bodies.QueueRow]
) -> tuple[dict[forecasts.Key, str], dict[forecasts.Key, int]]:
    """Return the expected start of each waiting job in words, and its place in the queue."""
    if not waiting:
        return {}, {}
    found = await visit.client.forecasts()
    return forecasts.expected(found), {_key(one): place for place, one in enumerate(found.starts)}


def _key(one: bodies.Tenant) -> forecasts.Key:
    return one.user, one.pool, one.name


async def _spark(visit: visits.Visit, job: summaries.Summary) -> str:
    try:
        found = await visit.client.metrics(job.id, ["loss"], points=POINTS)
    except errors.OarlockError:
        return ""
    return charts.sparkline(found.series[0].values) if found.series else ""


def _facts(job: summaries.Summary) -> list[str]:
    return progress.facts(job.reading) if job.reading is not None else []


def _pool(state: bodies.PoolState) -> dict[str, Any]:
    resource = "gpus" if state.entitled.get("gpus") or state.held.devices else "cpus"
    used = state.held.devices if resource == "gpus" else state.held.cpus_milli / 1000
    limit = state.pool.limit.get(resource) if state.pool.limit else None
    stretch = poolbars.Stretch(used, state.entitled.get(resource, 0.0), state.reserved.get(resource, 0.0), limit)
    return {
        "name": state.pool.name,
        "resource": resource.upper(),
        "used": used,
        "entitled": stretch.entitled,
        "running": state.running,
        "waiting": state.waiting,
        "cells": poolbars.kinds(stretch, CELLS),
    }


PAGES: tuple[routing.Page, ...] = (routing.Page(path="/", title="Home", handler=show, key="h"),)
