"""The list of jobs: filtered, sorted and counted by the API, a hundred at a time; actions on many; the list as CSV."""

from __future__ import annotations

import csv
import datetime as dt
import io
import math
from typing import Any, NamedTuple

from starlette import responses

from oarlock.client import verbs
from oarlock.display import amounts
from oarlock.display.tables import jobcells
from oarlock.spec import bodies, errors, jobs, phases, summaries
from oarlock.spec.access import users
from oarlock.web import routing
from oarlock.web.access import visits
from oarlock.web.drawing import colours
from oarlock.web.rendering import jobrows, templating, texts
from oarlock.web.updates import topics

PAGE = 100
MOST_SELECTED = 100
NAMED_NODES = 4
SORTS = ("created", "name", "owner", "pool", "phase")
FILTERS = ("owner", "pool", "name", "text")
TIMES = ("since", "until")
CSV_MOST = 10_000
ACTIONS = {"halt": "Halt", "resume": "Resume", "cancel": "Cancel", "remove": "Remove"}
VERBS = {"halt": "halt", "resume": "resume", "cancel": "cancel", "remove": "rm"}
DONE = {"halt": "halted", "resume": "resumed", "cancel": "canceled", "remove": "removed"}
LIST = ("phase", *FILTERS, *TIMES, "sort", "ascending", "column", "after")
COLUMNS = ("id", "name", "phase", "owner", "pool", "tasks", "gpus", "progress", "loss", "ran_s", "created_at", "cost")

SHOWN = ("owner", "pool", "tasks", "gpus", "progress", "ran", "age", "where")


class Result(NamedTuple):
    """A job by its name, or by what it was asked for, and why the action failed; None where it was done."""

    job: str
    error: errors.OarlockError | None = None


async def show(visit: visits.Visit) -> routing.Filled:
    """Show a page of the list. Jobs that came after the page was opened (`seen`) are only counted."""
    seen, chosen = _time(visit.asked("seen")), _chosen(visit)
    try:
        page = await _found(visit, PAGE, visit.asked("after") or None, until=seen)
    except errors.Gone as error:
        first = {"next": f"/jobs{templating.query(chosen)}", "onward": "First page of this list"}
        return routing.Filled(
            template="error.html", facts={"title": "Jobs", "error": error, **first}, status=error.status
        )
    fresh = {} if seen is None else (await _found(visit, 1, None, since=seen)).phases
    wanted = [phase for phase in phases.Phase if not chosen["phase"] or phase in chosen["phase"]]
    return routing.Filled(
        template="jobs/jobs.html",
        facts={
            "rows": page.items,
            "total": sum(page.phases.get(phase, 0) + fresh.get(phase, 0) for phase in wanted),
            "fresh": sum(fresh.get(phase, 0) for phase in wanted),
            "seen": _newest(visit, page) if seen is None else seen,
            "counts": [(phase, page.phases.get(phase, 0) + fresh.get(phase, 0)) for phase in phases.Phase],
            "choices": jobrows.COLUMNS,
            "columns": tuple(chosen["column"] or SHOWN),
            "chosen": chosen,
            "following": page.next if len(page.items) == PAGE else None,
            "after": visit.asked("after"),
            "first": not visit.asked("after"),
            "filtered": any(chosen[name] for name in ("phase", *FILTERS, *TIMES)),
            "sorts": SORTS,
            "verbs": VERBS,
            "actions": ACTIONS if visit.may(users.Right.USER) else {},
            "topics": (topics.JOBS,),
            "refresh": 5 if any(one.phase in phases.RUNNING for one in page.items) else 0,
        },
    )


async def download(visit: visits.Visit) -> responses.Response:
    """Return the whole list, up to a bound that its last line names."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow([*COLUMNS, "where_or_why", "command"])
    after: str | None = None
    written = 0
    while written < CSV_MOST:
        page = await _found(visit, PAGE, after)
        for one in page.items:
            writer.writerow([texts.cell(value) for value in _cells(one, page.now)])
        written += len(page.items)
        after = page.next
        if after is None:
            break
    else:
        writer.writerow([f"cut after {CSV_MOST} jobs"])
    headers = {"content-disposition": 'attachment; filename="jobs.csv"'}
    return responses.Response(text.getvalue(), media_type="text/csv", headers=headers)


async def act(visit: visits.Visit) -> routing.Filled | responses.Response:
    """Do one action on several jobs. One that may lose something is asked about first, on a page that says what."""
    form = await visit.form()
    action, names = visits.one(form, "action"), list(dict.fromkeys(form.get("job", ())))
    if action not in ACTIONS:
        raise errors.InvalidInput("There is no such action.", hint=f"There are: {', '.join(ACTIONS)}.")
    if not names:
        raise errors.InvalidInput("No job is selected.", hint="Select jobs in the first column.")
    if len(names) > MOST_SELECTED:
        raise errors.TooLarge("Too many jobs are selected.", hint=f"Select at most {MOST_SELECTED}.")
    if not visits.one(form, "sure"):
        found = [await visit.client.job(name) for name in names]
        steps = [await _last_step(visit, one.id) for one in found]
        if action != "resume" or any(starts_again(one, step) for one, step in zip(found, steps, strict=True)):
            now = (await visit.client.summaries(limit=1)).now
            rows = []
            for one, step in zip(found, steps, strict=True):
                short = summaries.of(one, now)
                rows.append((one, lost_by(action, short, step), "Nothing." if action == "resume" else freed_by(short)))
            asked = {"action": action, "verb": VERBS[action], "rows": rows, "back": _list(visit)}
            return routing.Filled(template="sure.html", facts=asked)
    results = [await _done(visit, action, name) for name in names]
    failures = [one for one in results if one.error is not None]
    if failures:
        facts = {"title": "Not all was done", "results": results, "failed": len(failures), "back": _list(visit)}
        error = failures[0].error
        assert error is not None, "a failure has its error"
        return routing.Filled(template="jobs/results.html", facts=facts | {"done": DONE[action]}, status=error.status)
    alone = action != "remove" and len(names) == 1 and not visit.query
    return routing.to(f"/jobs/{names[0]}" if alone else _list(visit))


async def _done(visit: visits.Visit, action: str, job: str) -> Result:
    """Do one action on one job. The answer of each but a removal has its name."""
    name = await _name(visit, job) if action == "remove" else ""
    try:
        done = await getattr(visit.client, action)(job)
    except errors.Unauthenticated:
        raise
    except errors.OarlockError as error:
        return Result(name or await _name(visit, job), error)
    return Result(name or done.name)


async def _name(visit: visits.Visit, job: str) -> str:
    """Return the name of a job, and what it was asked for where there is none."""
    try:
        return (await visit.client.job(job)).name
    except errors.Unauthenticated:
        raise
    except errors.OarlockError:
        return job


def _list(visit: visits.Visit) -> str:
    """Return the address of the list that the form stands in, with its filter, its order and its columns."""
    return "/jobs" + templating.query({name: visit.query.get(name, []) for name in LIST})


def starts_again(job: jobs.Job, checkpoint: int | None) -> bool:
    """Return whether the job begins at its first step when it is resumed."""
    return job.phase is phases.Phase.HALTED and bool(job.attempts) and checkpoint is None


def lost_by(action: str, job: summaries.Summary, checkpoint: int | None) -> str:
    """Return the loss that the action causes, in one sentence."""
    if action == "remove":
        return "Its record, logs, metrics, checkpoints and kept files are deleted."
    if action == "resume":
        if checkpoint is None:
            return "It has no checkpoint: it starts again from its first step."
        return f"Nothing: it goes on from its checkpoint of step {checkpoint}."
    if job.reading is None and checkpoint is not None:
        return f"It has told of no step since it began again; its checkpoint of step {checkpoint} stays."
    if job.reading is None:
        return "It has made no progress yet."
    steps = job.reading.step - (checkpoint or 0)
    if action == "halt":
        kept = f"its checkpoint of step {checkpoint} stays" if checkpoint is not None else "it has no checkpoint yet"
        return f"{max(0, steps):,} steps since the last checkpoint, if it saves none when it is told to stop; {kept}."
    kept = f"its checkpoint of step {checkpoint} stays" if checkpoint is not None else "it has no checkpoint"
    return f"{max(0, steps):,} steps since the last checkpoint are lost; {kept}."


def freed_by(job: summaries.Summary) -> str:
    """Return the devices and nodes that become free when the job ends."""
    if not job.places:
        return "Nothing: it holds nothing."
    nodes = ", ".join(_place(one) for one in job.places[:NAMED_NODES])
    more = job.nodes - NAMED_NODES
    others = f" and {amounts.counted(more, 'more node')}" if more > 0 else ""
    if not job.gpus:
        return f"CPUs and memory on {nodes}{others}."
    return f"{job.gpus:g} {'GPU' if job.gpus <= 1 else 'GPUs'}: {nodes}{others}."


def _place(place: summaries.Place) -> str:
    return f"{place.node} ({', '.join(map(str, place.devices))})" if place.devices else place.node


def row(job: summaries.Summary, now: float) -> dict[str, Any]:
    """Return the cells of a job's row."""
    return {
        "job": job,
        "colour": colours.of(job.id),
        "phase": jobcells.phase(job),
        "tasks": jobcells.tasks(job),
        "where": jobcells.where(job, now),
        "fraction": None if job.terminal or job.reading is None else job.reading.fraction,
    }


async def _last_step(visit: visits.Visit, job: str) -> int | None:
    found = await visit.client.checkpoints(job)
    return found[0].step if found else None


async def _found(
    visit: visits.Visit, limit: int, after: str | None, *, since: float | None = None, until: float | None = None
) -> bodies.SummaryPage:
    chosen = _chosen(visit)
    wanted = {name: chosen[name] or None for name in FILTERS}
    order = {"sort": chosen["sort"], "ascending": chosen["ascending"] == "true" or None}
    first, last = (
        verbs.since_of(chosen[name], visit.server.now, dt.UTC, path=name) if chosen[name] else None for name in TIMES
    )
    times = {
        "since": max((at for at in (since, first) if at is not None), default=None),
        "until": min((at for at in (until, last) if at is not None), default=None),
    }
    return await visit.client.summaries(phases=chosen["phase"], after=after, limit=limit, **wanted, **order, **times)


def _newest(visit: visits.Visit, page: bodies.SummaryPage) -> float:
    """Return the time just after the newest job of the list: the same in all tabs that were opened since it came."""
    chosen = _chosen(visit)
    first = not visit.asked("after") and chosen["sort"] == "created" and chosen["ascending"] != "true"
    return math.nextafter(page.items[0].created_at, math.inf) if first and page.items else page.now


def _time(text: str) -> float | None:
    """Return a time of the address, None where it has none."""
    number = text.replace(".", "", 1)
    return float(text) if number.isascii() and number.isdigit() and len(text) < 20 else None


def _chosen(visit: visits.Visit) -> dict[str, Any]:
    """Return the filter and the order as the address has them."""
    return {
        "phase": [one for one in visit.query.get("phase", ()) if one],
        **{name: visit.asked(name).strip() for name in (*FILTERS, *TIMES)},
        "sort": visit.asked("sort") or "created",
        "ascending": visit.asked("ascending"),
        "column": [one for one in visit.query.get("column", ()) if one in jobrows.COLUMNS],
    }


def _cells(job: summaries.Summary, now: float) -> list[Any]:
    reading = job.reading
    return [
        job.id,
        job.name,
        str(job.phase),
        job.owner,
        job.pool,
        jobcells.tasks(job),
        job.gpus,
        reading.step if reading is not None else "",
        reading.loss if reading is not None else "",
        round(job.ran_s, 3),
        job.created_at,
        job.cost,
        jobcells.where(job, now),
        job.command,
    ]


PAGES: tuple[routing.Page, ...] = (
    routing.Page(path="/jobs", title="Jobs", handler=show, key="j", live=True),
    routing.Page(path="/jobs.csv", handler=download),
    routing.Page(path="/jobs", handler=act, method="POST", right=users.Right.USER),
)
