"""The line below the output of a job that is followed: its name, its phase or a bar, and its progress."""

from __future__ import annotations

from collections.abc import Callable

from oarlock.cli.output import terminal
from oarlock.display import bars, durations, marks
from oarlock.display.jobs import progress
from oarlock.spec import intents, jobs, phases, summaries

Paint = Callable[[str, str], str]
"""Returns a text in a colour."""


def status(job: jobs.Job, now: float, columns: int, *, unicode: bool = True, paint: Paint | None = None) -> str:
    """Return the line, in at most `columns` cells."""
    paint = paint or (lambda text, colour: text)
    name = terminal.cut(terminal.clean(job.name), 20)
    reading = summaries.read(job) if job.phase in (phases.Phase.PROCESSING, phases.Phase.STORING) else None
    word = progress.phase(job)
    colour = marks.PHASES[word].colour
    runs = job.intent is intents.Intent.RUN
    if reading is not None and reading.fraction is not None and runs and word != marks.FROZEN:
        drawn = _with_bar(name, reading, columns, unicode, lambda text: paint(text, colour))
        if drawn:
            return drawn
    shown = marks.word(word, unicode=unicode) + ("" if runs or job.terminal else f" ({job.intent})")
    if reading is not None:
        parts = progress.facts(reading)
    else:
        waited = durations.whole(now - (job.phase_at or job.created_at))
        parts = [part for part in (waited, terminal.clean(progress.waiting_for(job))) if part]
    rest = terminal.cut("  ".join(parts), columns - terminal.cells(name) - len(shown) - 4)
    return f"{name}  {paint(shown, colour)}  {rest}"


def _with_bar(name: str, reading: summaries.Reading, columns: int, unicode: bool, paint: Callable[[str], str]) -> str:
    """Return `name  [####----]  step 3/9  loss 0.2`, with as many facts as fit beside a bar; empty if none does."""
    parts = progress.facts(reading)
    while parts:
        rest = "  ".join(parts)
        width = columns - terminal.cells(name) - len(rest) - 6
        drawn = bars.progress(reading.fraction or 0.0, width, unicode=unicode)
        if drawn:
            return f"{name}  {paint(drawn)}  {rest}"
        parts.pop()
    return ""
