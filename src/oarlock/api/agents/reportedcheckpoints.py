"""Checkpoints that agents report: making them visible, offering them to an attempt, and removing them from the list.

A task can only report checkpoints in the place of its own job. The server reads every shard of a checkpoint on this
machine and compares the digests before it makes the checkpoint visible. An agent reads a checkpoint before it sends a
copy to an object store, and reads the copy back before it removes an older one.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from oarlock.api.services import inbox, provided
from oarlock.spec import attempts, errors, events, jobs
from oarlock.spec.checkpoints import checkpointlocations
from oarlock.store import stores

MAX_KEPT = 100_000


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of `manifest.json` that the server compares."""

    step: int
    attempt: int
    round: int = 0


class CheckpointReport(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint that a task has saved."""

    step: Annotated[int, msgspec.Meta(ge=0, le=2**62)]
    path: Annotated[str, msgspec.Meta(min_length=1, max_length=4096)]
    manifest: Manifest
    manifest_sha256: Annotated[str, msgspec.Meta(max_length=71)] = ""
    bytes: Annotated[int, msgspec.Meta(ge=0, le=2**62)] = 0


class RemainingCopies(msgspec.Struct, frozen=True):
    """The names of the copies that are left after the removal of old ones."""

    names: Annotated[tuple[Annotated[str, msgspec.Meta(max_length=255)], ...], msgspec.Meta(max_length=MAX_KEPT)]


async def show(services: provided.Services, key: attempts.TaskKey, told: CheckpointReport) -> None:
    """Make a checkpoint visible. Raises Conflict where it differs from the report, and StaleTask."""
    job = await services.store.read(lambda view: view.job(key.job))
    if job is None or inbox.task_of(job, key) is None:
        raise inbox.stale(key)
    manifest = told.manifest
    if (manifest.step, manifest.attempt) != (told.step, key.attempt):
        raise errors.Conflict(
            "The manifest is of another checkpoint than the report.", path="manifest", hint="Report it as it was saved."
        )
    called = checkpointlocations.name(key.attempt, manifest.round, told.step)
    try:
        checkpointlocations.check(
            told.path, called, job.spec, job.id, services.checkpoints.own, services.checkpoints.stored
        )
        sha256, size = await _read(services, told)
    except (errors.NotFound, errors.InvalidInput) as error:
        raise errors.Conflict(error.message, path="path", hint=error.hint) from error
    made = jobs.Checkpoint(
        job=key.job,
        step=told.step,
        attempt=key.attempt,
        round=manifest.round,
        path=told.path,
        manifest_sha256=sha256,
        bytes=size,
        at=services.clock(),
    )
    listed = await services.store.read(lambda view: view.checkpoints(key.job))
    gone = [*await services.checkpoints.gone(listed), *_superseded(job, listed, services.checkpoints.visible)]
    event = events.CheckpointVisible(checkpoint_step=told.step, attempt=key.attempt, path=told.path)
    try:
        await services.inbox.tell(key, event, checkpoint=made, unlisted=gone)
    except errors.StaleTask:
        await services.store.write(lambda tx: _late(tx, made))
        raise


def _late(tx: stores.Transaction, made: jobs.Checkpoint) -> None:
    """List a checkpoint after its attempt has ended during the reading.

    It may be the last one before the job failed. Checkpoints of later attempts are better, so it does no harm.
    """
    job = tx.job(made.job)
    if job is not None and any(attempt.number == made.attempt for attempt in job.attempts):
        tx.add_checkpoint(made)


def _superseded(job: jobs.Job, listed: list[jobs.Checkpoint], visible: bool) -> list[str]:
    """Return the paths of another job's checkpoints that were not copied, once the job has enough of its own.

    These lie in an object store, or on a volume that is not `visible` to the server.
    """
    own = sum(one.attempt > 0 for one in listed) + 1
    enough = own >= job.spec.checkpoint.keep
    others = [one.path for one in listed if enough and one.attempt == 0]
    return [path for path in others if not visible or checkpointlocations.elsewhere(path)]


async def _read(services: provided.Services, told: CheckpointReport) -> tuple[str, int]:
    """Return the manifest's digest and the size of all shards. Raises NotFound, or InvalidInput for wrong content."""
    if checkpointlocations.elsewhere(told.path) or not services.checkpoints.visible:
        return told.manifest_sha256, told.bytes
    found = await services.checkpoints.verify(told.path, told.manifest_sha256)
    manifest = found.manifest
    if (manifest.step, manifest.attempt, manifest.round) != (
        told.step,
        told.manifest.attempt,
        told.manifest.round,
    ):
        raise errors.InvalidInput(
            "The manifest on disk is of another checkpoint than the report.", hint="Report it as it was saved."
        )
    return found.manifest_sha256, manifest.bytes


async def keep(services: provided.Services, key: attempts.TaskKey, job: jobs.Job, told: RemainingCopies) -> None:
    """Remove from the list the copies that the agent has deleted in the object store. Raises StaleTask."""
    place = checkpointlocations.copies(job.spec, job.id, services.checkpoints.stored)
    if place is None and not services.checkpoints.visible:
        place = checkpointlocations.directory(job.spec, job.id, services.checkpoints.own)
    if place is None:
        raise errors.Conflict(
            "This job keeps no copies in an object store.", hint="Its checkpoints are on this machine."
        )
    there = {f"{place}/{name}" for name in told.names}
    listed = await services.store.read(lambda view: view.checkpoints(key.job))
    gone = [one.path for one in listed if one.path.startswith(f"{place}/") and one.path not in there]
    if gone:
        await services.inbox.tell(key, unlisted=gone)


async def offered(services: provided.Services, job_id: str) -> list[str]:
    """Return the paths of the checkpoints from which an attempt may continue, best first.

    Where all of them are gone, they are offered anyway: only a person should decide to start from the beginning.
    """
    listed = await services.store.read(lambda view: view.checkpoints(job_id))
    gone = await services.checkpoints.gone(listed) if listed else set()
    return [one.path for one in listed if one.path not in gone] or [one.path for one in listed]


def restored(key: attempts.TaskKey, step: int, path: str) -> events.CheckpointRestored:
    """Return the event that a task has loaded a checkpoint."""
    return events.CheckpointRestored(key=key, step=step, path=path)
