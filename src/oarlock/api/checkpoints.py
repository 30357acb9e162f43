"""Checkpoints as directories of this machine: the light look before one becomes visible, and their end.

Paths come from tasks. They are looked at (a checkpoint may lie wherever the job file says), and deleted only where they
are what they claim to be: a directory named as the protocol names them, with a manifest in it.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import shutil
from pathlib import Path

from oarlock.data import checkpoints
from oarlock.spec import errors, jobs

_NAME = re.compile(r"attempt-\d+-round-\d+-step-\d+")


class CheckpointDirectories:
    """`services.Checkpoints`, and what retention asks. `root/JOB/` is the server's own place."""

    def __init__(self, root: Path) -> None:
        self._root = root

    async def holds(self, path: str, manifest_sha256: str) -> bool | None:
        """See `services.Checkpoints`."""
        return await asyncio.to_thread(_holds, path, manifest_sha256)

    async def good(self, checkpoint: jobs.Checkpoint) -> bool:
        """One that lies elsewhere cannot be looked at, and is believed."""
        return await self.holds(checkpoint.path, checkpoint.manifest_sha256) is not False

    async def delete(self, checkpoint: jobs.Checkpoint) -> None:
        """Again: nothing. What lies elsewhere stays."""
        await asyncio.to_thread(_delete, checkpoint.path)

    async def forget(self, job_id: str) -> None:
        """`job_id` is an id that the server has made."""
        await asyncio.to_thread(shutil.rmtree, self._root / job_id, True)


def _holds(path: str, manifest_sha256: str) -> bool | None:
    place = Path(path)
    if "\0" in path or not place.is_absolute():
        return None
    try:
        if not place.parent.is_dir():
            return None
    except OSError:  # a name that is too long, a directory that may not be entered
        return None
    try:
        checkpoints.look(place, manifest_sha256=manifest_sha256.rpartition(":")[2] or None)
    except errors.OarlockError:
        return False
    return True


def _delete(path: str) -> None:
    place = Path(path)
    if "\0" in path or not place.is_absolute() or not _NAME.fullmatch(place.name):
        return
    with contextlib.suppress(OSError):
        if (place / checkpoints.MANIFEST).is_file():
            checkpoints.delete(place)
