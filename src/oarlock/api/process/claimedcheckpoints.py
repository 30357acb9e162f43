"""Checkpoints on a volume that tasks in pods mount and the server does not, or in an object store.

The agents verify them before they report them, and remove old ones, as they do with copies in an object store. The
server knows them by their reports alone.
"""

from __future__ import annotations

from collections.abc import Iterable

from oarlock.data.checkpoints import checkpoints, signing
from oarlock.spec import errors, jobs
from oarlock.spec.checkpoints import checkpointlocations


def opened(own: str | None, url: str) -> ClaimedCheckpoints:
    """Return the checkpoints of an installation: on a volume that tasks see at `own`, or below `url`, which may be
    empty. Raises InvalidInput for a URL that cannot be used.
    """
    return ClaimedCheckpoints(own, signing.SignedObjects(url) if url else None)


class ClaimedCheckpoints:
    """`provided.Checkpoints`, also for retention. `own` is the path at which tasks see the volume, if there is one, and
    `objects` the installation's place in an object store.
    """

    visible = False

    def __init__(self, own: str | None, objects: signing.SignedObjects | None = None) -> None:
        self.own, self.objects = own, objects
        self.stored = checkpointlocations.STORED if objects is not None else None

    async def verify(self, path: str, manifest_sha256: str) -> checkpoints.Checkpoint:
        raise errors.NotFound(f"The server does not see {path}.", hint="The agents verify the checkpoints of pods.")

    async def good(self, checkpoint: jobs.Checkpoint, *, fresh: bool = False) -> bool:
        """Return False: retention then deletes no other checkpoint in its favour."""
        return False

    async def known(self, listed: Iterable[jobs.Checkpoint]) -> set[str]:
        return set()

    async def gone(self, listed: Iterable[jobs.Checkpoint]) -> set[str]:
        return set()

    async def absent(self, listed: Iterable[jobs.Checkpoint]) -> set[str]:
        return set()

    async def hold(self, checkpoint: jobs.Checkpoint, job: str) -> str:
        """Return the path itself: the pods of the new job mount the folder of the other one, and cannot write it."""
        if self.own is not None and checkpointlocations.owner(checkpoint.path, self.own) is not None:
            return checkpoint.path
        raise errors.NotFound(
            f"The server does not see {checkpoint.path}, and cannot copy it for another job.",
            hint="Resume the job itself, or leave out `checkpoint.to`: the installation has a place for checkpoints.",
        )

    async def drop(self, checkpoint: jobs.Checkpoint) -> None:
        """Do nothing: nothing was held."""

    async def unwritable(self, place: str) -> str:
        return ""

    async def delete(self, checkpoint: jobs.Checkpoint) -> None:
        """Do nothing: the agents delete."""

    async def forget(self, job_id: str) -> None:
        """Do nothing: the checkpoints of a removed job stay on the volume, as they stay in an object store."""

    def close(self) -> None:
        if self.objects is not None:
            self.objects.close()
