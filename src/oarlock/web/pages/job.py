"""One job: its head and actions, its timeline, why it waits or failed, its ranks, metrics, log and decisions."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from oarlock.client import answers, requests
from oarlock.display import endings, eventlines, progress
from oarlock.spec import attempts, errors, jobs, phases, summaries
from oarlock.spec.access import users
from oarlock.spec.cluster import prices
from oarlock.web import routing, visits
from oarlock.web.drawing import charts, timeline
from oarlock.web.pages import jobs as listed

POINTS = 200
CHARTS = 24
LOG_LINES = 100
EVENTS = 50
RANKS = 1024
DECISIONS = 50


async def show(visit: visits.Visit) -> routing.Filled:
    client = visit.client
    job = await client.job(visit.parameters["job"])
    now = (await client.summaries(limit=1)).now
    why, events, checkpoints, decisions, metrics, lines = await asyncio.gather(
        client.why(job.id),
        client.events(job.id),
        client.checkpoints(job.id),
        client.decisions(job.id),
        _metrics(visit, job.id),
        _tail(visit, job),
    )
    short = summaries.of(job, now)
    return routing.Filled(
        template="job.html",
        facts={
            "title": job.name,
            "job": job,
            "row": listed.row(short, now),
            "now": now,
            "facts": progress.facts(short.reading) if short.reading is not None else [],
            "cost": _cost(visit, short),
            "actions": actions(short) if visit.may(users.Right.USER) else [],
            "command": summaries.command(job),
            "why": why,
            "refusal": why.refusal,
            "bars": _bars(why.refusal),
            "timeline": timeline.draw(job, events, now),
            "verdicts": [attempt for attempt in job.attempts[::-1] if attempt.verdict is not None or attempt.stacks],
            "ranks": _ranks(job),
            "hidden_ranks": max(0, len(job.attempt.tasks) - RANKS) if job.attempt is not None else 0,
            "checkpoints": checkpoints,
            "charts": charts.charts(metrics)[:CHARTS],
            "hidden_charts": max(0, len(metrics.names) - CHARTS),
            "lines": lines,
            "decisions": decisions.items[-DECISIONS:][::-1],
            "events": [
                {"record": record, "count": count, "facts": eventlines.facts(record.data)}
                for record, count in eventlines.folded(events)[-EVENTS:][::-1]
            ],
            "spec": msgspec.yaml.encode(job.spec).decode(),
            "next_steps": endings.next_steps(job)[1:],
            "refresh": 5 if job.phase in phases.RUNNING else 0,
        },
    )


def actions(job: summaries.Summary) -> list[dict[str, Any]]:
    """Return the actions that the job's phase allows, each with the command that does the same."""
    if job.terminal:
        names = ["remove"]
    elif job.phase is phases.Phase.HALTED:
        names = ["resume", "cancel"]
    else:
        names = ["halt", "cancel"]
    return [
        {"name": name, "word": listed.ACTIONS[name], "command": f"oarlock {listed.VERBS[name]} {job.name}"}
        for name in names
    ]


def _cost(visit: visits.Visit, job: summaries.Summary) -> str:
    if not job.cost and not job.price_per_h:
        return ""
    currency = visit.server.currency
    hourly = f", {prices.amount_text(job.price_per_h, currency)} an hour" if job.price_per_h else ""
    return prices.amount_text(job.cost, currency) + hourly


def _bars(refusal: Any) -> list[dict[str, Any]]:
    """Return for each resource that a waiting job needs how much of it is free, as parts of one scale."""
    if refusal is None:
        return []
    found = []
    for resource, needed in refusal.needed.items():
        free = refusal.free.get(resource, 0.0)
        full = max(needed, free) or 1.0
        found.append(
            {
                "resource": resource,
                "needed": needed,
                "free": free,
                "needed_width": 100 * needed / full,
                "free_width": 100 * free / full,
            }
        )
    return found


def _ranks(job: jobs.Job) -> list[attempts.Task]:
    return list(job.attempt.tasks[:RANKS]) if job.attempt is not None else []


async def _metrics(visit: visits.Visit, job: str) -> answers.Metrics:
    try:
        return await visit.client.metrics(job, points=POINTS)
    except errors.OarlockError:
        return answers.Metrics()


async def _tail(visit: visits.Visit, job: jobs.Job) -> list[Any]:
    if job.attempt is None:
        return []
    choice = requests.LogChoice(tail=LOG_LINES)
    return [line async for line in visit.client.log_items(job.id, choice) if hasattr(line, "text")]


PAGES: tuple[routing.Page, ...] = (routing.Page(path="/jobs/{job}", handler=show),)
