"""The metrics of a job: a chart for each name, grouped by prefix; its numbers for the script; single ones as tables."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Sequence
from typing import Any

import msgspec
from starlette import responses

from oarlock.client import answers
from oarlock.display import amounts
from oarlock.web import routing
from oarlock.web.access import visits
from oarlock.web.drawing import charts, colours, curves

MOST_NAMES = 2000
MOST_DRAWN = 24
POINTS = 500
AXES = {
    "step": "step",
    "relative": "step since the attempt's start",
    "epoch": "epoch",
    "time": "time",
    "since": "hours since the start",
}
MANY = 8
"""With more ranks than that, their mean and range are drawn."""

RANKS = {"": "lines", "range": "mean and range"}


class Numbers(msgspec.Struct, frozen=True):
    """The lines of one name."""

    series: list[curves.Columns]
    live: bool


async def show(visit: visits.Visit) -> routing.Filled:
    job = await visit.client.job(visit.parameters["job"])
    names = await visit.client.metric_names(job.id)
    text, only = visit.asked("q"), visit.query.get("name", [])[:MOST_DRAWN]
    found = [name for name in names if text.casefold() in name.casefold()]
    drawn = [await visit.client.metrics(job.id, [name], points=POINTS) for name in only]  # one after the other
    return routing.Filled(
        template="jobs/metrics.html",
        facts={
            "title": f"Metrics of {job.name}",
            "job": job,
            "groups": groups(found[:MOST_NAMES]),
            "total": len(names),
            "found": len(found),
            "hidden": max(0, len(found) - MOST_NAMES),
            **await asyncio.to_thread(_drawn, drawn, tuple(only)),
            "chosen": {"q": text, **{name: visit.asked(name) for name in ("x", "ranks", "log", "first", "last")}},
            "axes": AXES,
            "ranks": RANKS,
        },
    )


async def numbers(visit: visits.Visit) -> responses.Response:
    """Return the lines of one name, for the script of the page: one for each rank, or one for all of them."""
    job = await visit.client.job(visit.parameters["job"])
    steps = (step(visit, "first"), step(visit, "last"))
    name = visit.asked("name")  # without one the API would answer with all series
    found = await visit.client.metrics(job.id, [name], points=POINTS, steps=steps) if name else answers.Metrics()
    told = await epochs(visit, job.id, found.names, POINTS)
    mean = visit.asked("ranks") == "range" or len(found.series) > MANY

    def encoded() -> bytes:
        starts = [one.started_at for one in job.attempts]
        lines = [curves.together(found.series)] if mean and len(found.series) > 1 else map(curves.columns, found.series)
        series = [
            msgspec.structs.replace(
                one,
                starts=starts,
                epochs=curves.along(told, one.steps),
                colour=place % colours.COLOURS,
                dash=place // 8 % 4,
            )
            for place, one in enumerate(lines)
        ]
        return msgspec.json.encode(Numbers(series, live=not job.terminal))

    return responses.Response(await asyncio.to_thread(encoded), media_type="application/json")


async def epochs(visit: visits.Visit, job: str, names: Sequence[str], points: int) -> answers.Series | None:
    """Return the metric that tells the epoch of each step, where the page shows epochs and the job reports them."""
    name = next((one for one in names if one.rpartition("/")[2] == "epoch"), None)
    if visit.asked("x") != "epoch" or name is None:
        return None
    found = await visit.client.metrics(job, [name], points=points)
    return next(iter(found.series), None)


def _drawn(drawn: Sequence[answers.Metrics], only: Sequence[str]) -> dict[str, Any]:
    """Return the charts and the table of single metrics. Many ranks are drawn as their mean and range."""
    found = []
    for name, told in zip(only, drawn, strict=True):
        lines = [curves.together(told.series)] if len(told.series) > MANY else map(curves.columns, told.series)
        looks = [
            msgspec.structs.replace(one, colour=place % colours.COLOURS, dash=place // colours.COLOURS)
            for place, one in enumerate(lines)
        ]
        found += charts.of_lines(name, looks)
    return {"charts": found, "table": [_summary(one) for told in drawn for one in told.series]}


def _summary(one: answers.Series) -> dict[str, Any]:
    """Return a row of the table that stands behind the charts."""
    ends = [value for value in (*one.values, *one.low, *one.high) if value is not None and math.isfinite(value)]
    return {
        "name": one.name,
        "task": curves.label(one),
        "count": one.count,
        "last": amounts.number(one.values[-1]) if one.values else "NaN",
        "low": amounts.number(min(ends)) if ends else "",
        "high": amounts.number(max(ends)) if ends else "",
        "gaps": sum(point.value is None for point in one.points),
    }


def groups(names: list[str]) -> list[tuple[str, list[str]]]:
    """Return the names by the part before the first slash; those without one come first."""
    by_prefix = sorted(names, key=lambda name: (name.partition("/")[0] if "/" in name else "", name))
    grouped = itertools.groupby(by_prefix, key=lambda name: name.partition("/")[0] if "/" in name else "")
    return [(prefix, list(several)) for prefix, several in grouped]


def step(visit: visits.Visit, name: str) -> int | None:
    text = visit.asked(name)
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else None


PAGES: tuple[routing.Page, ...] = (
    routing.Page(path="/jobs/{job}/metrics", handler=show),
    routing.Page(path="/jobs/{job}/metrics/numbers", handler=numbers),
)
