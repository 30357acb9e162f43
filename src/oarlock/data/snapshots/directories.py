"""Which directory a path names: the machine, the user and the file system's own number of it.

The client tells it and the server compares, before a job runs in the user's own directory: the same path on another
machine, or in another container, is another directory.
"""

from __future__ import annotations

import os
from pathlib import Path

from oarlock.spec import errors, jobfile

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def identity(directory: Path) -> jobfile.InPlace:
    """Return the identity of a directory of this machine. Raises InvalidInput where it is none."""
    try:
        place = directory.resolve(strict=True)
        info = place.stat()
    except OSError as error:
        raise errors.InvalidInput(f"{directory} is not a directory: {errors.words(error)}", path="--dir") from error
    if not place.is_dir():
        raise errors.InvalidInput(f"{directory} is not a directory", path="--dir", hint="Name the code's directory.")
    return jobfile.InPlace(
        directory=str(place), machine=machine(), user=os.getuid(), device=info.st_dev, inode=info.st_ino
    )


def machine() -> str:
    """Return what no other running machine has; empty where the system does not tell."""
    try:
        return BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return ""
