"""Checkpoints as directories of this machine: verification, presence and deletion.

The paths come from tasks. A directory is deleted only if its name has the protocol's form and it contains a manifest.
The server cannot reach object stores: the agents manage the copies there, and report the ones that they removed.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path

from oarlock.data.checkpoints import checkpoints, verification
from oarlock.spec import errors, jobs
from oarlock.spec.checkpoints import checkpointlocations

_NAME = re.compile(r"attempt-\d+-round-\d+-step-\d+")


class CheckpointDirectories:
    """`provided.Checkpoints`, also for retention. `root/JOB/` is the server's own directory for a job."""

    visible = True
    objects = None
    stored = None

    def __init__(self, root: Path) -> None:
        self._root = root
        self._verifier = verification.Verifier()

    @property
    def own(self) -> str:
        return str(self._root)

    async def verify(self, path: str, manifest_sha256: str) -> checkpoints.Checkpoint:
        """Do as `provided.Checkpoints` says."""
        if not local(path):
            raise errors.NotFound(f"{path} is not a directory of this machine", hint="Report an absolute path.")
        return await self._verifier.verify(Path(path), _digest(manifest_sha256))

    async def good(self, checkpoint: jobs.Checkpoint, *, fresh: bool = False) -> bool:
        """Return whether every digest is right. With `fresh`, read the checkpoint again even if it was read before."""
        if not local(checkpoint.path):
            return False
        try:
            await self._verifier.verify(Path(checkpoint.path), _digest(checkpoint.manifest_sha256), fresh=fresh)
        except (errors.NotFound, errors.InvalidInput):
            return False
        return True

    async def known(self, listed: Iterable[jobs.Checkpoint]) -> set[str]:
        """Return the paths of the checkpoints that were read before and have not changed since."""

        def look() -> set[str]:
            return {
                one.path
                for one in listed
                if local(one.path) and self._verifier.knows(Path(one.path), _digest(one.manifest_sha256))
            }

        return await asyncio.to_thread(look)

    async def gone(self, listed: Iterable[jobs.Checkpoint]) -> set[str]:
        """Do as `provided.Checkpoints` says."""
        return await asyncio.to_thread(lambda: {one.path for one in listed if _removed(one.path)})

    async def absent(self, listed: Iterable[jobs.Checkpoint]) -> set[str]:
        """Do as `provided.Checkpoints` says."""
        return await asyncio.to_thread(
            lambda: {one.path for one in listed if "://" not in one.path and not _there(one.path)}
        )

    async def hold(self, checkpoint: jobs.Checkpoint, job: str) -> str:
        """Do as `provided.Checkpoints` says. Shards are linked where the file system can, else copied."""
        if not local(checkpoint.path):
            raise errors.NotFound(
                f"{checkpoint.path} is not a directory of this machine", hint="Choose another checkpoint."
            )
        source = Path(checkpoint.path)
        name = checkpointlocations.name(0, checkpoint.round, checkpoint.step)
        place = source.parent.parent / job / name
        sha256 = _digest(checkpoint.manifest_sha256)
        await self._verifier.verify(source, sha256)  # a repeated request does not read it again
        try:
            await asyncio.to_thread(checkpoints.duplicate, source, place, manifest_sha256=sha256 or None)
            await self._verifier.verify(place, sha256)
        except BaseException:
            await asyncio.shield(asyncio.to_thread(_drop, place))
            raise
        return str(place)

    async def drop(self, checkpoint: jobs.Checkpoint) -> None:
        """Do as `provided.Checkpoints` says. A checkpoint in an object store stays."""
        if local(checkpoint.path):
            await asyncio.to_thread(_drop, Path(checkpoint.path))

    async def unwritable(self, place: str) -> str:
        """Do as `provided.Checkpoints` says. Tasks of this machine run as the server's user."""
        return await asyncio.to_thread(_unwritable, Path(place))

    async def delete(self, checkpoint: jobs.Checkpoint) -> None:
        """Delete a checkpoint of this machine. A second call does nothing."""
        await asyncio.to_thread(_delete, checkpoint.path)

    async def forget(self, job_id: str) -> None:
        """Do as `provided.Checkpoints` says. The server has made the id."""
        await asyncio.to_thread(shutil.rmtree, self._root / job_id, True)

    def close(self) -> None:
        self._verifier.close()


def local(path: str) -> bool:
    """Return whether the text can be an absolute path of this machine."""
    return path.startswith("/") and "\0" not in path


def _digest(sha256: str) -> str:
    """Return the digest without `sha256:`, which agents and libraries may write before it."""
    return sha256.rpartition(":")[2]


def _there(path: str) -> bool:
    try:
        return local(path) and (Path(path) / checkpoints.MANIFEST).is_file()
    except OSError:  # a name that is too long, a directory that may not be entered
        return False


def _removed(path: str) -> bool:
    place = Path(path)
    try:
        return local(path) and place.parent.is_dir() and not (place / checkpoints.MANIFEST).exists()
    except OSError:  # a name that is too long, a directory that may not be entered
        return False


def _unwritable(place: Path) -> str:
    """Return why no directory can be made below `place`, else an empty text.

    A trial directory is made and removed, because permissions alone do not tell.
    """
    try:
        there = next(path for path in (place, *place.parents) if path.exists())
        Path(tempfile.mkdtemp(prefix=".oarlock-", dir=there)).rmdir()
    except OSError as error:
        return f"a directory cannot be made below {place}: {error.strerror}"
    return ""


def _drop(place: Path) -> None:
    shutil.rmtree(place, ignore_errors=True)
    with contextlib.suppress(OSError):
        place.parent.rmdir()  # the job's directory, if it is empty


def _delete(path: str) -> None:
    place = Path(path)
    if not local(path) or not _NAME.fullmatch(place.name):
        return
    with contextlib.suppress(OSError):
        if (place / checkpoints.MANIFEST).is_file():
            checkpoints.delete(place)
