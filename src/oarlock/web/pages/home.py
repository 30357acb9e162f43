"""Home: what runs, what waits and why, what failed last, and which devices and pools are used, at a glance."""

from __future__ import annotations

import asyncio
import collections
import functools
import itertools
from collections.abc import Sequence, Set
from typing import Any

import msgspec

from oarlock.display import amounts, findings
from oarlock.display.jobs import forecasts, progress
from oarlock.spec import bodies, errors, phases, summaries
from oarlock.spec.access import users
from oarlock.spec.cluster import nodes
from oarlock.web import routing
from oarlock.web.access import visits
from oarlock.web.drawing import charts, deviceday
from oarlock.web.pages.jobs import jobs as listed
from oarlock.web.rendering import tables
from oarlock.web.updates import topics

SHOWN = 6
WAITING = 6
FAILED = 4
POOLS = 4
TYPES = 4
"""Rows of a table each: together they fit a screen of 1280 x 800, and each table tells how many more there are."""
OWN, LARGEST_PAGE = 100, 1000
CPUS, NODES = "CPUs", "nodes"
NAMED_NODES = 3
NOTICES, NOTICE_CHARACTERS = 2, 300
"""Notices that are more, or longer together, are folded to a line."""
POINTS = 60
MOST_HELD = 2000


async def show(visit: visits.Visit) -> routing.Filled:
    client, most = visit.client, functools.partial(tables.most, visit.asked(tables.PARAMETER))
    running, failed, queue, states, pools = await asyncio.gather(
        _newest(visit, phases.RUNNING, most("running", SHOWN)),
        _newest(visit, {phases.Phase.FAILED}, most("failures", FAILED)),
        client.queue(),
        client.nodes(),
        client.pools(),
    )
    waiting = [one for one in queue if one.phase is phases.Phase.QUEUED]
    own, forecast, notices = await asyncio.gather(
        _reasons(visit, waiting, most("waiting", OWN)), _forecast(visit, waiting), _notices(visit, states)
    )
    words = forecasts.expected(forecast) if forecast is not None else {}
    starts = {_key(one): one for one in forecast.starts} if forecast is not None else {}
    order = {job: place for place, job in enumerate(starts)}
    counted, types = _largest(devices(states, promised(forecast)), max(most("devices", TYPES), most("day", TYPES)))
    sparks = await asyncio.gather(*(_spark(visit, one) for one in running.items[:SHOWN]))
    return routing.Filled(
        template="home.html",
        facts={
            "counts": [(phase, running.phases.get(phase, 0)) for phase in phases.Phase],
            "running": [
                {**listed.row(one, running.now), "spark": spark, "facts": _facts(one)}
                for one, spark in itertools.zip_longest(running.items, sparks)  # a file has no drawings
            ],
            "phases_running": [one for one in phases.FORWARD if one in phases.RUNNING],
            "hidden_running": sum(running.phases.get(one, 0) for one in phases.RUNNING) - len(running.items),
            "waiting": [
                {
                    "row": one,
                    "needs": forecasts.needs(one),
                    "why": own.get(one.job) or forecasts.why(one),
                    "holders": forecasts.holders(one),
                    "sentence": words.get(_key(one), ""),
                    "expected": starts[_key(one)].starts if _key(one) in starts else "",
                    "seen": one.job in own,
                }
                for one in sorted(waiting, key=lambda one: order.get(_key(one), len(order)))[: most("waiting", WAITING)]
            ],
            "hidden_waiting": max(0, len(waiting) - WAITING),
            "all_seen": running.phases.get(phases.Phase.QUEUED, 0) == len(waiting),
            "failed": [listed.row(one, failed.now) for one in failed.items],
            "hidden_failed": running.phases.get(phases.Phase.FAILED, 0) - len(failed.items),
            "devices": counted,
            "hidden_types": types,
            "day": await _day(visit, states, running.now) if "day" in visit.asked("sections").split(",") else None,
            "notices": notices,
            "folded": len(notices) > NOTICES or sum(len(one.message + one.fix) for one in notices) > NOTICE_CHARACTERS,
            "pools": [_pool(one) for one in _farthest(list(pools), most("pools", POOLS))],
            "hidden_pools": max(0, len(pools) - POOLS),
            "topics": (topics.JOBS, *sorted(topics.SHARED)),
            "refresh": 5
            if running.items
            else topics.refresh(visit.server.seq, forecast)
            if forecast is not None
            else 0,
        },
    )


def devices(nodes: Sequence[bodies.NodeState], kept: Set[tuple[str, int]] = frozenset()) -> list[dict[str, Any]]:
    """Return for each type of GPU, and for the CPUs, how many are used, idle, reserved and not ready.

    Reserved are the idle devices in `kept`, where the first waiting job is expected to start.
    """
    found: dict[str, collections.Counter[str]] = {}
    for state in nodes:
        held = {device for holding in state.holdings for device in holding.devices}
        for device in state.node.devices:
            idle = "reserved" if (state.node.name, device.index) in kept else "idle"
            kind = "not_ready" if not state.node.ready else "used" if device.index in held else idle
            found.setdefault(device.type, collections.Counter())[kind] += 1
        cpus = state.node.capacity.cpus_milli / 1000
        used = state.held.cpus_milli / 1000
        counted = found.setdefault(CPUS, collections.Counter())
        counted["used" if state.node.ready else "not_ready"] += round(used if state.node.ready else cpus)
        counted["idle"] += round(cpus - used) if state.node.ready else 0
    rows = []
    for kind, counts in found.items():
        total = sum(counts.values()) or 1
        rows.append(
            {
                "type": kind,
                "total": sum(counts.values()),
                **{name: counts[name] for name in ("used", "idle", "reserved", "not_ready")},
                "used_width": 100 * counts["used"] / total,
                "reserved_width": 100 * counts["reserved"] / total,
                "not_ready_width": 100 * counts["not_ready"] / total,
            }
        )
    return rows


async def _newest(visit: visits.Visit, wanted: Set[phases.Phase], most: int) -> bodies.SummaryPage:
    """Return the newest jobs in these phases, at most so many, with the first page's counts."""
    page = first = await visit.client.summaries(phases=sorted(wanted), limit=min(most, LARGEST_PAGE))
    found = [*first.items]
    while page.next is not None and len(found) < most:
        page = await visit.client.summaries(phases=sorted(wanted), limit=LARGEST_PAGE, after=page.next)
        found += page.items
    return msgspec.structs.replace(first, items=tuple(found[:most]))


async def _reasons(visit: visits.Visit, waiting: Sequence[bodies.QueueRow], most: int) -> dict[str, str]:
    """Return why the user's own waiting jobs wait, by id: of the newest, at most so many."""
    if not waiting:
        return {}
    return {one.id: one.reason for one in (await _newest(visit, {phases.Phase.QUEUED}, most)).items}


async def _forecast(visit: visits.Visit, waiting: Sequence[bodies.QueueRow]) -> bodies.Forecasts | None:
    return await visit.client.forecasts() if waiting else None


async def _day(
    visit: visits.Visit, nodes: Sequence[bodies.NodeState], now: float
) -> tuple[list[deviceday.Day], bodies.History]:
    """Return the last day of the devices, and the record that it was made from."""
    since = now - deviceday.DAY_S
    past, found = await asyncio.gather(
        visit.client.history(since=since, limit=MOST_HELD), visit.client.samples(since=since)
    )
    return deviceday.days(nodes, past.items, now, found.items, started_at=visit.server.started_at), past


async def _notices(visit: visits.Visit, states: Sequence[bodies.NodeState]) -> list[findings.Finding]:
    """Return the nodes that are not ready, and for an administrator the problems of the server and of its machine."""
    lost = [one.node for one in states if not one.node.ready]
    notices = [_lost(lost)] if lost else []
    if not visit.may(users.Right.ADMIN):
        return notices
    found = findings.of_server(visit.server.home, await visit.state())
    return notices + [one for one in found if one.state in (findings.State.WARNING, findings.State.PROBLEM)]


def _lost(lost: Sequence[nodes.Node]) -> findings.Finding:
    first = lost[0]
    if len(lost) == 1:
        return findings.problem(first.name, f"{first.name} is not ready: {first.reason or 'no reason was told'}", "")
    names = [one.name for one in lost]
    more = [f"{len(names) - NAMED_NODES} more"] if len(names) > NAMED_NODES else []
    shown = [*names[: NAMED_NODES if more else NAMED_NODES + 1], *more]
    told = f"{', '.join(shown[:-1])} and {shown[-1]}"
    return findings.problem(NODES, f"{len(names)} nodes are not ready: {told}. See why: oarlock nodes", "")


def _largest(rows: list[dict[str, Any]], most: int) -> tuple[list[dict[str, Any]], int]:
    """Return the rows of the largest types of GPU and that of the CPUs, and how many types are left out."""
    gpus = [one for one in rows if one["type"] != CPUS]
    largest = sorted(gpus, key=lambda one: one["total"], reverse=True)[:most]
    shown = {one["type"] for one in largest} | {CPUS}
    return [one for one in rows if one["type"] in shown], len(gpus) - len(largest)


def _farthest(pools: Sequence[bodies.PoolState], most: int) -> list[bodies.PoolState]:
    """Return the pools that are farthest from their entitlement, in the order of the tree.

    A difference in GPUs comes before one in CPUs, and the number of jobs decides between equal ones.
    """

    def apart(state: bodies.PoolState) -> tuple[float, float, int, int]:
        resource, used, entitled = _use(state)
        by = round(abs(used - entitled), 6)
        return by if resource == "gpus" else 0.0, by if resource == "cpus" else 0.0, state.waiting, state.running

    chosen = {one.pool.name for one in sorted(pools, key=apart, reverse=True)[:most]}
    return [one for one in pools if one.pool.name in chosen]


def promised(forecast: bodies.Forecasts | None) -> set[tuple[str, int]]:
    """Return the devices that the forecast gives to the first waiting job that has a known start."""
    first = next((one for one in forecast.starts if one.places), None) if forecast is not None else None
    return {(place.node, device) for place in first.places for device in place.devices} if first is not None else set()


def _key(one: bodies.Tenant) -> forecasts.Key:
    return one.user, one.pool, one.name


async def _spark(visit: visits.Visit, job: summaries.Summary) -> str:
    try:
        found = await visit.client.metrics(job.id, ["loss"], points=POINTS, ranks=1)
    except errors.OarlockError:
        return ""
    return charts.sparkline(found.series[0].values) if found.series else ""


def _facts(job: summaries.Summary) -> list[str]:
    return progress.facts(job.reading) if job.reading is not None else []


def _pool(state: bodies.PoolState) -> dict[str, Any]:
    resource, used, entitled = _use(state)
    return {
        "name": state.pool.name,
        "used": amounts.of_resource(resource, used),
        "entitled": amounts.of_resource(resource, entitled),
        "against": _against(used - entitled),
        "running": state.running,
        "waiting": state.waiting,
    }


def _use(state: bodies.PoolState) -> tuple[str, float, float]:
    """Return the resource by which a pool is judged, how much of it the pool has in use, and its entitlement to it."""
    if state.entitled.get("gpus") or state.held.devices:
        return "gpus", state.held.devices, state.entitled.get("gpus", 0.0)
    return "cpus", state.held.cpus_milli / 1000, state.entitled.get("cpus", 0.0)


def _against(above: float) -> str:
    """Return the difference in words. Sums of shares miss an amount by less than a rounding error."""
    if not (above := round(above, 6)):
        return "as entitled"
    return f"{amounts.number(abs(above))} {'above' if above > 0 else 'below'}"


PAGES: tuple[routing.Page, ...] = (routing.Page(path="/", title="Home", handler=show, key="h", live=True),)
