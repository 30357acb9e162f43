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
from oarlock.spec import bodies, jobfile, jobs
from oarlock.web import routing
from oarlock.web.access import visits
from oarlock.web.drawing import charts, curves
from oarlock.web.updates import topics

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
RANKS = {"": f"lines; the mean of more than {curves.MANY}", "lines": "lines", "range": "mean and range"}
REFRESH_S = 5
"""No event tells of numbers: a page of a running job looks for them."""

MOST_WINDOW = 1e9
LOOKS = ("x", "smooth", "log", "first", "last", "from", "to")
"""The parameters that say how charts look: the axis, the smoothing, the scale, the steps and the part of the axis."""


class Numbers(msgspec.Struct, frozen=True):
    """The lines of one name. So many ranks have a line, `left_out` others have none."""

    series: list[curves.Columns]
    left_out: int = 0


async def show(visit: visits.Visit) -> routing.Filled:
    job = await visit.client.job(visit.parameters["job"])
    names = await visit.client.metric_names(job.id)
    text, only = visit.asked("q"), visit.query.get("name", [])[:MOST_DRAWN]
    found = [name for name in names if text.casefold() in name.casefold()]
    drawn = [await visit.client.metrics(job.id, [name], points=POINTS) for name in only]  # one after the other
    marked = await marks(visit, job) if only else {}
    look = (visit.asked("ranks"), window(visit))
    return routing.Filled(
        template="jobs/metrics.html",
        facts={
            "title": f"Metrics of {job.name}",
            "job": job,
            "groups": groups(found[:MOST_NAMES]),
            "total": len(names),
            "found": len(found),
            "hidden": max(0, len(found) - MOST_NAMES),
            **await asyncio.to_thread(_drawn, drawn, tuple(only), *look, marked),
            "chosen": {"q": text, **{name: visit.asked(name) for name in ("ranks", *LOOKS)}},
            "axes": AXES,
            "ranks": RANKS,
            "topics": (topics.of_job(job.id),),
            "refresh": 0 if job.terminal else REFRESH_S,
            "asks": True,  # its charts are drawn anew when it has asked
        },
    )


async def numbers(visit: visits.Visit) -> responses.Response:
    """Return the lines of one name, for the script of the page: one for each rank, or one for all of them."""
    job = await visit.client.job(visit.parameters["job"])
    steps = (step(visit, "first"), step(visit, "last"))
    name = visit.asked("name")  # without one the API would answer with all series
    found = await visit.client.metrics(job.id, [name], points=POINTS, steps=steps) if name else answers.Metrics()
    told = await epochs(visit, job.id, found.names, POINTS)
    marked = await marks(visit, job)
    ranks, smoothing = visit.asked("ranks"), window(visit)

    def encoded() -> bytes:
        series = [
            msgspec.structs.replace(one, epochs=curves.along(told, one.steps), **marked)
            for one in _lines(found.series, ranks, smoothing)
        ]
        return msgspec.json.encode(Numbers(series, _left_out(found.series, series)))

    return responses.Response(await asyncio.to_thread(encoded), media_type="application/json")


def _lines(found: Sequence[answers.Series], ranks: str, smoothing: float) -> list[curves.Columns]:
    """Return the lines as the reader chose them, with their smoothed ones."""
    return [
        msgspec.structs.replace(one, smooth=curves.smoothed(one, smoothing) if smoothing else [])
        for one in curves.lines(found, ranks)
    ]


def _left_out(found: Sequence[answers.Series], lines: Sequence[curves.Columns]) -> int:
    """Return the number of ranks that have no line."""
    return len(found) - len(lines) if len(lines) == curves.MOST_LINES else 0


def window(visit: visits.Visit) -> float:
    """Return the length in steps over which curves are smoothed, 0 for not at all."""
    try:
        asked = float(visit.asked("smooth"))
    except ValueError:
        return 0.0
    return asked if 0 < asked <= MOST_WINDOW else 0.0


async def marks(visit: visits.Visit, job: jobs.Job) -> dict[str, list[float]]:
    """Return the times that a chart marks: those at which attempts began, or got another number of workers."""
    return {"starts": [one.started_at for one in job.attempts], "resized": await resized(visit, job)}


async def resized(visit: visits.Visit, job: jobs.Job) -> list[float]:
    """Return the times at which a running attempt got another number of workers."""
    if not jobfile.reshapes(job.spec):
        return []
    made = await visit.client.decisions(job.id)
    return [one.at for one in made.items if one.what in (bodies.What.RESIZED, bodies.What.MOVED)]


def processes(job: jobs.Job) -> int:
    """Return the most processes that the job has at a time: each may report every metric."""
    return max(1, sum((role.max or role.count) * role.nproc for role in job.spec.roles.values()))


async def epochs(visit: visits.Visit, job: str, names: Sequence[str], points: int) -> answers.Series | None:
    """Return the metric that tells the epoch of each step, where the page shows epochs and the job reports them."""
    name = next((one for one in names if one.rpartition("/")[2] == "epoch"), None)
    if visit.asked("x") != "epoch" or name is None:
        return None
    found = await visit.client.metrics(job, [name], points=points)
    return next(iter(found.series), None)


def _drawn(
    drawn: Sequence[answers.Metrics],
    only: Sequence[str],
    ranks: str,
    smoothing: float,
    marked: dict[str, list[float]],
) -> dict[str, Any]:
    """Return the charts and the table of single metrics."""
    found, left_out = [], 0
    for name, told in zip(only, drawn, strict=True):
        lines = [msgspec.structs.replace(one, **marked) for one in _lines(told.series, ranks, smoothing)]
        found += charts.of_lines(name, lines)
        left_out = max(left_out, _left_out(told.series, lines))
    return {"charts": found, "left_out": left_out, "table": [_summary(one) for told in drawn for one in told.series]}


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
        "gaps": len(curves.columns(one).gaps),
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
    routing.Page(path="/jobs/{job}/metrics", handler=show, live=True),
    routing.Page(path="/jobs/{job}/metrics/numbers", handler=numbers),
)
