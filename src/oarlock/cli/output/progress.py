"""A job's progress in words: what it waits for, how far it is, how long it will take. Pure: a job and a time in, text
out.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from oarlock.cli.output import terminal
from oarlock.spec import attempts, intents, jobs, phases, quantities

FROZEN = "FROZEN"
"""Shown in place of the phase while a job that failed keeps its place for a look inside."""

PHASE_COLOURS: dict[str, str] = {
    FROZEN: "red",
    phases.Phase.QUEUED: "yellow",
    phases.Phase.DEPLOYING: "cyan",
    phases.Phase.DOWNLOADING: "cyan",
    phases.Phase.PROCESSING: "blue",
    phases.Phase.STORING: "cyan",
    phases.Phase.COMPLETED: "green",
    phases.Phase.FAILED: "red",
    phases.Phase.CANCELED: "magenta",
    phases.Phase.HALTED: "magenta",
}
_WIDEST_BAR = 30
_NARROWEST_BAR = 8

Paint = Callable[[str, str], str]


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """How far the job is. `fraction` is None where the end is not known, `left_s` also where nothing of it runs."""

    step: int
    total_steps: int | None = None
    loss: float | None = None
    examples_per_s: float | None = None
    epoch: float | None = None
    fraction: float | None = None
    left_s: float | None = None


def phase(job: jobs.Job, now: float = 0.0) -> str:
    """The phase as people see it. Without `now` a frozen job is shown as one until its record says otherwise."""
    return FROZEN if frozen_until(job, now) is not None else str(job.phase)


def frozen_until(job: jobs.Job, now: float) -> float | None:
    """Until when a job that failed keeps its place (Unix seconds); None where it does not, or no more."""
    until = job.live.frozen_until if job.live is not None else None
    return until if until is not None and until > now else None


def read(job: jobs.Job) -> Reading | None:
    """Of the present or last attempt: the task that leads, which is the first that has reported anything."""
    attempt = job.attempt
    if attempt is None:
        return None
    task = next((task for task in attempt.tasks if task.progress is not None), None)
    if task is None or task.progress is None:
        return None
    progress = task.progress
    total = progress.total_steps or None
    fraction = min(1.0, progress.step / total) if total else None
    return Reading(
        step=progress.step,
        total_steps=total,
        loss=progress.loss,
        examples_per_s=progress.examples_per_s,
        epoch=progress.epoch,
        fraction=fraction,
        left_s=task.left_s if job.live is not None else None,
    )


def facts(reading: Reading) -> list[str]:
    """`120/500`, `loss 0.0213`, `810 examples/s`, `1m 20s left`: the most important first."""
    parts = [f"step {reading.step}" + (f"/{reading.total_steps}" if reading.total_steps else "")]
    if reading.loss is not None:
        parts.append(f"loss {number(reading.loss)}")
    if reading.left_s is not None:
        parts.append(f"{quantities.duration_text(reading.left_s)} left")
    if reading.examples_per_s is not None:
        parts.append(f"{number(reading.examples_per_s)} examples/s")
    return parts


def number(value: float) -> str:
    """Four significant digits."""
    if value != value or value in (float("inf"), float("-inf")):
        return str(value)
    size = abs(value)
    if size >= 1e6 or 0 < size < 1e-3:
        return f"{value:.3g}"
    return f"{value:,.0f}" if size >= 1000 else f"{value:.4g}"


def short(job: jobs.Job) -> str:
    """For a cell of a table: `45%`, `step 120`, or nothing."""
    reading = read(job)
    if reading is None:
        return ""
    return f"{reading.fraction:.0%}" if reading.fraction is not None else f"step {reading.step}"


def loss(job: jobs.Job) -> str:
    """For a cell of a table: `0.0213`, or nothing."""
    reading = read(job)
    return number(reading.loss) if reading is not None and reading.loss is not None else ""


def status(job: jobs.Job, now: float, columns: int, *, unicode: bool = True, paint: Paint | None = None) -> str:
    """The one line under a job that is followed, within `columns` cells."""
    paint = paint or (lambda text, colour: text)
    name = terminal.cut(terminal.clean(job.name), 20)
    reading = read(job) if job.phase in (phases.Phase.PROCESSING, phases.Phase.STORING) else None
    frozen = job.live is not None and job.live.frozen_until is not None
    if reading is not None and reading.fraction is not None and job.intent is intents.Intent.RUN and not frozen:
        drawn = _with_bar(name, reading, columns, unicode, lambda text: paint(text, PHASE_COLOURS[job.phase]))
        if drawn:
            return drawn
    word = FROZEN if frozen else str(job.phase)
    shown = word if job.intent is intents.Intent.RUN or job.terminal else f"{word} ({job.intent})"
    if reading is not None:
        parts = facts(reading)
    else:
        waited = quantities.duration_text(max(0.0, now - (job.phase_at or job.created_at)))
        parts = [part for part in (_whole_seconds(waited), waiting_for(job)) if part]
    rest = terminal.cut("  ".join(parts), columns - terminal.cells(name) - len(shown) - 4)
    return f"{name}  {paint(shown, PHASE_COLOURS[word])}  {rest}"


def _with_bar(name: str, reading: Reading, columns: int, unicode: bool, paint: Callable[[str], str]) -> str:
    """`name [####----]  step 3/9  loss 0.2`: as many facts as leave room for a bar; nothing where none do."""
    parts = facts(reading)
    while parts:
        rest = "  ".join(parts)
        drawn = bar(reading.fraction or 0.0, columns - terminal.cells(name) - len(rest) - 6, unicode=unicode)
        if drawn:
            return f"{name}  {paint(drawn)}  {rest}"
        parts.pop()
    return ""


def bar(fraction: float, width: int, *, unicode: bool = True) -> str:
    """`[#####-----]`; nothing where there is no room for one."""
    if width < _NARROWEST_BAR:
        return ""
    width = min(width, _WIDEST_BAR)
    full = round(fraction * width)
    done, left = ("━", "╌") if unicode else ("#", "-")
    return f"[{done * full}{left * (width - full)}]"


def waiting_for(job: jobs.Job) -> str:
    """What a job that does not run yet waits for: the refusal's sentence, or what its tasks are at."""
    if job.phase is phases.Phase.QUEUED:
        return terminal.clean(job.refusal.message if job.refusal is not None else job.reason)
    live = job.live
    if live is None:
        return terminal.clean(job.reason)
    details = [task.detail for task in live.tasks if task.detail]
    return terminal.clean(details[0]) if details else counted(live)


def counted(attempt: attempts.Attempt) -> str:
    """`2 PROCESSING, 1 DOWNLOADING`: the tasks by phase."""
    counts: dict[str, int] = {}
    for task in attempt.tasks:
        counts[task.phase] = counts.get(task.phase, 0) + 1
    return ", ".join(f"{count} {phase}" for phase, count in counts.items())


def _whole_seconds(text: str) -> str:
    """A time that is drawn every moment stands still but for its last digit."""
    return text if not text.endswith(" s") else f"{float(text[:-2]):.0f} s"
