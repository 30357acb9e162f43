"""The end of a job in lines: its results, files and checkpoint, the blamed task, and the commands to try next."""

from __future__ import annotations

from collections.abc import Callable

from oarlock.display import amounts, durations
from oarlock.display.jobs import keptfiles, progress
from oarlock.spec import jobs, phases, summaries

SHOWN_LINES = 12

Seen = Callable[[str], bool]
"""Whether a line of the job's output stands on the reader's screen already."""


def heading(job: jobs.Job) -> str:
    """Return `, after 5.0 s, 1 restart`, to follow the job's name and phase."""
    parts = [""]
    if job.ended_at is not None:
        parts.append(f"after {durations.text(job.ended_at - (job.started_at or job.created_at))}")
    if job.restarts:
        parts.append(amounts.counted(job.restarts, "restart"))
    return ", ".join(parts)


def summary(
    job: jobs.Job, checkpoint: jobs.Checkpoint | None, results: str | None = None, *, seen: Seen = lambda line: False
) -> list[str]:
    """Return the lines below the heading. `results` is the place of the results, if there are any."""
    found: list[tuple[str, str]] = []
    reading = summaries.read(job)
    if reading is not None:
        found.append(("progress", ", ".join(progress.facts(reading)[:2])))
    if results is not None:
        found.append(("results", results))
    if job.directory is not None:
        found.append(("files", f"where the job wrote them: {job.directory}"))
    found += [("" if number else "files", line) for number, line in enumerate(keptfiles.lines(job))]
    if checkpoint is not None:
        found.append(("checkpoint", f"step {checkpoint.step} in {checkpoint.path}"))
        if job.phase in (phases.Phase.FAILED, phases.Phase.CANCELED):
            found.append(("go on", f"oarlock run --continue {job.name}"))
    lines = [_line(word, text) for word, text in found]
    return lines if job.phase is phases.Phase.COMPLETED else [*lines, *blame(job, seen)]


def blame(job: jobs.Job, seen: Seen = lambda line: False) -> list[str]:
    """Return the blamed task, its last lines unless all were `seen`, and the reason against a restart."""
    verdict = job.attempt.verdict if job.attempt is not None else None
    if verdict is None or job.phase is not phases.Phase.FAILED:
        return [_line("reason", job.reason)] if job.reason else []
    task = f"{verdict.task}: " if verdict.task and verdict.task not in verdict.message else ""
    lines = [_line("blame", task + verdict.message)]
    last = list(verdict.last_lines[-SHOWN_LINES:])
    if last and "ModuleNotFoundError" in last[-1]:
        last = last[-1:]  # the import statements above it help no reader
    if not all(map(seen, last)):
        lines += [f"    | {line}" for line in last]
    if verdict.hint:
        lines.append(_line("hint", verdict.hint))
    if job.attempt is not None and job.attempt.no_restart:
        lines.append(_line("no restart", job.attempt.no_restart))
    return lines


def next_steps(job: jobs.Job, called: str = "") -> list[str]:
    """Return the three commands to try now, below a heading. They call the job `called`, by default by its name."""
    verdict = job.attempt.verdict if job.attempt is not None else None
    task = ""
    if job.phase is phases.Phase.COMPLETED:
        verbs = ["show", "metrics", "logs"]
    elif job.phase is phases.Phase.FAILED:
        role, _, index = (verdict.task if verdict is not None else "").rpartition("-")
        task = f" --role {role} --index {index}" if role else ""
        verbs = ["logs", "show", "why"]
    elif job.phase is phases.Phase.HALTED:
        verbs = ["resume", "show", "cancel"]
    elif job.terminal:
        verbs = ["show", "logs", "rm"]
    else:
        verbs = ["logs", "show", "cancel"]
    ends = {"logs": f" --tail 50{task}" if job.phase is phases.Phase.FAILED else "" if job.terminal else " -f"}
    return ["Next:", *(f"  oarlock {verb} {called or job.name}{ends.get(verb, '')}" for verb in verbs)]


def _line(word: str, text: str) -> str:
    return f"  {word:<11}  {text}"
