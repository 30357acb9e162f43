"""The sections of a job's page that are made only when the reader comes to them.

Each is a function from a visit and the job to the facts of its template. The page asks for those in view; its address
may name some (`?sections=ranks,log`) or all of them, which is the report.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from oarlock.client import answers, requests
from oarlock.display.jobs import eventlines, keptfiles, stragglers
from oarlock.spec import attempts, bodies, errors, jobs
from oarlock.web.access import visits
from oarlock.web.drawing import charts, rankgrid, speedcurve
from oarlock.web.pages.jobs import metrics
from oarlock.web.rendering import tables

POINTS, CHARTS = 200, 24
FEWEST_POINTS, MOST_POINTS = 25, 100_000
"""The points of a rank in a chart, and those of all ranks in all charts: very many ranks have fewer charts."""

LOG_LINES = 100
EVENTS = 50
DECISIONS = 50
MOST_DECISIONS = 5000
FILES = 50
ROWS = 16
"""With more ranks than that, they are a grid."""

MOST_RANKS = 10_000
MOST_ROWS = 1024


class Section(msgspec.Struct, frozen=True):
    """A section: the anchor, which names its template, too; its heading; and the function that finds its facts."""

    name: str
    title: str
    find: Callable[[visits.Visit, jobs.Job], Awaitable[dict[str, Any]]]

    @property
    def template(self) -> str:
        return f"jobs/sections/{self.name}.html"


async def _ranks(visit: visits.Visit, job: jobs.Job) -> dict[str, Any]:
    attempt = attempt_of(visit, job)
    tasks = attempt.tasks if attempt is not None else ()
    slow = straggler(job, attempt)
    as_table = len(tasks) <= ROWS or visit.asked("ranks") == "table"
    most = tables.most(visit.asked(tables.PARAMETER), "ranks", MOST_ROWS)
    return {
        "straggler": slow,
        "grid": [] if as_table else rankgrid.rows(tasks[:MOST_RANKS], slow.task if slow is not None else ""),
        "tasks": [(task, stragglers.share_text(task)) for task in tasks[:most]] if as_table else [],
        "count": len(tasks),
        "hidden": max(0, len(tasks) - (most if as_table else MOST_RANKS)),
        "foldable": len(tasks) > ROWS,
        "attempt": attempt.number if attempt is not None else 0,
        "chosen": attempt.number if attempt is not None and visit.asked("attempt") else None,
        "beside": beside(job, attempt),
    }


async def _metrics(visit: visits.Visit, job: jobs.Job) -> dict[str, Any]:
    try:
        names = sorted(await visit.client.metric_names(job.id), key=lambda name: (name != "loss", name))
        count, points = _extent(metrics.processes(job), len(names))
        found = await visit.client.metrics(job.id, names[:count], points=points) if names else answers.Metrics()
        marks = await metrics.marks(visit, job)
    except errors.OarlockError:
        return {"charts": [], "marked": False, "hidden": 0}
    told = msgspec.structs.replace(found, names=tuple(names[:count]))
    drawn = await asyncio.to_thread(charts.charts, told, **marks)
    marked = any(one.marks or any(line.gaps for line in one.lines) for one in drawn)
    return {"charts": drawn, "marked": marked, "hidden": len(names) - count}


def _extent(ranks: int, names: int) -> tuple[int, int]:
    """Return how many names have a chart, and how many points of each rank are read for one."""
    count = min(names, CHARTS, max(1, MOST_POINTS // (ranks * FEWEST_POINTS)))
    return count, max(1, min(POINTS, MOST_POINTS // (ranks * max(1, count))))


async def _log(visit: visits.Visit, job: jobs.Job) -> dict[str, Any]:
    if job.attempt is None:
        return {"lines": []}
    return {"lines": await lines(visit, job.id, requests.LogChoice(tail=LOG_LINES))}


async def _speed(visit: visits.Visit, job: jobs.Job) -> dict[str, Any]:
    found = await visit.client.speed(job.id) if job.curve is not None else bodies.Speed(items=())
    return {"speed": found, "drawn": speedcurve.draw(found.items)}


async def _checkpoints(visit: visits.Visit, job: jobs.Job) -> dict[str, Any]:
    return {"checkpoints": await visit.client.checkpoints(job.id)}


async def _files(visit: visits.Visit, job: jobs.Job) -> dict[str, Any]:
    try:
        found = await visit.client.files(job.id)
    except errors.OarlockError as error:
        return {"files": [], "total": 0, "bytes": 0, "elsewhere": (), "kept": [], "failure": error.message}
    left = [one for one in found.items if one.path.startswith(("files/", "results/"))]
    return {
        "files": left[: tables.most(visit.asked(tables.PARAMETER), "files", FILES)],
        "total": len(left),
        "bytes": sum(one.bytes for one in left),
        "elsewhere": found.elsewhere,
        "kept": keptfiles.lines(job, job.id),
        "failure": "",
    }


async def _decisions(visit: visits.Visit, job: jobs.Job) -> dict[str, Any]:
    found = await visit.client.decisions(job.id)
    kind, every = visit.asked("decision"), visit.asked("decisions") == "all"
    shown = tables.most(visit.asked(tables.PARAMETER), "decisions", MOST_DECISIONS if every else DECISIONS)
    counts = {what: sum(one.what is what for one in found.items) for what in bodies.What}
    chosen = [one for one in found.items if not kind or str(one.what) == kind]
    return {
        "decisions": chosen[-shown:][::-1],
        "hidden": max(0, len(chosen) - shown),
        "complete": found.complete,
        "kinds": [(str(what), count) for what, count in counts.items() if count],
        "kind": kind,
    }


async def _file(visit: visits.Visit, job: jobs.Job) -> dict[str, Any]:
    """Return the job file with the code and the variables. Secrets are in the file by their names only."""
    return {
        "spec": msgspec.yaml.encode(job.spec).decode(),
        "environment": sorted({**job.shell, **job.spec.env}.items()),
    }


async def _events(visit: visits.Visit, job: jobs.Job) -> dict[str, Any]:
    found = eventlines.folded(await visit.client.events(job.id))
    shown = tables.most(visit.asked(tables.PARAMETER), "events", EVENTS)
    return {
        "events": [
            {"record": record, "count": count, "facts": eventlines.facts(record.data)}
            for record, count in found[-shown:][::-1]
        ],
        "hidden": max(0, len(found) - shown),
    }


SECTIONS: tuple[Section, ...] = (
    Section("ranks", "Ranks", _ranks),
    Section("metrics", "Metrics", _metrics),
    Section("log", "Log", _log),
    Section("speed", "Speed", _speed),
    Section("checkpoints", "Checkpoints", _checkpoints),
    Section("files", "Results and files", _files),
    Section("decisions", "Decisions", _decisions),
    Section("file", "Job file", _file),
    Section("events", "Events", _events),
)


async def lines(visit: visits.Visit, job: str, choice: requests.LogChoice) -> list[Any]:
    """Return lines of the log, none of a task that the log does not know."""
    try:
        return [line async for line in visit.client.log_items(job, choice) if hasattr(line, "text")]
    except errors.NotFound:
        return []


def attempt_of(visit: visits.Visit, job: jobs.Job) -> attempts.Attempt | None:
    """Return the attempt that the address names, without a name the present or last one; None where there is none.

    Raises InvalidInput, and NotFound for an attempt that the job has not had.
    """
    asked = visit.asked("attempt")
    if not asked:
        return job.attempt
    if not asked.isdecimal():
        raise errors.InvalidInput("The attempt is not a number.", hint="The first attempt is 1.")
    found = next((one for one in job.attempts if one.number == int(asked[:9])), None)
    if found is None:
        last = job.attempts[-1].number if job.attempts else 0
        hint = f"Its last attempt is {last}." if last else "It waits for its first one."
        raise errors.NotFound(f"{job.name} has no attempt {asked[:9]}.", hint=hint)
    return found


def beside(job: jobs.Job, attempt: attempts.Attempt | None, task: attempts.Task | None = None) -> list[int]:
    """Return the numbers of the attempts before and after this one; with a task, of those that have had it."""
    if attempt is None:
        return []
    had = [one for one in job.attempts if task is None or one.task(task.role, task.index) is not None]
    earlier = [one.number for one in had if one.number < attempt.number]
    later = [one.number for one in had if one.number > attempt.number]
    return [*earlier[-1:], *later[:1]]


def straggler(job: jobs.Job, attempt: attempts.Attempt | None) -> stragglers.Straggler | None:
    """Return the rank that the others wait for now; None in an attempt that is over."""
    if attempt is None or job.live is None or job.live.number != attempt.number:
        return None
    return stragglers.find(attempt.tasks)


def task_of(attempt: attempts.Attempt | None, name: str) -> attempts.Task | None:
    """Return the rank of the attempt with this name."""
    return next((task for task in attempt.tasks if task.name == name), None) if attempt is not None else None
