"""Checkpoints as agents report them: which of them become visible, which are offered to an attempt, and which are gone.

A task is believed only about its own job's place, and only what can be read there: the server compares the digest of
every shard of a checkpoint on this machine before anybody sees it. A copy in an object store was read by its agent
before it was sent, and is read back before an older one is removed.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from oarlock.api.services import inbox, provided
from oarlock.spec import attempts, checkpointlocations, errors, events, jobs
from oarlock.store import stores

MAX_KEPT = 100_000


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """As much of `manifest.json` as the server compares."""

    step: int
    attempt: int
    round: int = 0


class CheckpointReport(msgspec.Struct, frozen=True, kw_only=True):
    step: Annotated[int, msgspec.Meta(ge=0, le=2**62)]
    path: Annotated[str, msgspec.Meta(min_length=1, max_length=4096)]
    manifest: Manifest
    manifest_sha256: Annotated[str, msgspec.Meta(max_length=71)] = ""
    bytes: Annotated[int, msgspec.Meta(ge=0, le=2**62)] = 0


class RemainingCopies(msgspec.Struct, frozen=True):
    """The names of the copies that are there, after old ones were removed."""

    names: Annotated[tuple[Annotated[str, msgspec.Meta(max_length=255)], ...], msgspec.Meta(max_length=MAX_KEPT)]


async def show(services: provided.Services, key: attempts.TaskKey, told: CheckpointReport) -> None:
    """Make a checkpoint visible. Raises Conflict where it is not what it is said to be, StaleTask."""
    job = await services.store.read(lambda view: view.job(key.job))
    if job is None or inbox.task_of(job, key) is None:
        raise inbox.stale(key)
    manifest = told.manifest
    if (manifest.step, manifest.attempt) != (told.step, key.attempt):
        raise errors.Conflict(
            "The manifest is of another checkpoint.", path="manifest", hint="Report it as it was saved."
        )
    called = checkpointlocations.name(key.attempt, manifest.round, told.step)
    try:
        checkpointlocations.check(told.path, called, job.spec, job.id, services.checkpoints.own)
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
    gone = [*await services.checkpoints.gone(listed), *_superseded(job, listed)]
    event = events.CheckpointVisible(checkpoint_step=told.step, attempt=key.attempt, path=told.path)
    try:
        await services.inbox.tell(key, event, checkpoint=made, unlisted=gone)
    except errors.StaleTask:
        await services.store.write(lambda tx: _late(tx, made))
        raise


def _late(tx: stores.Transaction, made: jobs.Checkpoint) -> None:
    """List a checkpoint that was reported in time, and whose attempt ended while the server read it.

    It may be the last one before the job failed. It is worse than any of a later attempt, so it is in nobody's way.
    """
    job = tx.job(made.job)
    if job is not None and any(attempt.number == made.attempt for attempt in job.attempts):
        tx.add_checkpoint(made)


def _superseded(job: jobs.Job, listed: list[jobs.Checkpoint]) -> list[str]:
    """The checkpoint of another job that lies in an object store, once this job has enough of its own with this one."""
    own = sum(one.attempt > 0 for one in listed) + 1
    enough = own >= job.spec.checkpoint.keep
    return [one.path for one in listed if enough and one.attempt == 0 and checkpointlocations.elsewhere(one.path)]


async def _read(services: provided.Services, told: CheckpointReport) -> tuple[str, int]:
    """The manifest's digest and the size of all shards. Raises NotFound or InvalidInput where it does not hold."""
    if checkpointlocations.elsewhere(told.path):
        return told.manifest_sha256, told.bytes
    found = await services.checkpoints.verify(told.path, told.manifest_sha256)
    manifest = found.manifest
    if (manifest.step, manifest.attempt, manifest.round) != (
        told.step,
        told.manifest.attempt,
        told.manifest.round,
    ):
        raise errors.InvalidInput("Its manifest is of another checkpoint.", hint="Report it as it was saved.")
    return found.manifest_sha256, manifest.bytes


async def keep(services: provided.Services, key: attempts.TaskKey, job: jobs.Job, told: RemainingCopies) -> None:
    """Forget the copies that the agent has removed from the job's object store. Raises StaleTask."""
    place = checkpointlocations.copies(job.spec, job.id)
    if place is None:
        raise errors.Conflict("This job keeps no copies.", hint="Its checkpoints lie on the machine.")
    there = {f"{place}/{name}" for name in told.names}
    listed = await services.store.read(lambda view: view.checkpoints(key.job))
    gone = [one.path for one in listed if one.path.startswith(f"{place}/") and one.path not in there]
    if gone:
        await services.inbox.tell(key, unlisted=gone)


async def offered(services: provided.Services, job_id: str) -> list[str]:
    """The paths of the visible checkpoints that an attempt may go on from, best first.

    Where all of them were removed they are offered all the same: to begin again is for a person to decide.
    """
    listed = await services.store.read(lambda view: view.checkpoints(job_id))
    gone = await services.checkpoints.gone(listed) if listed else set()
    return [one.path for one in listed if one.path not in gone] or [one.path for one in listed]


def restored(key: attempts.TaskKey, step: int, path: str) -> events.CheckpointRestored:
    return events.CheckpointRestored(
        attempt=key.attempt, role=key.role, index=key.index, incarnation=key.incarnation, step=step, path=path
    )
