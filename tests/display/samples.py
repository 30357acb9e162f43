"""Jobs to be shown."""

from __future__ import annotations

from oarlock.spec import attempts, jobfile, jobs, phases, roles


def job(**changes: object) -> jobs.Job:
    spec = jobfile.JobSpec(command="python train.py", roles={roles.RoleName.WORKER: jobfile.Role(count=2)})
    given = {
        "id": "j-1",
        "name": "digits",
        "owner": "o",
        "spec": spec,
        "created_at": 100.0,
        "phase_at": 100.0,
        **changes,
    }
    return jobs.Job(**given)  # type: ignore[arg-type]


def processing(step: int, first: int = 0, **facts: object) -> jobs.Job:
    """A second a step, since its first report at step `first`."""
    began = attempts.Progress(step=first, at=110.0 + first)
    told = attempts.Progress(step=step, at=110.0 + step, **facts)  # type: ignore[arg-type]
    task = attempts.Task(
        role=roles.RoleName.WORKER, index=0, first_progress=began, progress=told, phase=phases.TaskPhase.PROCESSING
    )
    attempt = attempts.Attempt(number=1, started_at=105.0, processing_at=110.0, tasks=(task,))
    return job(phase=phases.Phase.PROCESSING, attempts=(attempt,), started_at=110.0)
