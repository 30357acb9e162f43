"""Claims that hold on the whole machine, whoever's home makes them: a flock on a file that everybody may open.

The file lies in a directory where everybody may write and nobody may delete another's file (/run/lock, else /tmp),
and is opened as a stranger's file has to be: no symbolic link is followed, it must be a regular file, nothing is read
from it or written to it. The kernel lets go of a claim when the last process that has the descriptor is gone, so a
claim that was passed to a task's agent outlives the server.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from pathlib import Path

_PLACES = (Path("/run/lock"), Path("/tmp"))


def place() -> Path:
    """The same for all users of the machine, hence chosen by the directory's mode and not by what we may do."""
    for candidate in _PLACES:
        with contextlib.suppress(OSError):
            mode = candidate.stat().st_mode
            if mode & stat.S_ISVTX and mode & stat.S_IWOTH:
                return candidate
    return _PLACES[-1]


def claim(name: str, *, where: Path | None = None) -> int | None:
    """A descriptor that holds the claim until it is closed everywhere; None while somebody else has it.

    Raises OSError.
    """
    fd = _open((where or place()) / f"oarlock-{name}.lock")
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    except OSError:
        os.close(fd)
        raise
    return fd


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
