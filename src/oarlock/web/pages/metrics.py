"""The metrics of a job: a chart for each name, grouped by prefix; its numbers for the script; single ones as tables."""

from __future__ import annotations

import asyncio
import itertools
import math
from typing import Any

import msgspec
from starlette import responses

from oarlock.client import answers
from oarlock.display import amounts
from oarlock.web import routing, visits
from oarlock.web.drawing import charts

MOST_NAMES = 2000
MOST_DRAWN = 24
POINTS = 500
AXES = {"step": "step", "relative": "step since the attempt's start", "time": "time", "since": "hours since the start"}
RANKS = {"": "lines", "range": "mean and range"}


class Columns(msgspec.Struct, frozen=True):
    """A series by columns. `low` and `high` are empty where no points were left out."""

    label: str
    count: int
    steps: list[int]
    at: list[float]
    values: list[float | None]
    low: list[float | None]
    high: list[float | None]


class Numbers(msgspec.Struct, frozen=True):
    """The series of one name, and the starts of the job's attempts."""

    series: list[Columns]
    starts: list[float]
    live: bool


async def show(visit: visits.Visit) -> routing.Filled:
    job = await visit.client.job(visit.parameters["job"])
    names = await visit.client.metric_names(job.id)
    text, only = visit.asked("q"), visit.query.get("name", [])[:MOST_DRAWN]
    found = [name for name in names if text.casefold() in name.casefold()]
    drawn = await visit.client.metrics(job.id, only, points=POINTS) if only else answers.Metrics()
    return routing.Filled(
        template="metrics.html",
        facts={
            "title": f"Metrics of {job.name}",
            "job": job,
            "groups": _groups(found[:MOST_NAMES]),
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
    """Return the series of one name, for the script of the page."""
    job = await visit.client.job(visit.parameters["job"])
    steps = (_step(visit, "first"), _step(visit, "last"))
    name = visit.asked("name")  # without one the API would answer with all series
    found = await visit.client.metrics(job.id, [name], points=POINTS, steps=steps) if name else answers.Metrics()

    def encoded() -> bytes:
        series = [columns(one) for one in found.series]
        return msgspec.json.encode(Numbers(series, [one.started_at for one in job.attempts], live=not job.terminal))

    return responses.Response(await asyncio.to_thread(encoded), media_type="application/json")


def _drawn(drawn: answers.Metrics, only: tuple[str, ...]) -> dict[str, Any]:
    """Return the charts and the table of single metrics."""
    return {
        "charts": charts.charts(msgspec.structs.replace(drawn, names=only)),
        "table": [_summary(one) for one in drawn.series],
    }


def columns(one: answers.Series) -> Columns:
    return Columns(
        label(one),
        one.count,
        [point.step for point in one.points],
        [point.at for point in one.points],
        [point.value for point in one.points],
        list(one.low),
        list(one.high),
    )


def label(one: answers.Series) -> str:
    return one.task if not one.process else f"{one.task}, process {one.process}"


def _summary(one: answers.Series) -> dict[str, Any]:
    """Return a row of the table that stands behind the charts."""
    ends = [value for value in (*one.values, *one.low, *one.high) if value is not None and math.isfinite(value)]
    return {
        "name": one.name,
        "task": label(one),
        "count": one.count,
        "last": amounts.number(one.values[-1]) if one.values else "NaN",
        "low": amounts.number(min(ends)) if ends else "",
        "high": amounts.number(max(ends)) if ends else "",
        "gaps": sum(point.value is None for point in one.points),
    }


def _groups(names: list[str]) -> list[tuple[str, list[str]]]:
    """Return the names by the part before the first slash; those without one come first."""
    by_prefix = sorted(names, key=lambda name: (name.partition("/")[0] if "/" in name else "", name))
    grouped = itertools.groupby(by_prefix, key=lambda name: name.partition("/")[0] if "/" in name else "")
    return [(prefix, list(several)) for prefix, several in grouped]


def _step(visit: visits.Visit, name: str) -> int | None:
    text = visit.asked(name)
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else None


PAGES: tuple[routing.Page, ...] = (
    routing.Page(path="/jobs/{job}/metrics", handler=show),
    routing.Page(path="/jobs/{job}/metrics/numbers", handler=numbers),
)
