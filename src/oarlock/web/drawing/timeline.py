"""The timeline of a job as SVG: one bar for each attempt, coloured by its phase, with marks for its events. Pure."""

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
    """A part of a bar, from `x` on, in the colour of a phase."""

    x: float
    width: float
    colour: str
    word: str


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


class Timeline(msgspec.Struct, frozen=True):
    rows: tuple[Row, ...]
    begin: float
    end: float
    height: int
    legend: tuple[tuple[str, str], ...]


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
            marks=tuple(_marks(_between(job, place, found, end), begin, scale))[-MOST_MARKS:],
        )
        for place, attempt in enumerate(job.attempts)
    )
    legend = dict.fromkeys((mark.glyph, mark.word) for row in rows for mark in row.marks)
    return Timeline(rows, begin, end, len(rows) * ROW, tuple(legend))


def _steady(now: float, begin: float) -> float:
    """Return a time shortly after now at which the timeline ends: it stays for a small part of its length."""
    step = STEP_S * 2.0 ** math.ceil(math.log2(max(1.0, (now - begin) / (PARTS * STEP_S))))
    return math.ceil(now / step) * step


def _parts(job: jobs.Job, attempt: attempts.Attempt, begin: float, end: float, scale: float) -> Iterator[Stretch]:
    until = min(attempt.ended_at or end, end)
    ends = [
        (attempt.launched_at, phases.Phase.DEPLOYING),
        (attempt.processing_at, phases.Phase.DOWNLOADING),
        (attempt.storing_at, phases.Phase.PROCESSING),
        (until, _last(job, attempt)),
    ]
    at = attempt.started_at
    for stop, phase in ends:
        if stop is None or stop <= at:
            continue
        yield _stretch(at, min(stop, until), str(phase), begin, scale)
        at = stop
    last = job.attempts[-1].number == attempt.number
    verdict = attempt.verdict
    if attempt.ended_at is not None:
        failed = verdict is not None and verdict.cause not in (attempts.Cause.SUCCEEDED, attempts.Cause.STOPPED)
        other = phases.Phase.FAILED if failed else phases.Phase.HALTED
        word = str(job.phase if last and job.terminal else other)
        yield Stretch(max(0.0, (until - begin) * scale - 4), 4, marks.PHASES[word].colour, f"ended: {word}")


def _last(job: jobs.Job, attempt: attempts.Attempt) -> phases.Phase:
    """Return the phase in which the attempt is, or ended."""
    if attempt.storing_at is not None:
        return phases.Phase.STORING
    if attempt.processing_at is not None:
        return phases.Phase.PROCESSING
    if job.live is not None and job.live.number == attempt.number and job.phase in phases.RUNNING:
        return job.phase
    return phases.Phase.DOWNLOADING if attempt.launched_at is not None else phases.Phase.DEPLOYING


def _stretch(at: float, stop: float, phase: str, begin: float, scale: float) -> Stretch:
    return Stretch((at - begin) * scale, max(1.0, (stop - at) * scale), marks.PHASES[phase].colour, phase)


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
