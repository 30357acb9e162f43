"""What "stored" means here: bytes synced, the name that leads to them synced too, a full disk said as what it is."""

from __future__ import annotations

import errno
import os
import secrets
from pathlib import Path

from oarlock.spec import errors

FULL = frozenset({errno.ENOSPC, errno.EDQUOT})

PROBED_BYTES = 64 * 1024

sync = getattr(os, "fdatasync", os.fsync)  # macOS has no fdatasync
"""Push a file's bytes and length to the disk. Takes a file descriptor."""


def sync_folder(folder: Path) -> None:
    """Make the names in `folder` durable."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def make_folder(folder: Path, mode: int = 0o700) -> None:
    """As `mkdir -p`; each folder that was made is durable in the one above."""
    if folder.is_dir():
        return
    make_folder(folder.parent, mode)
    folder.mkdir(mode=mode, exist_ok=True)
    sync_folder(folder.parent)


def temporary(beside: Path) -> Path:
    """A name in the same folder that nobody else has; what is left under such a name after a kill may be deleted."""
    return beside.with_name(f".{beside.name[:64]}.{secrets.token_hex(6)}.tmp")


def write(path: Path, data: bytes) -> None:
    """Replace the file as a whole: a reader, or a restart, sees the old bytes or the new ones."""
    draft = temporary(path)
    try:
        with draft.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def probe(folder: Path) -> None:
    """Write a file of `PROBED_BYTES` in `folder`, synced, and remove it. Raises Unavailable where that fails."""
    try:
        make_folder(folder)
        draft = temporary(folder / "probe")
        try:
            with draft.open("xb") as file:
                file.write(bytes(PROBED_BYTES))
                file.flush()
                os.fsync(file.fileno())
        finally:
            draft.unlink(missing_ok=True)
    except OSError as error:
        raise unavailable(error, "a file to try", folder) from error


def unavailable(error: OSError, what: str, where: Path) -> errors.Unavailable:
    """The error for a write that failed: nothing of it counts as stored."""
    hint = f"free some space under {where}" if error.errno in FULL else f"look at the disk that holds {where}"
    return errors.Unavailable(f"{what} could not be stored: {error.strerror or error}", hint=hint)
