"""What is said when following is over: how the job ended, where its things lie, who is to blame, what to try next."""

from __future__ import annotations

from collections.abc import Sequence

from oarlock.cli.output import kept, progress, terminal
from oarlock.spec import jobs, phases, quantities

SHOWN_LINES = 12


def summary(
    job: jobs.Job,
    checkpoint: jobs.Checkpoint | None,
    results: str | None = None,
    *,
    colour: bool,
    printed: Sequence[str] = (),
) -> list[str]:
    """Lines for stderr. `results` is where they lie, where there are any; `printed` what stands right above."""
    phase = terminal.coloured(str(job.phase), progress.PHASE_COLOURS[job.phase], "bold", on=colour)
    parts = [f"{terminal.clean(job.name)} {phase}"]
    if job.ended_at is not None:
        parts.append(f"after {quantities.duration_text(max(0.0, job.ended_at - (job.started_at or job.created_at)))}")
    if job.restarts:
        parts.append(f"{job.restarts} restart{'s' if job.restarts > 1 else ''}")
    lines = [", ".join(parts)]
    reading = progress.read(job)
    if reading is not None:
        lines.append("  progress     " + ", ".join(progress.facts(reading)[:2]))
    if results is not None:
        lines.append(f"  results      {terminal.clean(results)}")
    if job.directory is not None:
        lines.append(f"  files        where they were written: {terminal.clean(job.directory)}")
    for place, line in enumerate(kept.lines(job)):
        lines.append(f"  {'' if place else 'files':<11}  {line}")
    if checkpoint is not None:
        lines.append(f"  checkpoint   step {checkpoint.step} in {terminal.clean(checkpoint.path)}")
        if job.phase in (phases.Phase.FAILED, phases.Phase.CANCELED):
            lines.append(f"  go on        oarlock run --continue {terminal.clean(job.name)}")
    if job.phase is not phases.Phase.COMPLETED:
        lines += blame(job, printed)
    return lines


def blame(job: jobs.Job, printed: Sequence[str] = ()) -> list[str]:
    """Which task is to blame, its last lines unless they stand right above, and why it was not started again."""
    verdict = job.attempt.verdict if job.attempt is not None else None
    if verdict is None or job.phase is not phases.Phase.FAILED:
        return [f"  reason       {terminal.clean(job.reason)}"] if job.reason else []
    who = f"{verdict.task}: " if verdict.task and verdict.task not in verdict.message else ""
    lines = [f"  blame        {terminal.clean(who + verdict.message)}"]
    said = [terminal.clean(line) for line in verdict.last_lines[-SHOWN_LINES:]]
    if said and "ModuleNotFoundError" in said[-1]:
        said = said[-1:]  # where it was imported helps nobody
    if not all(any(above.endswith(line) for above in printed) for line in said):
        lines += [f"    | {line}" for line in said]
    if verdict.hint:
        lines.append(f"  hint         {terminal.clean(verdict.hint)}")
    if job.attempt is not None and job.attempt.no_restart:
        lines.append(f"  no restart   {terminal.clean(job.attempt.no_restart)}")
    return lines


def next_steps(job: jobs.Job) -> list[str]:
    """The three commands to try now."""
    name = terminal.clean(job.name)
    verdict = job.attempt.verdict if job.attempt is not None else None
    if job.phase is phases.Phase.COMPLETED:
        steps = [f"oarlock show {name}", f"oarlock metrics {name}", f"oarlock logs {name}"]
    elif job.phase is phases.Phase.FAILED:
        role, _, index = (verdict.task if verdict is not None else "").rpartition("-")
        only = f" --role {role} --index {index}" if role else ""
        steps = [f"oarlock logs {name} --tail 50{only}", f"oarlock show {name}", f"oarlock why {name}"]
    elif job.phase is phases.Phase.HALTED:
        steps = [f"oarlock resume {name}", f"oarlock show {name}", f"oarlock cancel {name}"]
    elif job.terminal:
        steps = [f"oarlock show {name}", f"oarlock logs {name}", f"oarlock rm {name}"]
    else:
        steps = [f"oarlock logs {name} -f", f"oarlock show {name}", f"oarlock cancel {name}"]
    return ["Next:", *(f"  {step}" for step in steps)]
