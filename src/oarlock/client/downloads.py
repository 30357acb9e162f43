"""Downloads of a job's files: the target of each file, and its arrival as a whole or not at all.

A file arrives under a draft name, which tells its version, and is renamed once it is whole. An interrupted download
continues where it stopped, unless the job's file has changed. The keys come from a server and must not lead out of the
target directory: no part is `..`, and no link is followed. `downloading.py` of each client fetches the files.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

import msgspec

from oarlock.client import answers, failures
from oarlock.data import durable, filekeys
from oarlock.spec import bodies, errors
from oarlock.spec.input import quantities

AT_ONCE = 8
LOSSES = 6
"""The number of lost connections in a row, without a byte between them, that ends a download."""
SAME_TIME_S = 0.002
LEFT_BY_JOB = ("files/", "results/")

Progress = Callable[[int, int], object]
"""Gets the number of bytes that have come, and the number of all bytes."""


class Target(msgspec.Struct, frozen=True):
    """A file of the job and its target. `url` is set for a file that does not come from the server."""

    file: bodies.JobFile
    place: Path
    url: str = ""


def default_place(name: str, path: str, to: str | Path | None) -> Path:
    """Return the target directory: `to`, else the present one for a named path, else a directory for the job.

    The directory for the job gets a `.gitignore` that leaves all of it out of the next job's snapshot.
    """
    if to is not None or path:
        return Path(to) if to is not None else Path()
    place = Path(f"{name}-files")
    if not place.exists():
        with writing(place):
            place.mkdir()
            (place / ".gitignore").write_text("*\n")
    return place


def targets(found: answers.FileList, path: str, to: Path, *, overwrite: bool) -> tuple[list[Target], int]:
    """Return the target of each missing file below `to`, and the number of files that are there already.

    A requested path keeps its last part. Raises Conflict for the first other file in the way, and InvalidInput for a
    key that leads out of `to`.
    """
    skipped = len(path.rpartition("/")[0]) + 1 if "/" in path else 0
    wanted = []
    for file in found.items:
        names = [os.fsdecode(name) for name in filekeys.parts(file.path[skipped:])]
        url = next((one.url for one in found.elsewhere if file.path.startswith(one.path + "/")), "")
        wanted.append(Target(file, to.joinpath(*names), url))
    missing = [target for target in wanted if not _is_there(target, to, overwrite)]
    return missing, len(wanted) - len(missing)


def whole(last: answers.FileList, items: Sequence[bodies.JobFile]) -> answers.FileList:
    """Return the pages of a list as one."""
    return msgspec.structs.replace(last, items=tuple(items), next=None)


def chosen(found: answers.FileList, path: str, name: str) -> answers.FileList:
    """Return the files to download: without a path, kept files and results. Raises NotFound where there are none."""
    items = found.items if path else tuple(one for one in found.items if one.path.startswith(LEFT_BY_JOB))
    lost = next((part for part in found.elsewhere if part.failure), None)
    if not items and lost is not None:
        raise errors.Unavailable(
            f"{lost.path} cannot be read from {lost.url}: {lost.failure}", hint="Fetch them from there."
        )
    if not items:
        raise errors.NotFound(
            f"{name} has left no files", hint=f"`oarlock files {name}` lists its logs and checkpoints too."
        )
    return msgspec.structs.replace(found, items=items)


def _is_there(target: Target, to: Path, overwrite: bool) -> bool:
    for parent in target.place.relative_to(to).parents:
        above = to / parent
        if parent != Path() and (above.is_symlink() or (above.exists() and not above.is_dir())):
            raise errors.Conflict(f"{above} is not a directory", hint="Name another directory: --to DIR.")
    try:
        info = target.place.lstat()
    except FileNotFoundError:
        return False
    alike = info.st_size == target.file.bytes and not target.place.is_symlink()
    if alike and (target.url or abs(info.st_mtime - target.file.modified_at) < SAME_TIME_S):
        return True
    if not overwrite or target.place.is_dir():
        raise errors.Conflict(
            f"{target.place} is there already, and is another file",
            hint="Name another directory with --to DIR, or replace the file with --overwrite.",
        )
    return False


class Draft:
    """A file on its way. `headers` request its missing part."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.moved = 0  # bytes that came since the last `began`
        tag = hashlib.sha256(f"{target.file.path}\n{target.file.version}".encode()).hexdigest()[:24]
        self.path = target.place.with_name(f".{tag}.oarlock-part")
        self._file: IO[bytes] | None = None
        self._left = 0

    def headers(self) -> dict[str, str]:
        have = self._size()
        return {"Range": f"bytes={have}-", "If-Range": f'"{self.target.file.version}"'} if have else {}

    @contextlib.contextmanager
    def receiving(self, status: int, headers: Mapping[str, str]) -> Iterator[int]:
        """Open the draft for `write`, and yield its present size. Raises Lost at the end where bytes are missing."""
        self.moved = 0
        with writing(self.target.place):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            before = self._size() if status == 206 else 0
            flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | (os.O_APPEND if before else os.O_TRUNC)
            self._file = os.fdopen(os.open(self.path, flags, 0o666), "wb")
        self._left = int(headers.get("content-length", 0))
        try:
            yield before
        finally:
            with writing(self.target.place):
                self._file.close()
        if self._left:
            raise failures.Lost(f"{self.target.file.path} came only in part", hint="Download it again: it continues.")

    def write(self, chunk: bytes) -> None:
        """Append bytes to the draft."""
        assert self._file is not None
        with writing(self.target.place):
            self._file.write(chunk)
        self._left -= len(chunk)
        self.moved += len(chunk)

    def finish(self) -> int:
        """Move the whole file to its target, and return its size. It is not synced, because it can be fetched again."""
        with writing(self.target.place):
            size = self._size()
            os.utime(self.path, (time.time(), self.target.file.modified_at))
            self.path.replace(self.target.place)
        return size

    def _size(self) -> int:
        try:
            return self.path.lstat().st_size
        except FileNotFoundError:
            return 0


@contextlib.contextmanager
def writing(place: Path) -> Iterator[None]:
    """Raise a failure of the disk as Unavailable."""
    try:
        yield
    except OSError as error:
        raise durable.unavailable(error, str(place), place.parent) from error


def check_room(wanted: Sequence[Target], to: Path) -> None:
    """Raise Unavailable before the download where the disk has too little space for all files."""
    import shutil

    there = next(place for place in (to.absolute(), *to.absolute().parents) if place.exists())
    needed, free = sum(target.file.bytes for target in wanted), shutil.disk_usage(there).free
    if needed > free:
        raise errors.Unavailable(
            f"the files have {quantities.size_text(needed)}, and {there} has {quantities.size_text(free)} left",
            hint="Free some space, or download to another disk: --to DIR.",
        )


class Meter:
    """A counter of the bytes of all files, for several threads."""

    def __init__(self, total: int, hears: Progress | None) -> None:
        self._total, self._hears, self._done = total, hears, 0
        self._lock = threading.Lock()

    def add(self, count: int) -> None:
        with self._lock:
            self._done += count
            if self._hears is not None:
                self._hears(min(self._done, self._total), self._total)


def total(wanted: Sequence[Target]) -> int:
    """Return the size of all files in bytes."""
    return sum(target.file.bytes for target in wanted)


def give_up(draft: Draft, losses: int) -> bool:
    """Return whether to end a download after so many losses in a row."""
    return not draft.moved and losses >= LOSSES
