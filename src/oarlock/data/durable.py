"""Durable writes: the bytes and the names of their files are synced, and a full disk is reported as such."""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
from pathlib import Path

from oarlock.spec import errors

FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
HOPELESS = frozenset({errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENOTEMPTY, errno.ENAMETOOLONG})
"""Failures of a write that stay as they are when it is repeated: they depend on names alone."""
NAME_BYTES = 64
"""Bytes of a name that its temporary name keeps. File systems take 255 bytes, and some fewer."""

PROBED_BYTES = 64 * 1024

sync = getattr(os, "fdatasync", os.fsync)  # macOS has no fdatasync
"""Write a file's bytes and length to the disk. The argument is a file descriptor."""


def sync_folder(folder: Path) -> None:
    """Make the names in `folder` durable."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def make_folder(folder: Path, mode: int = 0o700) -> None:
    """Make the folder and those above it, each of them durable."""
    if folder.is_dir():
        return
    make_folder(folder.parent, mode)
    folder.mkdir(mode=mode, exist_ok=True)
    sync_folder(folder.parent)


def temporary(beside: Path) -> Path:
    """Return a new, unique path in the same folder. A file left under such a name after a kill may be deleted."""
    kept = os.fsencode(beside.name)[:NAME_BYTES].decode(errors="ignore")
    return beside.with_name(f".{kept}.{secrets.token_hex(6)}.tmp")


def write(path: Path, data: bytes, mode: int = 0o666) -> None:
    """Replace the file as a whole: a reader, or a restart, sees the old bytes or the new ones."""
    draft = temporary(path)
    try:
        with open(draft, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def probe(folder: Path) -> None:
    """Write a file of `PROBED_BYTES` in `folder`, lock and sync it, and remove it. Unavailable if that fails."""
    try:
        make_folder(folder)
        draft = temporary(folder / "probe")
        try:
            with draft.open("xb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                file.write(bytes(PROBED_BYTES))
                file.flush()
                os.fsync(file.fileno())
        finally:
            draft.unlink(missing_ok=True)
    except OSError as error:
        raise unavailable(error, "a test file", folder) from error


def failure(error: OSError, subject: str, place: Path) -> errors.OarlockError:
    """Return the error for a failed write under a name that another chose: Conflict if it can never work."""
    if error.errno in HOPELESS:
        return errors.Conflict(
            f"{subject} cannot be stored: {error.strerror}",
            hint="use a shorter name, or one that is neither the folder of another file nor a file's folder",
        )
    return unavailable(error, subject, place)


def unavailable(error: OSError, subject: str, place: Path, *, done: str = "stored") -> errors.Unavailable:
    """Return the error for a failed write of `subject`, of which no byte counts as stored."""
    hint = f"free some space under {place}" if error.errno in FULL else f"check the disk that holds {place}"
    if isinstance(error, BlockingIOError):
        hint = "try again; where it stays so, end the server that hangs"
    return errors.Unavailable(f"{subject} could not be {done}: {error.strerror or error}", hint=hint)
