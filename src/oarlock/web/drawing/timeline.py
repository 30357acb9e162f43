"""The timeline of a job as SVG: one bar for each attempt, coloured by its phase, with marks for its events. Pure.

The same in words is a list of all parts and marks in the order of their times.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import msgspec

from oarlock.display import marks
from oarlock.spec import attempts, events, jobs, phases

WIDTH, ROW = 640, 24
MARKS = {
    "checkpoint_visible": ("◆", "checkpoint"),
    "stacks_asked": ("!", "hang: stacks were asked for"),
    "ousted": ("x", "the others go on without a worker that hung"),
    "batch_decided": ("b", "another batch size"),
    "reshaped": ("↕", "another number of workers"),
}
INTENTS = {"halt": ("‖", "halt"), "run": ("▶", "resume"), "cancel": ("■", "cancel"), "preempt": ("<", "preempted")}
INTENTS |= {"resize": ("↔", "resized")}
KINDS = ("intended", *MARKS)
"""The kinds of events that `draw` needs."""
MOST_MARKS = 200
PARTS, STEP_S = 128, 5.0
"""A timeline that still grows does so by one of so many parts, and by no less than a step."""


class Stretch(msgspec.Struct, frozen=True):
    """A part of a bar, from `x` on, in the colour of a phase. It began `at` and lasted `until`; None: it goes on."""

    x: float
    width: float
    colour: str
    word: str
    at: float
    until: float | None


class Mark(msgspec.Struct, frozen=True):
    x: float
    glyph: str
    word: str
    at: float


class Row(msgspec.Struct, frozen=True):
    """An attempt: its parts and its marks, at `y`."""

    number: int
    y: int
    parts: tuple[Stretch, ...]
    marks: tuple[Mark, ...]


class Moment(msgspec.Struct, frozen=True):
    """A part or a mark in words. `lasted_s` is None for one that goes on, and 0 for a mark."""

    attempt: int
    word: str
    at: float
    lasted_s: float | None = 0.0


class Timeline(msgspec.Struct, frozen=True):
    """The drawing, which shows the last marks of an attempt with very many, and all of it in words (`moments`)."""

    rows: tuple[Row, ...]
    begin: float
    end: float
    height: int
    legend: tuple[tuple[str, str], ...]
    moments: tuple[Moment, ...]


def draw(job: jobs.Job, found: Sequence[events.Record], now: float) -> Timeline | None:
    """Return the timeline with the events `found` of `KINDS`, None for a job that has had no attempt."""
    if not job.attempts:
        return None
    begin = job.attempts[0].started_at
    end = job.ended_at or _steady(now, begin)
    end = max(end, begin + 1.0)
    scale = WIDTH / (end - begin)
    rows = tuple(
        Row(
            number=attempt.number,
            y=place * ROW,
            parts=tuple(_parts(job, attempt, begin, end, scale)),
            marks=tuple(_marks(_between(job, place, found, end), begin, scale)),
        )
        for place, attempt in enumerate(job.attempts)
    )
    shown = tuple(msgspec.structs.replace(row, marks=row.marks[-MOST_MARKS:]) for row in rows)
    legend = dict.fromkeys((mark.glyph, mark.word) for row in shown for mark in row.marks)
    return Timeline(shown, begin, end, len(rows) * ROW, tuple(legend), tuple(_moments(rows)))


def _moments(rows: Sequence[Row]) -> list[Moment]:
    """Return all parts and marks in the order of their times."""
    told = [
        Moment(row.number, part.word, part.at, part.until - part.at if part.until is not None else None)
        for row in rows
        for part in row.parts
    ]
    told += [Moment(row.number, mark.word, mark.at) for row in rows for mark in row.marks]
    return sorted(told, key=lambda one: one.at)


def _steady(now: float, begin: float) -> float:
    """Return a time shortly after now at which the timeline ends: it stays for a small part of its length."""
    step = STEP_S * 2.0 ** math.ceil(math.log2(max(1.0, (now - begin) / (PARTS * STEP_S))))
    return math.ceil(now / step) * step


def _parts(job: jobs.Job, attempt: attempts.Attempt, begin: float, end: float, scale: float) -> Iterator[Stretch]:
    until = min(attempt.ended_at or end, end)
    last = _last(job, attempt)
    heard = last is not phases.Phase.DEPLOYING  # else it is launched, and still DEPLOYING
    ends = [
        (attempt.launched_at if heard else None, phases.Phase.DEPLOYING),
        (attempt.processing_at, phases.Phase.DOWNLOADING),
        (attempt.storing_at, phases.Phase.PROCESSING),
        (until, last),
    ]
    at = attempt.started_at
    for told, phase in ends:
        if told is None or told <= at:
            continue
        stop = min(told, until)
        over = told < until or attempt.ended_at is not None
        x, width = (at - begin) * scale, max(1.0, (stop - at) * scale)
        yield Stretch(x, width, marks.PHASES[phase].colour, str(phase), at, stop if over else None)
        at = stop
    if attempt.ended_at is not None:
        outcome = job.outcome(attempt) or phases.Phase.QUEUED
        word = f"ended: {outcome}{' again' if outcome is phases.Phase.QUEUED else ''}"
        x = max(0.0, (until - begin) * scale - 4)
        yield Stretch(x, 4, marks.PHASES[outcome].colour, word, attempt.ended_at, attempt.ended_at)


def _last(job: jobs.Job, attempt: attempts.Attempt) -> phases.Phase:
    """Return the phase in which the attempt is, or ended."""
    if attempt.storing_at is not None:
        return phases.Phase.STORING
    if attempt.processing_at is not None:
        return phases.Phase.PROCESSING
    if job.live is not None and job.live.number == attempt.number and job.phase in phases.RUNNING:
        return job.phase
    return phases.Phase.DOWNLOADING if attempt.launched_at is not None else phases.Phase.DEPLOYING


def _between(job: jobs.Job, place: int, found: Sequence[events.Record], end: float) -> list[events.Record]:
    """Return the events from an attempt's start to that of the next one: a job is resumed while no attempt runs."""
    begin = job.attempts[place].started_at
    last = place + 1 == len(job.attempts)
    until = math.inf if last else job.attempts[place + 1].started_at
    return [one for one in found if begin <= one.at < until and one.at <= end]


def _marks(found: Sequence[events.Record], begin: float, scale: float) -> Iterator[Mark]:
    for record in found:
        if record.kind == "intended":
            glyph, word = INTENTS.get(str(record.data.get("intent")), ("·", "intent"))
        elif record.kind in MARKS:
            glyph, word = MARKS[record.kind]
        else:
            continue
        yield Mark((record.at - begin) * scale, glyph, word, record.at)
