"""Check of jobs that run in the user's own directory: the server must see the same directory, as the same user."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Collection
from pathlib import Path

from oarlock.api.jobs import capabilities
from oarlock.data.snapshots import directories
from oarlock.spec import errors, jobfile

PATH = "in_place"
MAX_CHARACTERS = 4096
COPY = "Leave out --in-place: the job then runs in a copy of the directory."


async def refuse(asked: jobfile.InPlace | None, words: Collection[str], backend: str) -> None:
    """Raise Unsupported with the reason where the job cannot run in that directory."""
    if asked is None:
        return
    if capabilities.Capability.IN_PLACE not in words:
        raise errors.Unsupported(f"Tasks of the {backend} backend do not run in your directory.", path=PATH, hint=COPY)
    reason = await asyncio.to_thread(why_not, asked)
    if reason:
        raise errors.Unsupported(reason, path=PATH, hint=COPY)


def why_not(asked: jobfile.InPlace) -> str:
    """Return why this process cannot run jobs in that directory, or an empty text where it can."""
    if not asked.directory.startswith("/") or len(asked.directory) > MAX_CHARACTERS:
        return f"{asked.directory[:200]!r} is not an absolute path."
    if asked.machine != directories.machine():
        return f"The server runs on another machine, {os.uname().nodename}, and cannot see your {asked.directory}."
    if asked.user != os.getuid():
        return (
            f"This server runs as the user with the number {os.getuid()} and you are {asked.user}: "
            f"the files that a job writes into {asked.directory} would not be yours."
        )
    try:
        here = directories.identity(Path(asked.directory))
    except (errors.InvalidInput, ValueError):
        return f"This server does not see {asked.directory}: it may run in a container with other files."
    if (here.device, here.inode) != (asked.device, asked.inode):
        return f"{asked.directory} is another directory for this server: it may run in a container with other files."
    return ""
