"""One job: its head and actions, why it waits or failed, its timeline, and sections that come when the reader does.

The head, the reasons and the timeline are in every answer. The other sections (`jobsections`) are made only where the
address names them: the page's script asks for those in view, a browser without scripts follows the link of each, and
`?sections=all` is the whole page as a report.
"""

from __future__ import annotations

import asyncio
import secrets
import shlex
from typing import Any

import msgspec
from starlette import responses

from oarlock.client import requests
from oarlock.display import amounts
from oarlock.display.jobs import endings, progress, ranks, stragglers
from oarlock.spec import bodies, errors, jobs, phases, roles, summaries
from oarlock.spec.access import users
from oarlock.spec.cluster import prices
from oarlock.spec.input import edits
from oarlock.web import routing
from oarlock.web.access import visits
from oarlock.web.drawing import colours, startaxis, timeline
from oarlock.web.pages.jobs import jobs as listed
from oarlock.web.pages.jobs import jobsections
from oarlock.web.rendering import tables, templating, times
from oarlock.web.updates import topics

ALL = "all"
RANK_LINES = 200
MOMENTS = 100
MOST_KEY = 64


async def show(visit: visits.Visit) -> routing.Filled:
    client = visit.client
    job = await client.job(visit.parameters["job"])
    now = visit.server.now
    jobsections.attempt_of(visit, job)  # refuses one that is not there, also before its ranks come into view
    why, events = await asyncio.gather(client.why(job.id), client.events(job.id, kinds=timeline.KINDS))
    short = summaries.of(job, now)
    drawn = timeline.draw(job, events, now)
    moments = drawn.moments if drawn is not None else ()
    shown_moments = tables.most(visit.asked(tables.PARAMETER), "timeline", MOMENTS)
    wanted = frozenset(name for text in visit.query.get("sections", ()) for name in text.split(","))
    shown = [one for one in jobsections.SECTIONS if one.name in wanted or ALL in wanted]
    found = await asyncio.gather(*(one.find(visit, job) for one in shown))
    return routing.Filled(
        template="jobs/job.html",
        once=short.terminal,  # the form to run it again has a key
        facts={
            "title": job.name,
            "job": job,
            "here": templating.job_path(job.id),
            "row": listed.row(short, now),
            "facts": progress.facts(short.reading) if short.reading is not None else [],
            "cost": _cost(
                visit, job.cost_at(times.steady(now)) if job.live is not None else job.cost, short.price_per_h
            ),
            "actions": actions(job, short) if visit.may(users.Right.USER) else [],
            "key": secrets.token_hex(16),
            "command": summaries.command(job),
            "colour": colours.of(job.id),
            "dash": colours.dash(job.id),
            "why": why,
            "refusal": why.refusal,
            "bars": _bars(why.refusal),
            "holders": _holders(why),
            "axis": startaxis.draw(why.forecast, why.ends, times.steady(now)),
            "remedies": _remedies(job, why) if visit.may(users.Right.USER) else [],
            "timeline": drawn,
            "moments": moments[-shown_moments:],
            "hidden_moments": max(0, len(moments) - shown_moments),
            "verdicts": [
                (attempt, ranks.failed_beside(attempt))
                for attempt in job.attempts[::-1]
                if attempt.verdict is not None or attempt.stacks
            ],
            "sections": jobsections.SECTIONS,
            "loaded": {one.name: facts for one, facts in zip(shown, found, strict=True)},
            "next_steps": endings.next_steps(job, job.id)[1:],
            "topics": _topics(job, visit.parameters["job"]),
            "refresh": 5 if job.phase in phases.RUNNING else topics.SLOW_S if why.forecast is not None else 0,
        },
    )


async def rank(visit: visits.Visit) -> routing.Filled:
    """Show one rank, in the last attempt unless the address names another: where it is, its exit record, its stacks,
    the end of its log.
    """
    job = await visit.client.job(visit.parameters["job"])
    attempt = jobsections.attempt_of(visit, job)
    task = jobsections.task_of(attempt, visit.parameters["task"])
    if task is None or attempt is None:
        raise errors.NotFound(f"{job.name} has no such rank.", hint=f"Its ranks: oarlock show {job.id}")
    chosen = attempt.number if visit.asked("attempt") else None
    slow = jobsections.straggler(job, attempt)
    choice = requests.LogChoice(role=str(task.role), index=task.index, attempt=chosen, tail=RANK_LINES)
    return routing.Filled(
        template="jobs/rank.html",
        facts={
            "title": f"{task.name} of {job.name}",
            "job": job,
            "here": templating.job_path(job.id),
            "task": task,
            "attempt": attempt,
            "chosen": chosen,
            "beside": jobsections.beside(job, attempt, task),
            "share": stragglers.share_text(task),
            "straggler": slow if slow is not None and slow.task == task.name else None,
            "stacks": [
                (one.number, taken)
                for one in ([attempt] if chosen is not None else job.attempts[::-1])
                for taken in one.stacks
                if taken.task == task.name
            ],
            "lines": await jobsections.lines(visit, job.id, choice),
            "topics": (topics.of_job(job.id),),
            "refresh": 5 if job.phase in phases.RUNNING and attempt.ended_at is None else 0,
        },
    )


async def job_file(visit: visits.Visit) -> responses.Response:
    """Return the job file as it was submitted."""
    job = await visit.client.job(visit.parameters["job"])
    headers = {"content-disposition": 'attachment; filename="job.yaml"'}
    return responses.Response(msgspec.yaml.encode(job.spec), media_type="application/yaml", headers=headers)


async def again(visit: visits.Visit) -> responses.Response:
    """Submit the job once more, with the same job file and the same code. The same form again makes no other job."""
    form = await visit.form()
    key = visits.one(form, "key")
    if not ((key.isascii() and key.isalnum() and len(key) <= MOST_KEY) or not key):
        raise errors.InvalidInput("This form has another key than it was made with.", hint="Open the job's page again.")
    job = await visit.client.job(visit.parameters["job"])
    if job.directory is not None:
        raise errors.Conflict(
            "The job ran in its directory itself, of which the server has no copy.",
            hint="Submit it again from there: oarlock run --in-place",
        )
    made = await visit.client.submit_packed(job.spec, job.snapshot, shell=job.shell, key=key or None)
    return routing.to(templating.job_path(made.id))


async def change(visit: visits.Visit) -> responses.Response:
    """Make the tried change of a job that still waits, by the fields that `oarlock set` changes.

    Raises Conflict where the job does not wait any more: the change was tried for its start, and would stay for good.
    """
    form = await visit.form()
    waiting = await visit.client.job(visit.parameters["job"])
    if waiting.phase is not phases.Phase.QUEUED:
        raise errors.Conflict(
            f"{waiting.name} is not waiting any more, and was not changed.",
            hint=f"Its page shows its present state. To change it anyway: oarlock set {waiting.id} --help",
        )
    typed = {field: text for field in edits.FIELDS if (text := visits.one(form, field).strip())}
    changes: dict[str, Any] = {name: text if name == "pool" else _number(name, text) for name, text in typed.items()}
    job = await visit.client.set(visit.parameters["job"], **changes)
    return routing.to(templating.job_path(job.id))


def _topics(job: jobs.Job, asked: str) -> tuple[str, ...]:
    """Return the topics of the job's page. A waiting job's expected start depends on all others.

    An address with a name (`asked`) shows the newest job of that name, which may become another one.
    """
    waits = job.phase is phases.Phase.QUEUED
    newest = (topics.JOBS,) if asked != job.id else ()
    return topics.of_job(job.id), *newest, *(sorted(topics.SHARED) if waits else ())


def _number(field: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise errors.InvalidInput(f"{text[:100]} is not a whole number.", path=field, hint="Write it with digits.")
    return int(text)


def actions(job: jobs.Job, short: summaries.Summary) -> list[dict[str, Any]]:
    """Return the actions that the job's phase allows, each with the command that does the same."""
    if short.terminal:
        names = ["remove"]
    elif short.phase is phases.Phase.HALTED:
        names = ["resume", "cancel"]
    else:
        names = ["halt", "cancel"]
    return [
        {"name": name, "word": listed.ACTIONS[name], "command": f"oarlock {listed.VERBS[name]} {short.id}"}
        for name in names
    ]


def _cost(visit: visits.Visit, cost: float, price_per_h: float) -> str:
    if not cost and not price_per_h:
        return ""
    currency = visit.server.currency
    hourly = f", {prices.amount_text(price_per_h, currency)} an hour" if price_per_h else ""
    return prices.amount_text(cost, currency) + hourly


def _holders(why: bodies.Why) -> list[dict[str, Any]]:
    """Return the jobs that hold the missing resources, or will, each with its amounts and its expected end."""
    if why.refusal is None:
        return []
    ends = why.ends or (None,) * len(why.refusal.holders)
    return [{"holder": one, "end": end} for one, end in zip(why.refusal.holders, ends, strict=True)]


def _remedies(job: jobs.Job, why: bodies.Why) -> list[dict[str, Any]]:
    """Return the tried changes that can be made by an edit, each with its fields and the command that does the same."""
    found = []
    for one in why.forecast.remedies if why.forecast is not None else ():
        if one.edit is not None:
            fields = {name: str(value) for name in edits.FIELDS if (value := getattr(one.edit, name)) is not None}
            options = " ".join(f"--{name} {shlex.quote(value)}" for name, value in fields.items())
            command = f"oarlock set {job.id} {options}"
            found.append({"words": one.words, "fields": fields, "command": command, "note": _note(job, one.edit)})
    return found


def _note(job: jobs.Job, edit: edits.Edit) -> str:
    worker = job.spec.roles.get(roles.RoleName.WORKER)
    if edit.min is None or worker is None:
        return ""
    return f"It grows to {amounts.counted(worker.max or worker.count, 'worker')} when there is room."


def _bars(refusal: Any) -> list[dict[str, Any]]:
    """Return for each resource that a waiting job needs how much of it is free, as parts of one scale."""
    if refusal is None:
        return []
    found = []
    for resource, needed in refusal.needed.items():
        if resource not in refusal.total:
            continue  # a pool that lacks one resource tells nothing about the others
        free = refusal.free.get(resource, 0.0)  # a resource of which nothing is free is left out
        held = max(0.0, refusal.total[resource] - free)
        full = max(needed, free + held) or 1.0
        found.append(
            {
                "resource": resource,
                "needed": needed,
                "free": free,
                "held": held,
                "needed_at": 100 * needed / full,
                "free_width": 100 * free / full,
                "held_width": 100 * held / full,
            }
        )
    return found


PAGES: tuple[routing.Page, ...] = (
    routing.Page(path="/jobs/{job}", handler=show, live=True),
    routing.Page(path="/jobs/{job}/ranks/{task}", handler=rank, live=True),
    routing.Page(path="/jobs/{job}/job.yaml", handler=job_file),
    routing.Page(path="/jobs/{job}/set", handler=change, method="POST", right=users.Right.USER),
    routing.Page(path="/jobs/{job}/again", handler=again, method="POST", right=users.Right.USER),
)
