"""A job of the list as a row of HTML.

A page of the list has a hundred rows, and a template takes many times as long for them. Every text of a user passes
`_text` here, as each value of a template does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple
from urllib.parse import quote

import jinja2
import markupsafe

from oarlock.display import amounts, durations
from oarlock.display.tables import jobcells
from oarlock.spec import jobs, summaries
from oarlock.web.rendering import parts, texts, times

LABEL_CHARACTERS = 80
CELL_CHARACTERS = 200
MOST_KEPT = 1000
"""Rows of the last updates that are kept: about 2 kB each."""


class Column(NamedTuple):
    """A column that a reader may choose. `cell` returns the HTML of a job's cell."""

    heading: str
    cell: Callable[[summaries.Summary, times.Now], str]
    number: bool = False


@jinja2.pass_context
def rows(
    context: jinja2.runtime.Context, items: Iterable[summaries.Summary], columns: Sequence[str]
) -> markupsafe.Markup:
    """Return the rows of jobs for a template, as of the page's time."""
    now = times.now(context)
    make = row if now.words else _kept
    return markupsafe.Markup("\n".join(make(one, tuple(columns), now) for one in items))  # their texts are escaped


class _Kept(NamedTuple):
    job: summaries.Summary
    columns: tuple[str, ...]
    html: str


_ROWS: dict[str, _Kept] = {}


def _kept(job: summaries.Summary, columns: tuple[str, ...], now: times.Now) -> str:
    """Return a row of an update, which has no words of the time: that of the last update, if the job is the same."""
    if job.frozen_until is not None:
        return row(job, columns, now)
    kept = _ROWS.get(job.id)
    if kept is None or kept.columns != columns or kept.job != job:
        if len(_ROWS) >= MOST_KEPT:
            _ROWS.clear()
        kept = _ROWS[job.id] = _Kept(job, columns, row(job, columns, now))
    return kept.html


def row(job: summaries.Summary, columns: Sequence[str], now: times.Now) -> str:
    """Return the row of a job with these columns, after its box, its phase and its name."""
    job_id, label = _text(job.id), _text(job.name, LABEL_CHARACTERS)
    box = f'<input type="checkbox" name="job" value="{job_id}" aria-label="select {label}">'
    link = f'<a href="/jobs/{quote(job.id, safe="")}">{_text(job.name)}</a>'
    wanted = f' <span class="quiet">{job.wanted}</span>' if job.wanted is not None else ""
    cells = "".join(_cell(COLUMNS[name], job, now) for name in columns)
    return (
        f'<tr id="row-{job_id}"><td>{box}</td>\n<td>{parts.phase(jobcells.phase(job))}{wanted}</td>\n'
        f'<th scope="row">{link} <span class="quiet id">{_text(jobs.short_id(job.id))}</span></th>\n{cells}</tr>'
    )


def _cell(column: Column, job: summaries.Summary, now: times.Now) -> str:
    return f'<td class="{"number" if column.number else "wide"}">{column.cell(job, now)}</td>'


def _text(text: str, most: int = CELL_CHARACTERS) -> str:
    return texts.escaped(texts.cut(text, most))


def _progress(job: summaries.Summary, _: times.Now) -> str:
    if (reading := job.reading) is None:
        return ""
    return f"step {reading.step}" if job.terminal or reading.fraction is None else parts.bar(reading.fraction)


def _loss(job: summaries.Summary, _: times.Now) -> str:
    loss = job.reading.loss if job.reading is not None else None
    return amounts.number(loss) if loss is not None else ""


def _ran(job: summaries.Summary, now: times.Now) -> str:
    if job.started_at is None:
        return ""
    return times.duration("age", job.running_from, now) if job.running_from is not None else durations.age(job.ran_s)


COLUMNS: dict[str, Column] = {
    "owner": Column("Owner", lambda job, _: _text(job.owner)),
    "pool": Column("Pool", lambda job, _: _text(job.pool)),
    "tasks": Column("Tasks", lambda job, _: _text(jobcells.tasks(job))),
    "gpus": Column("GPUs", lambda job, _: f"{job.gpus:g}" if job.gpus else "", number=True),
    "progress": Column("Progress", _progress),
    "loss": Column("Loss", _loss, number=True),
    "ran": Column("Ran", _ran, number=True),
    "age": Column("Age", lambda job, now: times.moment("age", job.created_at, now), number=True),
    "priority": Column("Priority", lambda job, _: str(job.priority), number=True),
    "restarts": Column("Restarts", lambda job, _: str(job.restarts), number=True),
    "cost": Column("Cost", lambda job, _: f"{job.cost:.2f}", number=True),
    "command": Column("Command", lambda job, _: f"<code>{_text(job.command)}</code>"),
    "where": Column("Where, or why", lambda job, now: _text(jobcells.where(job, now.at))),
}
"""The phase and the name are always shown."""
