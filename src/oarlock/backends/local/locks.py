"""Claims that hold on the whole machine, for all homes: a flock on a file that every user may open.

A claim is whole, or it is a share: any number of shares of one owner (a home), none beside a whole claim or a share of
another owner. A share is a shared flock, and a read lock on the byte of the file that is its owner's number; after both
the owner looks whether any other byte is locked. Two owners that come at the same moment see each other and let go.

The file lies in a directory where every user may write and none may delete another's file (/run/lock, else /tmp), and
is opened as a stranger's file has to be: no symbolic link is followed, it must be a regular file, nothing is read from
it or written to it. The kernel lets go of a claim when the last process that has the descriptor is gone, so a claim
that was passed to a task's agent outlives the server.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import struct
from collections.abc import Callable
from pathlib import Path

_PLACES = (Path("/run/lock"), Path("/tmp"))


def place() -> Path:
    """Return the directory of claims: the same for all users of the machine, hence chosen by its mode and not by our
    rights.
    """
    for candidate in _PLACES:
        with contextlib.suppress(OSError):
            mode = candidate.stat().st_mode
            if mode & stat.S_ISVTX and mode & stat.S_IWOTH:
                return candidate
    return _PLACES[-1]


def claim(name: str, *, where: Path | None = None) -> int | None:
    """Return a descriptor that holds the claim until it is closed everywhere; None while another process has it.

    Raises OSError.
    """

    def lock(fd: int) -> bool:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True

    return _held(name, where, lock)


def share(name: str, owner: int, *, where: Path | None = None) -> int | None:
    """Return a descriptor that holds a share until it is closed everywhere; None while the whole is claimed, or another
    owner has a share. `owner` is a number below 2**62.

    Raises OSError.
    """

    def lock(fd: int) -> bool:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _range(fcntl.F_RDLCK, owner, 1))
        return not (_others(fd, 0, owner) or _others(fd, owner + 1, 0))

    return _held(name, where, lock)


def _held(name: str, where: Path | None, lock: Callable[[int], bool]) -> int | None:
    """Return the open file of that name once `lock` holds it; None where another process does."""
    fd = _open((where or place()) / f"oarlock-{name}.lock")
    held = False
    try:
        held = lock(fd)
    except BlockingIOError:
        pass
    finally:
        if not held:
            os.close(fd)
    return fd if held else None


def _others(fd: int, start: int, length: int) -> bool:
    """Return whether another process has locked a byte of this range; a length of 0 reaches to the end."""
    if start == length == 0:
        return False
    answer = fcntl.fcntl(fd, fcntl.F_OFD_GETLK, _range(fcntl.F_WRLCK, start, length))
    return bool(struct.unpack_from("h", answer)[0] != fcntl.F_UNLCK)


def _range(kind: int, start: int, length: int) -> bytes:
    """Return a `struct flock`: type, whence, start, length, pid."""
    return struct.pack("@hhqqi4x", kind, os.SEEK_SET, start, length, 0)


def _open(path: Path) -> int:
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        # Without O_CREAT first: the kernel may refuse O_CREAT on a stranger's file in such a directory.
        fd = os.open(path, flags)
    except FileNotFoundError:
        try:
            fd = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o444)
        except FileExistsError:
            fd = os.open(path, flags)
        else:
            os.fchmod(fd, 0o444)  # whatever the umask says, everybody may open it
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(f"{path} is no regular file")
    return fd
