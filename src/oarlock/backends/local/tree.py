"""Where tasks lie on disk: `home/tasks/JOB/ATTEMPT/ROLE-INDEX-INCARNATION/`, one directory for each incarnation.

A directory is there whole or not at all: it is filled under another name and renamed. It goes the same way: an
attempt is renamed out of the tree and deleted afterwards. Job ids are keys that the server made; they are checked all
the same before they become a path.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import time
from collections.abc import Mapping
from pathlib import Path

from oarlock.spec import attempts, errors, roles

_JOB = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_NUMBER = re.compile(r"0|[1-9][0-9]{0,8}")
_MAKING = ".making-"
_DISCARDED = ".discarded"
RACY_S = 2.0
"""A directory that was changed less long ago may change again without its time of change showing it."""


class Tree:
    def __init__(self, home: Path) -> None:
        self.root = home / "tasks"
        self._listed: dict[Path, tuple[int, list[str]]] = {}

    def path(self, key: attempts.TaskKey) -> Path:
        """Return the task's directory. Raise InvalidInput for a key that no server of ours has made."""
        numbers = (key.index, key.incarnation)
        if key.role not in set(roles.RoleName) or any(not _NUMBER.fullmatch(str(number)) for number in numbers):
            raise errors.InvalidInput(f"{str(key)!r} is no task key", hint="Keys are made by the server.")
        return self.attempt(key.job, key.attempt) / f"{key.role}-{key.index}-{key.incarnation}"

    def attempt(self, job: str, attempt: int) -> Path:
        if not _JOB.fullmatch(job) or not _NUMBER.fullmatch(str(attempt)):
            raise errors.InvalidInput(
                f"{job!r}/{attempt!r} is no attempt of a job", hint="Keys are made by the server."
            )
        return self.root / job / str(attempt)

    def make(self, key: attempts.TaskKey, files: Mapping[str, bytes]) -> bool:
        """Make the task's directory with these files in it, all or nothing.

        Return False when there is one. Raise OSError.
        """
        path = self.path(key)
        if path.exists():
            return False
        filling = path.with_name(f"{_MAKING}{path.name}-{os.getpid()}")
        shutil.rmtree(filling, ignore_errors=True)
        _make_private(filling)
        try:
            for name, content in files.items():
                write(filling / name, content)
            filling.rename(path)
        except OSError:
            shutil.rmtree(filling, ignore_errors=True)
            if path.exists():  # made by another server over the same home, at this moment
                return False
            raise
        return True

    def unmake(self, key: attempts.TaskKey) -> None:
        """Take back a directory in which nothing was started."""
        path = self.path(key)
        shutil.rmtree(path, ignore_errors=True)
        self._remove_empty(path.parent)

    def keys(self) -> list[attempts.TaskKey]:
        """Return every incarnation that has a directory."""
        found: list[attempts.TaskKey] = []
        listed: dict[Path, tuple[int, list[str]]] = {}
        for job in self._names(self.root, listed):
            for attempt in self._names(self.root / job, listed):
                if _JOB.fullmatch(job) and _NUMBER.fullmatch(attempt):
                    names = self._names(self.root / job / attempt, listed)
                    found += [key for name in names if (key := _parse(job, attempt, name)) is not None]
        self._listed = listed
        return found

    def discard(self, job: str, attempt: int) -> None:
        """Delete an attempt's directories.

        Checkpoints and results lie elsewhere, and links out of it are not followed.
        """
        path = self.attempt(job, attempt)
        trash = self.root / _DISCARDED
        with contextlib.suppress(FileNotFoundError):
            _make_private(trash)
            path.rename(trash / f"{job}.{attempt}.{time.monotonic_ns()}")
        self._remove_empty(path)
        self.sweep()

    def sweep(self) -> None:
        """Delete discarded trees, also those that an earlier server had no time for."""
        trash = self.root / _DISCARDED
        for child in list(trash.iterdir()) if trash.is_dir() else ():
            with contextlib.suppress(OSError):  # tried again at the next sweep
                _delete(child)
        with contextlib.suppress(OSError):
            trash.rmdir()

    def _names(self, path: Path, listed: dict[Path, tuple[int, list[str]]]) -> list[str]:
        """Return the names in a directory, read again when it has changed.

        Hundreds of finished attempts cost one stat each.
        """
        try:
            changed_ns = path.stat().st_mtime_ns
            known = self._listed.get(path)
            names = known[1] if known is not None and known[0] == changed_ns else _directories(path)
        except (FileNotFoundError, NotADirectoryError):
            return []
        # The file system's times are the machine's, whatever clock the server is given.
        if abs(time.time() - changed_ns / 1e9) > RACY_S:
            listed[path] = (changed_ns, names)
        return names

    def _remove_empty(self, path: Path) -> None:
        for directory in (path, path.parent):
            if directory != self.root:
                with contextlib.suppress(OSError):
                    directory.rmdir()


def _parse(job: str, attempt: str, name: str) -> attempts.TaskKey | None:
    parts = name.split("-")
    if len(parts) != 3 or parts[0] not in set(roles.RoleName) or not all(_NUMBER.fullmatch(p) for p in parts[1:]):
        return None
    return attempts.TaskKey(job, int(attempt), parts[0], int(parts[1]), int(parts[2]))


def _directories(path: Path) -> list[str]:
    with os.scandir(path) as entries:
        return sorted(entry.name for entry in entries if entry.name[0] != "." and entry.is_dir(follow_symlinks=False))


def _make_private(path: Path) -> None:
    """Make a folder and those above it, each for its owner only.

    A neighbour's last task may just be taking a level away: try again, then.
    """
    for _ in range(100):
        try:
            path.mkdir(mode=0o700, exist_ok=True)
            return
        except FileNotFoundError:
            _make_private(path.parent)
    path.mkdir(mode=0o700, exist_ok=True)


def write(path: Path, content: bytes) -> None:
    """Write a file that only its owner can read, whole or not at all. Raise OSError."""
    filling = path.with_name(f"{path.name}.{os.getpid()}~")
    try:
        fd = os.open(filling, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(fd, "wb") as file:
            file.write(content)
        filling.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            filling.unlink()
        raise


def _delete(path: Path) -> None:
    """Delete a tree, also where a task has made directories that cannot be entered.

    They are its owner's all the same.
    """
    with contextlib.suppress(OSError):
        shutil.rmtree(path)
    if path.exists():
        path.chmod(0o700)
        for parent, names, _ in os.walk(path):
            for name in names:
                child = Path(parent, name)
                if not child.is_symlink():
                    child.chmod(0o700)
        shutil.rmtree(path, ignore_errors=True)
