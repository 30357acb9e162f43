"""A new job that begins from a checkpoint of another one: `continues: JOB` or `JOB@STEP`.

The other job never changes. A checkpoint on this machine is held for the new job by hard links in a directory of its
own, beside the one of the other job: neither retention nor the removal of the other job can take it away. A checkpoint
in an object store is referred to where it lies, so the other job must not run: its agent would go on removing old ones.
"""

from __future__ import annotations

import re

import msgspec

from oarlock.api.security import authorisation
from oarlock.api.services import provided
from oarlock.spec import checkpointlocations, errors, jobs, phases
from oarlock.store import stores

_WANTED = re.compile(r"(?P<job>[^@]{1,200})(?:@(?P<step>\d{1,18}))?")
_SHOWN_STEPS = 10


class Source(msgspec.Struct, frozen=True):
    """A job, and those of its checkpoints from which another one may begin, best first."""

    job: jobs.Job
    candidates: tuple[jobs.Checkpoint, ...]


async def find(services: provided.Services, access: authorisation.Access, wanted: str) -> Source:
    """The job that `wanted` names, as far as the user may read it.

    Raises InvalidInput, NotFound, and Conflict where the job has no such checkpoint or must not be continued now.
    """
    asked = _WANTED.fullmatch(wanted)
    if asked is None:
        raise errors.InvalidInput(
            f"{wanted[:100]!r} is not a job with a step.", path="continues", hint="Write JOB or JOB@STEP, as train@50."
        )
    try:
        job = await access.job(asked["job"])
    except errors.NotFound as error:
        error.path = "continues"
        raise
    listed = await access.checkpoints(job.id)
    absent = await services.checkpoints.absent(listed)
    there = [one for one in listed if one.path not in absent]
    found = [one for one in there if asked["step"] is None or one.step == int(asked["step"])]
    if not found:
        raise _nothing(job, there, asked["step"])
    if all(checkpointlocations.elsewhere(one.path) for one in found) and not _rests(job):
        raise errors.Conflict(
            f"{job.name} still runs, and removes old checkpoints from its object store.",
            path="continues",
            hint=f"Halt it first: oarlock halt {job.name}",
        )
    return Source(job, tuple(found))


async def begin(services: provided.Services, job: jobs.Job, source: Source) -> tuple[jobs.Job, jobs.Checkpoint]:
    """The new job as it continues the other one, and the first line of its checkpoints.

    The best checkpoint that holds is taken. Raises Conflict where none does.
    """
    faults = []
    for one in source.candidates:
        try:
            held = await _held(services, job, source.job, one)
        except (errors.NotFound, errors.InvalidInput) as error:
            faults.append(error.message)
            continue
        continued = jobs.Continued(
            job=source.job.id, name=source.job.name, step=one.step, attempt=one.attempt, path=held.path
        )
        return msgspec.structs.replace(job, continues=continued), held
    raise errors.Conflict(
        f"{source.job.name} has no checkpoint to go on from: {faults[0]}",
        path="continues",
        hint="Bring back a good copy of it, or begin anew: leave out --continue.",
    )


async def _held(services: provided.Services, job: jobs.Job, source: jobs.Job, one: jobs.Checkpoint) -> jobs.Checkpoint:
    """The checkpoint as the new job's: of attempt 0, which is worse than whatever the job saves itself."""
    path = one.path
    if not checkpointlocations.elsewhere(path):
        path = await services.checkpoints.hold(one, job.id)
    elif not _rests(source):
        raise errors.InvalidInput(f"{source.name} still runs", hint="Halt it first.")
    return msgspec.structs.replace(one, job=job.id, attempt=0, path=path, at=job.created_at)


def check_resume(view: stores.View, job: jobs.Job) -> None:
    """Refuse to resume a job whose copies in an object store are all that another job can go on from."""
    if job.phase is not phases.Phase.HALTED or checkpointlocations.copies(job.spec, job.id) is None:
        return
    for other in view.jobs(stores.JobFilter(continues=job.id, limit=1000)):
        kept = view.checkpoints(other.id)
        if not other.terminal and kept and all(one.attempt == 0 for one in kept):
            raise errors.Conflict(
                f"{other.id} goes on from a checkpoint of {job.name}, which would remove it.",
                hint=f"Wait until {other.id} has saved a checkpoint of its own, or cancel it.",
            )


def _rests(job: jobs.Job) -> bool:
    """Whether nothing of it runs, nor will by itself."""
    return job.live is None and (job.terminal or job.phase is phases.Phase.HALTED)


def _nothing(job: jobs.Job, there: list[jobs.Checkpoint], step: str | None) -> errors.Conflict:
    if not there:
        return errors.Conflict(
            f"{job.name} has no checkpoint to go on from.",
            path="continues",
            hint="Begin anew: submit it without --continue.",
        )
    steps = ", ".join(str(known) for known in sorted({one.step for one in there}, reverse=True)[:_SHOWN_STEPS])
    return errors.Conflict(
        f"{job.name} has no checkpoint of step {step}.", path="continues", hint=f"There are those of step {steps}."
    )
