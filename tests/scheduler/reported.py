"""Running jobs whose tasks have all reported the same."""

from __future__ import annotations

import msgspec
from tests.lifecycle import script

from oarlock.spec import attempts, jobs, roles


def job(text: str, *, ranks: int, local: int | None, accumulate: int = 1, **more: object) -> jobs.Job:
    """Return a job of two nodes whose every task has reported the same at 5 s."""
    new = script.new_job(text)
    told = attempts.Progress(
        step=10, at=5.0, total_steps=110, step_s=2.0, sync_s=0.5, ranks=ranks, local=local, accumulate=accumulate
    )
    claims = script.places(new, 1)
    tasks = tuple(
        attempts.Task(role=roles.RoleName(claim.role), index=claim.index, node=f"n{claim.index % 2}", progress=told)
        for claim in claims
    )
    live = attempts.Attempt(number=1, started_at=0.0, processing_at=1.0, tasks=tasks)
    return msgspec.structs.replace(new, attempts=(live,), **more)


def paced(of: jobs.Job, *seconds: float | None) -> jobs.Job:
    """Return the job whose first task takes so many seconds for a step, and so on; None: not known yet."""
    live = of.live
    assert live is not None
    tasks = tuple(
        msgspec.structs.replace(
            task,
            first_progress=None
            if step_s is None
            else msgspec.structs.replace(task.progress, step=0, at=task.progress.at - 10 * step_s),
        )
        for task, step_s in zip(live.tasks, seconds, strict=True)
    )
    return msgspec.structs.replace(of, attempts=(msgspec.structs.replace(live, tasks=tasks),))
