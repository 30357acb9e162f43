"""The identity of a directory: the machine, the user and the file system's number of the directory.

The client sends it and the server compares it before a job runs in the user's own directory, because the same path on
another machine or in another container is another directory.
"""

from __future__ import annotations

import os
from pathlib import Path

from oarlock.spec import errors, jobfile

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def identity(directory: Path) -> jobfile.InPlace:
    """Return the identity of a directory of this machine. InvalidInput if it is not a directory."""
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
    """Return an identifier that no other running machine has; an empty text if the system has none."""
    try:
        return BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return ""
