"""The tree of a job's files in the server's home:

    files/worker-0/ckpt.pt                kept from the working directory of a task's last life
    earlier/attempt-1/worker-0/ckpt.pt    the same for its earlier lives
    results/model.pt                      written to OARLOCK_RESULTS
    checkpoints/attempt-1-round-1-step-50/shard-0.pt
    logs/attempt-1/worker-0/stdout.0

Users send keys, which are never used as paths (`filekeys`). A key names a root, which the server chooses, and the names
below it. Links are not followed. Only regular files are listed and opened.
"""

from __future__ import annotations

import asyncio
import os
import re
import stat
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple

from oarlock.data import filekeys, storage, taskfolders
from oarlock.spec import bodies, errors

_LIFE = re.compile(r"attempt-(\d{1,9})(?:-incarnation-(\d{1,9}))?")
_TASK = re.compile(r"[a-z]{1,32}-\d{1,9}")
_OPEN = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
MISSING = "there is no file {!r} of this job"


class Root(NamedTuple):
    """The root of the keys that begin with `key`. `place` is a folder or one file."""

    key: str
    place: Path


class DirectoryJobFiles:
    """The files of jobs in the home's directories `files`, `results`, `checkpoints` and `logs`."""

    def __init__(self, home: Path) -> None:
        self._home = home

    async def listing(self, job: str, checkpoints: Collection[str] = ()) -> list[bodies.JobFile]:
        return await asyncio.to_thread(lambda: sorted(self._listing(job, checkpoints), key=lambda one: one.path))

    async def open(self, job: str, key: str, checkpoints: Collection[str] = ()) -> storage.OpenFile:
        return await asyncio.to_thread(self._open, job, key, checkpoints)

    def _listing(self, job: str, checkpoints: Collection[str]) -> Iterator[bodies.JobFile]:
        for root in self._roots(job, checkpoints):
            yield from listed(root)

    def _open(self, job: str, key: str, checkpoints: Collection[str]) -> storage.OpenFile:
        names = filekeys.parts(key)
        for root in self._roots(job, checkpoints):
            above = filekeys.parts(root.key)
            if names[: len(above)] == above:
                return opened(root.place, names[len(above) :], key)
        raise missing(key)

    def _roots(self, job: str, checkpoints: Collection[str]) -> Iterator[Root]:
        yield from self._kept(taskfolders.job_folder(self._home / "files", job))
        yield Root("results", taskfolders.job_folder(self._home / "results", job))
        saved = taskfolders.job_folder(self._home / "checkpoints", job)
        for path in checkpoints:
            place = Path(path)
            if place.parent == saved and place.name not in ("", ".", ".."):
                yield Root(f"checkpoints/{filekeys.of(os.fsencode(place.name))}", place)
        for key, folder in taskfolders.folders(self._home / "logs", job):
            for place in sorted(folder.glob("*.log")):
                yield Root(f"logs/{key.life}/{key.role}-{key.index}/{place.stem}", place)

    def _kept(self, folder: Path) -> Iterator[Root]:
        """Yield the roots of each task's last life and of its earlier lives."""
        for task in folders(folder):
            if _TASK.fullmatch(task.name) is None:
                continue
            lives = sorted((age, life) for life in folders(task) if (age := age_of(life.name)) is not None)
            for place, (_, life) in enumerate(reversed(lives)):
                yield Root(f"earlier/{life.name}/{task.name}" if place else f"files/{task.name}", life)


def folders(place: Path) -> list[Path]:
    try:
        return [path for path in place.iterdir() if path.is_dir() and not path.is_symlink()]
    except OSError:
        return []


def age_of(name: str) -> tuple[int, int] | None:
    found = _LIFE.fullmatch(name)
    return (int(found[1]), int(found[2] or 1)) if found is not None else None


def listed(root: Root) -> Iterator[bodies.JobFile]:
    """Yield the regular files at and below a root, in no order."""
    pending = [(root.key, os.fsencode(root.place))]
    while pending:
        key, place = pending.pop()
        try:
            info = os.lstat(place)
            if stat.S_ISREG(info.st_mode):
                yield bodies.JobFile(path=key, bytes=info.st_size, modified_at=info.st_mtime, version=version_of(info))
            elif stat.S_ISDIR(info.st_mode):
                with os.scandir(place) as children:
                    pending += [
                        (f"{key}/{filekeys.of(child.name)}", child.path) for child in children if is_whole(child)
                    ]
        except OSError:
            continue  # it was deleted meanwhile, or cannot be read


def is_whole(child: os.DirEntry[bytes]) -> bool:
    """Return whether the entry is stored, not a draft (`durable.temporary`)."""
    return not (child.name.startswith(b".") and child.name.endswith(b".tmp"))


def opened(place: Path, names: list[bytes], key: str) -> storage.OpenFile:
    """Open the file `names` below `place`. NotFound if there is none."""
    handle = -1
    try:
        handle = os.open(place, _OPEN)
        for name in names:
            below = os.open(name, _OPEN, dir_fd=handle)
            os.close(handle)
            handle = below
        info = os.fstat(handle)
        if not stat.S_ISREG(info.st_mode):
            raise missing(key)
    except (OSError, errors.NotFound) as error:
        if handle >= 0:
            os.close(handle)
        raise missing(key) from error
    return Opened(handle, info)


def version_of(info: os.stat_result) -> str:
    return f"{info.st_ino:x}-{info.st_size:x}-{info.st_mtime_ns:x}"


def missing(key: str) -> errors.NotFound:
    return errors.NotFound(MISSING.format(key[:200]), hint="`oarlock files JOB` lists the files")


class Opened:
    """A file that is open for reading. The caller closes it."""

    def __init__(self, handle: int, info: os.stat_result) -> None:
        self._handle = handle
        self.size_bytes = info.st_size
        self.version = version_of(info)

    async def read(self, offset: int, size: int) -> bytes:
        return await asyncio.to_thread(os.pread, self._handle, size, offset)

    def close(self) -> None:
        os.close(self._handle)
