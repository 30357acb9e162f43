"""Up to twenty jobs side by side: the fields in which they differ, their last and best numbers, and their curves.

A chart has one line for each job, the mean of its ranks with their range. It is made from that job alone, so that it is
the same with any other jobs beside it. A job that does not exist any more is named, and the others are shown.
"""

from __future__ import annotations

import asyncio
import csv
import io
import math
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from starlette import responses

from oarlock.client import answers
from oarlock.display import amounts
from oarlock.spec import errors, jobs, summaries
from oarlock.web import routing
from oarlock.web.access import visits
from oarlock.web.drawing import charts, colours, curves
from oarlock.web.pages.jobs import metrics
from oarlock.web.rendering import texts
from oarlock.web.updates import topics

MOST = 20
MOST_ROWS = 50
"""The most metrics in the table."""

MOST_FIELDS = 200
POINTS = 250
POINTS_IN_FILE = 10_000
"""The most points of a rank in a file."""

ROWS_IN_FILE = 200_000
"""The most points of a job in a file: those of many ranks are fewer for each."""

NAMES_IN_FILE = 1000
BESTS = ("least", "greatest")
REFRESH_S = 10


class Last(msgspec.Struct, frozen=True):
    """The last value of a metric of a job (of several ranks: their mean), the least and the greatest one."""

    last: float
    least: float
    greatest: float


async def show(visit: visits.Visit) -> routing.Filled:
    found, missing = await _jobs(visit)
    now = visit.server.now
    by_job = await asyncio.gather(*(visit.client.metric_names(job.id) for job in found))
    names = _shared(by_job)
    text = visit.asked("q")
    chosen_names = [name for name in names if text.casefold() in name.casefold()]
    best = visit.asked("best") if visit.asked("best") in BESTS else BESTS[0]
    told = await _lasts(visit, found, chosen_names[:MOST_ROWS])
    ids = [job.id for job in found]
    return routing.Filled(
        template="jobs/compare.html",
        once=not set(ids).issuperset(visit.query.get("job", ())),  # a job's name means another job for another user
        facts={
            "jobs": [
                {
                    "row": summaries.of(job, now),
                    "colour": colours.of(job.id),
                    "dash": colours.dash(job.id),
                    "others": [one for one in ids if one != job.id],
                }
                for job in found
            ],
            "ids": ids,
            "missing": missing,
            "differences": differences(found),
            "table": [_row(name, told, best) for name in chosen_names[:MOST_ROWS]],
            "hidden_rows": max(0, len(chosen_names) - MOST_ROWS),
            "groups": metrics.groups(chosen_names[: metrics.MOST_NAMES]),
            "total": len(names),
            "found": len(chosen_names),
            "hidden": max(0, len(chosen_names) - metrics.MOST_NAMES),
            "drawn": await _drawn(visit, found),
            "chosen": {
                "q": text,
                "best": best,
                **{name: visit.asked(name) for name in metrics.LOOKS},
            },
            "axes": metrics.AXES,
            "bests": BESTS,
            "most": MOST,
            "topics": tuple(map(topics.of_job, ids)),
            "refresh": REFRESH_S if any(not job.terminal for job in found) else 0,
            "asks": True,  # its charts are drawn anew when it has asked
        },
    )


async def numbers(visit: visits.Visit) -> responses.Response:
    """Return the lines of one name, for the script of the page."""
    found, _ = await _jobs(visit)
    name = visit.asked("name")
    lines = await asyncio.gather(*(_line(visit, job, name) for job in found)) if name else []
    answer = metrics.Numbers([one for one in lines if one.steps])
    return responses.Response(await asyncio.to_thread(msgspec.json.encode, answer), media_type="application/json")


async def table(visit: visits.Visit) -> responses.Response:
    """Return the differing fields and the numbers as CSV."""
    found, _ = await _jobs(visit)
    names = _shared(await asyncio.gather(*(visit.client.metric_names(job.id) for job in found)))
    wanted = [name for name in names if visit.asked("q").casefold() in name.casefold()]
    told = await _lasts(visit, found, wanted[:NAMES_IN_FILE])
    return await asyncio.to_thread(_table, found, wanted, told)


def _table(found: Sequence[jobs.Job], names: Sequence[str], told: Sequence[Mapping[str, Last]]) -> responses.Response:
    rows: list[Sequence[object]] = [["", *(job.name for job in found)], ["id", *(job.id for job in found)]]
    rows += [[name, *values] for name, values in differences(found)]
    for name in names[:NAMES_IN_FILE]:
        cells = [one.get(name) for one in told]
        for field in ("last", *BESTS):
            rows.append([f"{name} ({field})", *(getattr(cell, field) if cell is not None else "" for cell in cells)])
    if len(names) > NAMES_IN_FILE:
        rows.append([f"cut after {NAMES_IN_FILE} metrics"])
    return responses.Response(_lines(rows), media_type="text/csv", headers=_headers("compare.csv"))


async def points(visit: visits.Visit) -> responses.StreamingResponse:
    """Send the points of one name of each rank of each job as CSV, one job after another."""
    found, _ = await _jobs(visit)
    name = visit.asked("name")
    return responses.StreamingResponse(
        _sheet(visit, found if name else [], name), media_type="text/csv", headers=_headers("points.csv")
    )


async def _sheet(visit: visits.Visit, found: Sequence[jobs.Job], name: str) -> AsyncIterator[str]:
    try:
        yield _lines([("job", "id", "task", "process", "metric", "step", "time", "value", "least", "greatest")])
        for job in found:
            most = max(1, min(POINTS_IN_FILE, ROWS_IN_FILE // metrics.processes(job)))
            told = await visit.client.metrics(job.id, [name], points=most)
            yield await asyncio.to_thread(_lines, _points(job, told))
    except errors.OarlockError as error:
        yield _lines([[f"cut: {error.message}"]])
    finally:
        await visit.close()


def differences(found: Sequence[jobs.Job]) -> list[tuple[str, list[str]]]:
    """Return the fields of the job files in which the jobs differ, each with its value in every job."""
    flat = [_fields(job) for job in found]
    names = dict.fromkeys(name for one in flat for name in one)
    rows = [(name, [one.get(name, "") for one in flat]) for name in names]
    return [(name, values) for name, values in rows if len(set(values)) > 1][:MOST_FIELDS]


def _fields(job: jobs.Job) -> dict[str, str]:
    spec = msgspec.to_builtins(job.spec)
    spec["command"] = summaries.command(job)
    began = f"{job.continues.name}, step {job.continues.step}" if job.continues is not None else ""
    around = {"owner": job.owner, "pool": job.pool, "snapshot": (job.snapshot or "")[:12], "continues": began}
    return dict(_flat("", {**around, **spec}))


def _flat(prefix: str, value: Any) -> Iterable[tuple[str, str]]:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _flat(f"{prefix}.{name}" if prefix else str(name), inner)
    elif isinstance(value, list | tuple):
        yield prefix, ", ".join(one if isinstance(one, str) else msgspec.json.encode(one).decode() for one in value)
    elif value is not None:
        yield prefix, str(value)


async def _jobs(visit: visits.Visit) -> tuple[list[jobs.Job], list[errors.NotFound]]:
    """Return the jobs of the address in its order, and why the missing ones are missing. Raises InvalidInput."""
    names = list(dict.fromkeys(name for name in visit.query.get("job", ()) if name))
    if len(names) > MOST:
        hint = "Take some of them out of the address."
        raise errors.InvalidInput(f"At most {MOST} jobs can be compared; these are {len(names)}.", hint=hint)
    answers_of = await asyncio.gather(*(visit.client.job(name) for name in names), return_exceptions=True)
    found, missing = {}, []
    for one in answers_of:
        if isinstance(one, errors.NotFound):
            missing.append(one)
        elif isinstance(one, BaseException):
            raise one
        else:
            found[one.id] = one
    return list(found.values()), missing


def _shared(by_job: Sequence[Sequence[str]]) -> list[str]:
    """Return all names: those of the most jobs first, then in the order of the alphabet."""
    counts: dict[str, int] = {}
    for names in by_job:
        for name in names:
            counts[name] = counts.get(name, 0) + 1
    return sorted(counts, key=lambda name: (-counts[name], name))


async def _lasts(visit: visits.Visit, found: Sequence[jobs.Job], names: Sequence[str]) -> list[dict[str, Last]]:
    """Return the last and best values of each job by name. One point stands for a whole series, with its extremes."""
    told = []
    for job in found:
        by_name: dict[str, list[answers.Series]] = {}
        for first in range(0, len(names), MOST_ROWS):
            answer = await visit.client.metrics(job.id, names[first : first + MOST_ROWS], points=1)
            for one in answer.series:
                by_name.setdefault(one.name, []).append(one)
        told.append({name: last for name, series in by_name.items() if (last := _last(series)) is not None})
    return told


def _last(series: Sequence[answers.Series]) -> Last | None:
    lasts = [one.values[-1] for one in series if one.values and math.isfinite(one.values[-1])]
    ends = [value for one in series for value in (*one.values, *one.low, *one.high) if value is not None]
    finite = [value for value in ends if math.isfinite(value)]
    if not finite:
        return None
    last = math.fsum(lasts) / len(lasts) if len(lasts) == len(series) else math.nan
    return Last(last, min(finite), max(finite))


def _row(name: str, told: Sequence[Mapping[str, Last]], best: str) -> dict[str, Any]:
    cells = [one.get(name) for one in told]
    values = [getattr(cell, best) for cell in cells if cell is not None]
    top = (min if best == BESTS[0] else max)(values, default=None)
    return {
        "name": name,
        "cells": [
            {
                "last": amounts.number(cell.last),
                "best": amounts.number(getattr(cell, best)),
                "top": len(values) > 1 and getattr(cell, best) == top,
            }
            if cell is not None
            else None
            for cell in cells
        ],
    }


async def _line(visit: visits.Visit, job: jobs.Job, name: str) -> curves.Columns:
    steps = (metrics.step(visit, "first"), metrics.step(visit, "last"))
    told = await visit.client.metrics(job.id, [name], points=POINTS, steps=steps)
    epochs = await metrics.epochs(visit, job.id, told.names, POINTS)
    resized, smoothing = await metrics.resized(visit, job), metrics.window(visit)

    def made() -> curves.Columns:
        line = curves.columns(told.series[0]) if len(told.series) == 1 else curves.together(told.series)
        look = {"colour": colours.of(job.id), "dash": colours.dash(job.id)}
        starts = [one.started_at for one in job.attempts]
        label = f"{job.name} {jobs.short_id(job.id)}"
        return msgspec.structs.replace(
            line,
            label=label,
            starts=starts,
            resized=resized,
            smooth=curves.smoothed(line, smoothing) if smoothing else [],
            epochs=curves.along(epochs, line.steps),
            **look,
        )

    return await asyncio.to_thread(made)


async def _drawn(visit: visits.Visit, found: Sequence[jobs.Job]) -> list[charts.Chart]:
    """Return the charts of the names in the address, for a browser without scripts."""
    drawn = []
    for name in visit.query.get("name", [])[: metrics.MOST_DRAWN]:
        lines = await asyncio.gather(*(_line(visit, job, name) for job in found))
        shown = [one for one in lines if one.steps]
        drawn += await asyncio.to_thread(charts.of_lines, name, shown, apart=True)
    return drawn


def _points(job: jobs.Job, told: answers.Metrics) -> Iterator[Sequence[object]]:
    for one in told.series:
        for place, point in enumerate(one.points):
            ends = (one.low[place], one.high[place]) if one.low and one.high else (point.value, point.value)
            value = "NaN" if point.value is None else point.value
            yield job.name, job.id, one.task, one.process, one.name, point.step, point.at, value, *ends


def _lines(rows: Iterable[Sequence[object]]) -> str:
    text = io.StringIO()
    csv.writer(text).writerows([texts.cell(value) for value in row] for row in rows)
    return text.getvalue()


def _headers(name: str) -> dict[str, str]:
    return {"content-disposition": f'attachment; filename="{name}"'}


PAGES: tuple[routing.Page, ...] = (
    routing.Page(path="/compare", title="Compare", handler=show, live=True),
    routing.Page(path="/compare/numbers", handler=numbers),
    routing.Page(path="/compare.csv", handler=table),
    routing.Page(path="/compare/points.csv", handler=points),
)
