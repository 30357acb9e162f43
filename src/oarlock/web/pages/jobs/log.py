"""The log of a job: opened at its end, at a line or at a hit, and followed; a search through all of it; as a file."""

from __future__ import annotations

import asyncio
import datetime as dt
import itertools
import re
import shlex
from collections.abc import AsyncIterator
from typing import Any

import markupsafe
import msgspec
from starlette import responses

from oarlock.client import requests, verbs
from oarlock.display.jobs import ranks
from oarlock.spec import errors, jobs, phases, tasklogs
from oarlock.web import routing
from oarlock.web.access import visits
from oarlock.web.drawing import folding, terminal
from oarlock.web.rendering import loglines, templating
from oarlock.web.updates import topics

SHOWN = 1000
AROUND = 250
"""Lines before and after the one that is asked for."""
MOST_CHARACTERS = 1_000_000
"""The most text of a page. Its further lines are cut to `FEW_CHARACTERS`."""
FEW_CHARACTERS = 200
MOST_MARKS = 100
"""Further hits in one style of a line are not marked."""
MOST_LINES = 2000
"""Lines that a script asks for at a time."""
FILTERS = ("task", "attempt", "stream", "since", "until")
FLAGS = ("regex", "exact", "wrap", "times", "apart")
STREAMS = ("stdout", "stderr")
_TASK = re.compile(r"([a-z]{1,32})-(\d{1,9})")


class Part(msgspec.Struct, frozen=True):
    """The part of a log that a page shows: so many lines before a place, and from it on."""

    at: str
    before: int
    after: int


class Search(msgspec.Struct, frozen=True):
    """The hits of a search as seen from the page: the number of the one that is shown, and those beside it."""

    hits: int
    number: int
    previous: str
    shown: str
    following: str
    whole: bool


async def show(visit: visits.Visit) -> routing.Filled:
    """Show the log. An open page that fetches itself again gets all but the lines, which its script asks for."""
    job = await visit.client.job(visit.parameters["job"])
    chosen = _chosen(visit)
    shown = (
        {"rows": "", "search": None, "blamed": "", "page": None}
        if visit.fragment
        else await _opened(visit, job, chosen)
    )
    kept = {name: value for name, value in chosen.items() if value}
    named = visit.asked("line") or visit.asked("at") not in ("", "end")  # else the page goes on at the end
    by_name = visit.parameters["job"] != job.id  # it may be another job's soon
    return routing.Filled(
        template="jobs/log.html",
        facts={
            **shown,
            "job": job,
            "chosen": chosen,
            "kept": kept,
            "poll_ms": _poll_ms(job),
            "title": f"Log of {job.name}",
            "tasks": sorted({task.name for attempt in job.attempts for task in attempt.tasks}, key=_order),
            "attempts": [attempt.number for attempt in job.attempts],
            "streams": STREAMS,
            "expressions": visit.offers(tasklogs.EXPRESSIONS),
            "command": _command(job, chosen, _part(visit, visit.asked("line")) if named else None),
            "topics": (topics.of_job(job.id), *((topics.JOBS,) if by_name else ())),
        },
    )


async def _opened(visit: visits.Visit, job: jobs.Job, chosen: dict[str, Any]) -> dict[str, Any]:
    """Return the lines where the page is opened, and the search that leads there."""
    choice = _choice(chosen, visit.server.now)
    line, search, blamed = visit.asked("line"), None, ""
    if chosen["q"]:
        search = await _search(visit, job, choice, chosen, line)
        line = line or ("" if visit.asked("at") else search.shown)
    elif not line and not visit.asked("at"):
        blamed = _blamed(job, chosen)
        line = await _last_line(visit, job, blamed) if blamed else ""
    part = _part(visit, line)
    page = await visit.client.log_page(job.id, choice, at=part.at, before=part.before, after=part.after)
    facts = await asyncio.to_thread(_lines, job, page, chosen, line)
    opened = "line" if line else "end" if part.at == "end" else "start"
    return {**facts, "search": search, "blamed": blamed if line else "", "opened": opened}


def _part(visit: visits.Visit, line: str) -> Part:
    """Return the part of the log around a line, else the one that the address names, by default the end."""
    if line:
        return Part(line, AROUND, AROUND)
    place = visit.asked("at") or "end"
    return Part(place, SHOWN, 0) if place == "end" or visit.asked("back") else Part(place, 0, SHOWN)


async def lines(visit: visits.Visit) -> routing.Filled:
    """Return the rows before or after a place, for the script of the page."""
    job = await visit.client.job(visit.parameters["job"])
    chosen = _chosen(visit)
    counts = {
        name: min(MOST_LINES, int(text[:9])) for name in ("before", "after") if (text := visit.asked(name)).isdecimal()
    }
    now = (await visit.client.summaries(limit=1)).now if chosen["since"] or chosen["until"] else 0.0
    place = visit.asked("place") or "end"
    page = await visit.client.log_page(job.id, _choice(chosen, now), at=place, **counts)
    return routing.Filled(template="jobs/loglines.html", facts=await asyncio.to_thread(_lines, job, page, chosen, ""))


async def download(visit: visits.Visit) -> responses.StreamingResponse:
    """Return the text as the tasks wrote it; with the task's name before each line if there are several."""
    job = await visit.client.job(visit.parameters["job"])
    chosen = _chosen(visit)
    choice = _choice(chosen, visit.server.now)
    await visit.client.log_page(job.id, choice)  # refuses a task or an attempt that is not there
    alone = choice.index is not None or len({task.name for one in job.attempts for task in one.tasks}) < 2
    headers = {"content-disposition": f'attachment; filename="{job.name}.log"'}
    return responses.StreamingResponse(
        _bytes(visit, job, choice, alone=alone), media_type="text/plain; charset=utf-8", headers=headers
    )


async def _bytes(
    visit: visits.Visit, job: jobs.Job, choice: requests.LogChoice, *, alone: bool
) -> AsyncIterator[bytes]:
    try:
        async for item in visit.client.log_items(job.id, choice, blocks=True):
            if not isinstance(item, tasklogs.Line):
                continue
            whole = isinstance(item, tasklogs.Lines)
            data = item.data if isinstance(item, tasklogs.Lines) else item.text.encode("utf-8", "replace")
            if alone:
                yield data if whole or item.partial else data + b"\n"
            else:
                name = f"{item.task} | ".encode()
                yield b"".join(name + line + b"\n" for line in data.removesuffix(b"\n").split(b"\n"))
    finally:
        await visit.close()


def _lines(job: jobs.Job, page: tasklogs.LogPage, chosen: dict[str, Any], line: str) -> dict[str, Any]:
    rows = folding.rows(page.lines, page.unended, fold=not chosen["apart"])
    sizes = itertools.accumulate((min(len(row.line.text), terminal.MOST_CHARACTERS) for row in rows), initial=0)
    widths = [terminal.MOST_CHARACTERS if size < MOST_CHARACTERS else FEW_CHARACTERS for size in sizes]
    several = len({task.name for attempt in job.attempts for task in attempt.tasks}) > 1
    kept = {name: value for name, value in chosen.items() if value}
    to = f"{templating.job_path(job.id)}/log{templating.query(kept) + '&' if kept else '?'}line="
    shown = [_row(row, chosen, line, to, most, several=several) for row, most in zip(rows, widths, strict=False)]
    rows_text = markupsafe.Markup("".join(shown))  # escaped in each row
    return {"page": page, "rows": rows_text, "poll_ms": _poll_ms(job)}


def _poll_ms(job: jobs.Job) -> int:
    """Return the pause after which a page asks for more lines, 0 for none."""
    return 0 if job.terminal else 500 if job.phase in phases.RUNNING else 5000


def _row(row: folding.Row, chosen: dict[str, Any], line: str, to: str, most: int, *, several: bool) -> str:
    one = row.line
    plain = chosen["q"] if not chosen["regex"] else ""
    here = line in row.addresses
    words = {
        "chosen": here,
        "err": one.stream.startswith("stderr"),
        "open": row.open,
        "part": one.partial,
        "redrawn": row.redrawn,
    }
    return loglines.row(
        address=line if here else row.address,
        classes=" ".join(word for word, holds in words.items() if holds),
        to=to,
        at=one.at,
        origin=one.task if several else one.offset,
        tasks=ranks.folded([one.task, *row.others]) if row.others else "",
        count=1 + len(row.others),
        parts=[
            part for run in terminal.runs(one.text, most) for part in _marked(run, plain, exact=bool(chosen["exact"]))
        ],
    )


def _marked(run: terminal.Run, text: str, *, exact: bool) -> list[tuple[str, str, bool]]:
    """Return the parts of a run: text, classes, and whether it is what was searched for."""
    if not text:
        return [(run.text, run.classes, False)]
    shown, wanted = (run.text, text) if exact else (run.text.lower(), text.lower())
    if len(shown) != len(run.text):  # few letters have another length in lower case
        shown, wanted = run.text, text
    parts: list[tuple[str, str, bool]] = []
    at = 0
    while len(parts) < 2 * MOST_MARKS and (hit := shown.find(wanted, at)) >= 0:
        parts += [(run.text[at:hit], run.classes, False), (run.text[hit : hit + len(wanted)], run.classes, True)]
        at = hit + len(wanted)
    return [part for part in (*parts, (run.text[at:], run.classes, False)) if part[0]]


async def _search(
    visit: visits.Visit, job: jobs.Job, choice: requests.LogChoice, chosen: dict[str, Any], line: str
) -> Search:
    wanted = tasklogs.LogSearch(text=chosen["q"], regex=bool(chosen["regex"]), ignore_case=not chosen["exact"])
    search = visit.client.search_log(job.id, wanted, choice, at=line or "start", limit=2)
    found = await visit.while_there(search)
    near = [folding.address(one) for one in found.lines]
    at_hit = not line or line == next(iter(near), "")
    return Search(
        hits=found.hits,
        number=found.earlier + 1 if near and at_hit else 0,
        previous=folding.address(found.previous) if found.previous is not None else "",
        shown=near[0] if near else "",
        following=next(iter(near[1:] if at_hit else near), ""),
        whole=found.whole,
    )


def _blamed(job: jobs.Job, chosen: dict[str, Any]) -> str:
    """Return the task that the job's failure is blamed on, unless the reader has asked for something else."""
    if job.phase is not phases.Phase.FAILED or any(chosen[name] for name in FILTERS) or not job.attempts:
        return ""
    verdict = job.attempts[-1].verdict
    return verdict.task or "" if verdict is not None else ""


async def _last_line(visit: visits.Visit, job: jobs.Job, task: str) -> str:
    choice = _of_task(task, requests.LogChoice(attempt=job.attempts[-1].number))
    if choice is None:
        return ""
    page = await visit.client.log_page(job.id, choice, before=1)
    return folding.address(page.lines[-1]) if page.lines else ""


def _of_task(task: str, choice: requests.LogChoice) -> requests.LogChoice | None:
    if (found := _TASK.fullmatch(task)) is None:
        return None
    return msgspec.structs.replace(choice, role=found[1], index=int(found[2]))


def _chosen(visit: visits.Visit) -> dict[str, Any]:
    """Return the filters and the look as the address has them."""
    return {name: visit.asked(name) for name in (*FILTERS, "q", *FLAGS)}


def _choice(chosen: dict[str, Any], now: float) -> requests.LogChoice:
    attempt = chosen["attempt"]
    if attempt and not attempt.isdecimal():
        raise errors.InvalidInput("The attempt is not a number.", hint="The first attempt is 1.")
    choice = requests.LogChoice(
        attempt=int(attempt[:9]) if attempt else None,
        stream=chosen["stream"] or None,
        since=verbs.since_of(chosen["since"], now, dt.UTC) if chosen["since"] else None,
        until=verbs.since_of(chosen["until"], now, dt.UTC, path="until") if chosen["until"] else None,
    )
    if chosen["task"]:
        told = _of_task(chosen["task"], choice)
        if told is None:
            raise errors.NotFound("There is no such task.", hint="A task is named by its role and number: worker-0.")
        choice = told
    return choice


def _command(job: jobs.Job, chosen: dict[str, Any], part: Part | None = None) -> str:
    """Return the command that prints the same lines: a part of the log, or all of it."""
    task = _TASK.fullmatch(chosen["task"])
    words = [f"--role {task[1]} --index {task[2]}"] if task else []
    words += [f"--{name} {shlex.quote(chosen[name])}" for name in ("attempt", "stream") if chosen[name]]
    words += [f"--{name} {shlex.quote(_with_zone(chosen[name]))}" for name in ("since", "until") if chosen[name]]
    if part is not None:
        words.append(f"--at {shlex.quote(part.at)} --before {part.before} --after {part.after}")
    elif chosen["q"]:
        words.append(f"--search={shlex.quote(chosen['q'])}")  # a text may begin like an option
        words += ["--regex"] if chosen["regex"] else []
        words += [] if chosen["exact"] else ["--ignore-case"]
    elif not job.terminal:
        words.append("--follow")
    return " ".join(["oarlock logs", job.id, *words])


def _with_zone(when: str) -> str:
    """Return a time with the zone that this page takes it to be in: the command line takes the terminal's."""
    try:
        read = dt.datetime.fromisoformat(when)
    except ValueError:
        return when  # a time ago, or one that the page has refused
    return when if read.tzinfo is not None else read.replace(tzinfo=dt.UTC).isoformat()


def _order(task: str) -> tuple[str, int]:
    role, _, index = task.rpartition("-")
    return role, int(index) if index.isdecimal() else 0


PAGES: tuple[routing.Page, ...] = (
    routing.Page(path="/jobs/{job}/log", handler=show, live=True),
    routing.Page(path="/jobs/{job}/log/lines", handler=lines),
    routing.Page(path="/jobs/{job}/log.txt", handler=download),
)
