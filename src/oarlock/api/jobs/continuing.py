"""Jobs that begin from a checkpoint of another job: `continues: JOB` or `JOB@STEP`.

The other job never changes. For a checkpoint on this machine, the new job gets hard links in a directory of its own,
beside the directory of the other job, so neither retention nor the removal of the other job deletes it. A checkpoint in
an object store, or on a volume that only pods see, is used in place. The other job must not run then, because its
agents remove old checkpoints.
"""

from __future__ import annotations

import re

import msgspec

from oarlock.api.security import authorisation
from oarlock.api.services import provided
from oarlock.spec import errors, jobs, phases
from oarlock.spec.checkpoints import checkpointlocations
from oarlock.store import stores

_WANTED = re.compile(r"(?P<job>[^@]{1,200})(?:@(?P<step>\d{1,18}))?")
_SHOWN_STEPS = 10


class Source(msgspec.Struct, frozen=True):
    """A job and its checkpoints from which the new job may begin, best first."""

    job: jobs.Job
    candidates: tuple[jobs.Checkpoint, ...]


async def find(services: provided.Services, access: authorisation.Access, wanted: str) -> Source:
    """Return the job that `wanted` names, with its suitable checkpoints.

    Raises InvalidInput; NotFound for a job that the user may not see; Conflict where the job has no such checkpoint, or
    cannot be continued now.
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
    if all(_is_used_in_place(services, one) for one in found) and not _rests(job):
        raise errors.Conflict(
            f"{job.name} cannot be continued while it runs: its agents remove old checkpoints.",
            path="continues",
            hint=f"Halt it first: oarlock halt {asked['job']}",
        )
    return Source(job, tuple(found))


async def begin(services: provided.Services, job: jobs.Job, source: Source) -> tuple[jobs.Job, jobs.Checkpoint]:
    """Return the new job with its source, and its copy of the best valid checkpoint.

    Raises Conflict where no checkpoint is valid.
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
        f"{source.job.name} has no checkpoint to continue from: {faults[0]}",
        path="continues",
        hint="Restore a valid copy of it, or start from the beginning: leave out --continue.",
    )


async def _held(services: provided.Services, job: jobs.Job, source: jobs.Job, one: jobs.Checkpoint) -> jobs.Checkpoint:
    """Return the checkpoint for the new job, as of attempt 0: each checkpoint of its own is better."""
    path = one.path
    if _is_used_in_place(services, one) and not _rests(source):
        raise errors.InvalidInput(f"{source.name} still runs", hint="Halt it first.")
    if not checkpointlocations.elsewhere(path):
        path = await services.checkpoints.hold(one, job.id)
    return msgspec.structs.replace(one, job=job.id, attempt=0, path=path, at=job.created_at)


def _is_used_in_place(services: provided.Services, one: jobs.Checkpoint) -> bool:
    """Return whether a job that continues from it has no copy: in an object store, or where the server sees nothing."""
    return checkpointlocations.elsewhere(one.path) or not services.checkpoints.visible


def names(wanted: str | None, known: jobs.Continued | None) -> bool:
    """Return whether `wanted` names the checkpoint from which a job has begun; None for a job that began from none."""
    if wanted is None or known is None:
        return wanted is None and known is None
    asked = _WANTED.fullmatch(wanted)
    if asked is None or int(asked["step"] or known.step) != known.step:
        return False
    return asked["job"] in (known.name, known.job, jobs.short_id(known.job))


def check_resume(view: stores.View, job: jobs.Job, *, visible: bool) -> None:
    """Raise Conflict where the job, once resumed, would remove the only checkpoint of a job that continues from it.

    `visible` tells whether the server sees the checkpoints: else the agents remove old ones.
    """
    in_place = not visible or checkpointlocations.copies(job.spec, job.id, None) is not None
    if job.phase is not phases.Phase.HALTED or not in_place:
        return
    for other in view.jobs(stores.JobFilter(continues=job.id, limit=1000)):
        kept = view.checkpoints(other.id)
        if not other.terminal and kept and all(one.attempt == 0 for one in kept):
            raise errors.Conflict(
                f"{job.name} would remove the checkpoint from which {other.id} continues.",
                hint=f"Wait until {other.id} has saved a checkpoint of its own, or cancel it.",
            )


def _rests(job: jobs.Job) -> bool:
    """Return whether the job neither runs nor will run without a request."""
    return job.live is None and (job.terminal or job.phase is phases.Phase.HALTED)


def _nothing(job: jobs.Job, there: list[jobs.Checkpoint], step: str | None) -> errors.Conflict:
    if not there:
        return errors.Conflict(
            f"{job.name} has no checkpoint to continue from.",
            path="continues",
            hint="Start from the beginning: submit it without --continue.",
        )
    steps = ", ".join(str(known) for known in sorted({one.step for one in there}, reverse=True)[:_SHOWN_STEPS])
    return errors.Conflict(
        f"{job.name} has no checkpoint of step {step}.", path="continues", hint=f"It has checkpoints of step {steps}."
    )
