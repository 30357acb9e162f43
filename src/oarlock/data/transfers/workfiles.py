"""The command `keep DIR URL`: copy the new and changed files of a working directory, each file as a whole.

The baseline lists the files that were there before the processes began (`oarlock.agent.transfers.workdir` writes it).
Caches, files that match the job's patterns, and links out of the directory are not kept. The limits hold for all lives
of the task together: files of older lives are deleted first. On this machine's disk files are linked, not copied,
because the processes have ended and the working directory is deleted next. The result counts the files that could not
be kept, by reason.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent import futures
from pathlib import Path
from typing import NamedTuple

import msgspec

from oarlock.data import durable, filekeys
from oarlock.data.snapshots import ignores
from oarlock.data.transfers import patience, places, reporting, schemes, serverplaces, upload
from oarlock.spec import attempts, errors
from oarlock.spec.input import quantities

CACHES = (
    "__pycache__/",
    "*.pyc",
    ".venv/",
    "node_modules/",
    ".git/",
    ".hg/",
    ".svn/",
    ".ipynb_checkpoints/",
    ".mypy_cache/",
    ".pytest_cache/",
    ".ruff_cache/",
    ".oarlock/",
)
"""Names that are left out in every folder, unless a pattern of the job includes them again (`!.venv/`)."""
A_CACHE, IGNORED, UNREADABLE = "a cache", "ignored by files.ignore", "cannot be read"
A_FOLDER_LINK, OUTSIDE, SPECIAL = (
    "a link to a folder",
    "a link that leads out of the directory",
    "neither a file nor a folder",
)
SYNCS_AT_ONCE = 16
EXAMPLES = 5
EXAMPLE_CHARACTERS = 200


class Bounds(NamedTuple):
    """The limits for the kept files of one task, all its lives together."""

    bytes: int
    files: int


class Found(NamedTuple):
    """A new or changed file. `path` is relative to the directory; `real` is the path to open."""

    path: bytes
    real: bytes
    size: int
    changed: bool


class Ledger:
    """The numbers of files and bytes that are not kept, by reason."""

    def __init__(self) -> None:
        self._found: dict[str, tuple[int, int, list[str]]] = {}

    def add(self, path: bytes, why: str, size: int = 0, count: int = 1) -> None:
        before, held, examples = self._found.get(why, (0, 0, []))
        if len(examples) < EXAMPLES:
            examples.append(filekeys.of(path)[:EXAMPLE_CHARACTERS])
        self._found[why] = (before + count, held + size, examples)

    def summary(self) -> tuple[attempts.NotKept, ...]:
        return tuple(
            attempts.NotKept(why=why, count=count, bytes=size, examples=tuple(examples))
            for why, (count, size, examples) in sorted(self._found.items())
        )


def run(
    directory: str, url: str, baseline: str, patterns: Sequence[str], bounds: Bounds, task: str | None = None
) -> str:
    """Keep the files; return the kept and the other files as the JSON of `attempts.Kept`.

    `task` is the directory of the task, for a place at the server itself.
    """
    ledger = Ledger()
    found = list(changes(os.fsencode(directory), known(baseline), rules(patterns), ledger))
    kept = within(found, bounds, ledger)
    store = _store(url, task)
    meter = reporting.Meter("kept", len(kept), sum(one.size for one in kept))
    placed = store.put(kept, ledger, meter) if kept else []
    size = sum(one.size for one in placed)
    removed = store.delete_older(bounds.bytes - size, bounds.files - len(placed)) if placed else ()
    meter.done()
    said = attempts.Kept(
        files=len(placed),
        bytes=size,
        changed=sum(one.changed for one in placed),
        not_kept=ledger.summary(),
        removed=tuple(removed),
    )
    return msgspec.json.encode(said).decode()


def _store(url: str, task: str | None) -> Folder | Objects | AtServer:
    if serverplaces.is_one(url):
        return AtServer(serverplaces.ServerPlace(url, task))
    return Folder(places.local(url)) if schemes.of(url) == "file" else Objects(url)


def known(baseline: str) -> dict[bytes, bytes]:
    """Return the record of each file in the baseline, by its path."""
    try:
        records = Path(baseline).read_bytes().split(b"\0")
    except OSError as error:
        raise errors.Unavailable(
            f"the list of the files that were there before cannot be read: {error.strerror}",
            hint="another program changed the task's directory",
        ) from error
    return {record.split(b" ", 4)[4]: record for record in records if record.count(b" ") >= 4}


def rules(patterns: Iterable[str]) -> tuple[ignores.Rules, ignores.Rules]:
    """Return the job's own rules and ours. The first rule that matches counts."""
    own = "\n".join(patterns).encode("utf-8", "surrogateescape")
    return ignores.Rules(own), ignores.Rules("\n".join(CACHES).encode())


def changes(
    root: bytes, before: dict[bytes, bytes], rules: tuple[ignores.Rules, ignores.Rules], ledger: Ledger
) -> Iterator[Found]:
    """Yield the new and changed files below `root` that may be kept."""
    real_root = os.path.realpath(root)
    pending = [b""]
    while pending:
        prefix = pending.pop()
        try:
            with os.scandir(root + b"/" + prefix) as listed:
                children = sorted(listed, key=lambda child: child.name)
        except OSError:
            ledger.add(prefix, UNREADABLE)
            continue
        for child in children:
            path = prefix + child.name
            try:
                info = child.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue  # another process has removed it meanwhile
            except OSError:
                ledger.add(path, UNREADABLE)
                continue
            folder = stat.S_ISDIR(info.st_mode)
            if not folder and before.get(path) == record(path, info):
                continue
            why = left_out(path, child.name, folder, rules)
            if folder and not why and os.path.lexists(child.path + b"/pyvenv.cfg"):
                why = A_CACHE
            if why and folder:
                weigh(path + b"/", child.path, why, before, ledger)
            elif why:
                ledger.add(path, why, info.st_size)
            elif folder:
                pending.append(path + b"/")
            elif (found := followed(path, child.path, info, real_root, ledger)) is not None:
                yield found._replace(changed=path in before)


def weigh(prefix: bytes, place: bytes, why: str, before: dict[bytes, bytes], ledger: Ledger) -> None:
    """Count the new and changed files in a folder that is left out."""
    count = size = 0
    for folder, _, names in os.walk(place):
        for name in names:
            path = folder + b"/" + name
            below = prefix + path[len(place) + 1 :]
            with contextlib.suppress(OSError):
                info = os.lstat(path)
                if before.get(below) != record(below, info):
                    count, size = count + 1, size + info.st_size
    if count:
        ledger.add(prefix, why, size, count)


def record(path: bytes, info: os.stat_result) -> bytes:
    """Return the record of a file, as `oarlock.agent.transfers.workdir` writes it."""
    return b"%d %d %d %d %s" % (info.st_size, info.st_mtime_ns, info.st_ctime_ns, info.st_ino, path)


def left_out(path: bytes, name: bytes, folder: bool, rules: tuple[ignores.Rules, ignores.Rules]) -> str:
    """Return why the entry is left out, or an empty text. The job's own patterns win over ours."""
    tail = b"/" if folder else b""
    for one, why in zip(rules, (IGNORED, A_CACHE), strict=True):
        verdict = one.ignored(path + tail, name + tail)
        if verdict is not None:
            return why if verdict else ""
    return ""


def followed(path: bytes, place: bytes, info: os.stat_result, real_root: bytes, ledger: Ledger) -> Found | None:
    """Return a regular file, also one inside the directory to which a link leads."""
    real = place
    if stat.S_ISLNK(info.st_mode):
        real = os.path.realpath(place)
        if not real.startswith(real_root + b"/"):
            ledger.add(path, OUTSIDE)
            return None
        try:
            info = os.stat(real)  # noqa: PTH116  (names are bytes, which Path does not take)
        except OSError:
            ledger.add(path, OUTSIDE)
            return None
        if stat.S_ISDIR(info.st_mode):
            ledger.add(path, A_FOLDER_LINK)
            return None
    if not stat.S_ISREG(info.st_mode):
        ledger.add(path, SPECIAL)
        return None
    return Found(path, real, info.st_size, changed=False)


def within(found: Sequence[Found], bounds: Bounds, ledger: Ledger) -> list[Found]:
    """Return as many files as the limits allow: files in higher folders first, then smaller ones."""
    kept: list[Found] = []
    size = 0
    for one in sorted(found, key=lambda one: (one.path.count(b"/"), one.size, one.path)):
        if len(kept) >= bounds.files:
            ledger.add(one.path, f"over the limit of {bounds.files:,} files", one.size)
        elif size + one.size > bounds.bytes:
            ledger.add(one.path, f"over the limit of {quantities.size_text(bounds.bytes)}", one.size)
        else:
            kept.append(one)
            size += one.size
    return kept


def each(work: Callable[[Found], str], found: Sequence[Found], ledger: Ledger) -> list[Found]:
    """Return the files that were kept. `work` runs on a few threads and returns why a file was not kept."""
    with futures.ThreadPoolExecutor(upload.WORKERS) as pool:
        try:
            reasons = list(pool.map(work, found))
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise
    for one, why in zip(found, reasons, strict=True):
        if why:
            ledger.add(one.path, why, one.size)
    return [one for one, why in zip(found, reasons, strict=True) if not why]


class Folder:
    """The kept files in a directory of this machine, beside those of the task's other lives. Names stay bytes."""

    def __init__(self, place: Path) -> None:
        self._place = place

    def put(self, found: Sequence[Found], ledger: Ledger, meter: reporting.Meter) -> list[Found]:
        """Make all names first, then sync: a kill during the sync loses no file."""

        def place(one: Found) -> str:
            target = self._target(one)
            try:
                durable.make_folder(target.parent)
                link_or_copy(one.real, target)
            except (FileNotFoundError, PermissionError):
                return UNREADABLE
            except OSError as error:
                raise durable.unavailable(error, "a file of the working directory", self._place) from error
            meter.moved(one.size)
            meter.finished_file()
            return ""

        def sync(one: Found) -> None:
            with contextlib.suppress(PermissionError), self._target(one).open("rb") as file:
                os.fsync(file.fileno())

        placed = each(place, found, ledger)
        with futures.ThreadPoolExecutor(SYNCS_AT_ONCE) as pool:  # the disk writes waiting files together
            list(pool.map(sync, placed))
            list(pool.map(durable.sync_folder, {self._target(one).parent for one in placed}))
        return placed

    def _target(self, one: Found) -> Path:
        return self._place / os.fsdecode(one.path)

    def delete_older(self, left_bytes: int, left_files: int) -> list[str]:
        """Delete earlier lives of this task that no longer fit into the limits; return their names."""
        lives = {}
        for path in self._place.parent.iterdir() if self._place.parent.is_dir() else ():
            files = [one.lstat().st_size for one in path.rglob("*") if not one.is_dir()]
            lives[path.name] = (sum(files), len(files))
        removed = outgrown(lives, self._place.name, left_bytes, left_files)
        for life in removed:
            shutil.rmtree(self._place.with_name(life), ignore_errors=True)
        return removed


class Objects:
    """The kept files under a prefix of an object store. Names become keys: a store may refuse arbitrary bytes."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._system, self._root = places.filesystem(url)

    def put(self, found: Sequence[Found], ledger: Ledger, meter: reporting.Meter) -> list[Found]:
        def place(one: Found) -> str:
            def attempt() -> None:
                with places.foreign(self._url):
                    self._system.put_file(os.fsdecode(one.real), f"{self._root}/{filekeys.of(one.path)}")

            patience.tried(attempt, patience.Patience())
            meter.moved(one.size)
            meter.finished_file()
            return ""

        return each(place, found, ledger)

    def delete_older(self, left_bytes: int, left_files: int) -> list[str]:
        """Delete earlier lives, as `Folder.delete_older` does."""
        parent, _, own = self._root.rpartition("/")
        names: dict[str, list[str]] = {}
        lives: dict[str, tuple[int, int]] = {}
        with places.foreign(self._url):
            for name, info in self._system.find(parent, detail=True).items():
                life = name.removeprefix(parent + "/").partition("/")[0]
                names.setdefault(life, []).append(name)
                size, count = lives.get(life, (0, 0))
                lives[life] = (size + int(info.get("size") or 0), count + 1)
            removed = outgrown(lives, own, left_bytes, left_files)
            for life in removed:
                self._system.rm(names[life])
        return removed


class AtServer:
    """The kept files in the server's home, which this machine does not see."""

    def __init__(self, place: serverplaces.ServerPlace) -> None:
        self._place = place

    def put(self, found: Sequence[Found], ledger: Ledger, meter: reporting.Meter) -> list[Found]:
        def place(one: Found) -> str:
            try:
                self._place.send(one.real, filekeys.of(one.path))
            except (FileNotFoundError, PermissionError):
                return UNREADABLE
            meter.moved(one.size)
            meter.finished_file()
            return ""

        return each(place, found, ledger)

    def delete_older(self, left_bytes: int, left_files: int) -> list[str]:
        """Delete earlier lives, as `Folder.delete_older` does."""
        return self._place.delete_older(left_bytes, left_files)


def outgrown(lives: Mapping[str, tuple[int, int]], own: str, left_bytes: int, left_files: int) -> list[str]:
    """Return the lives before `own` that no longer fit, the latest first. `lives` has the bytes and files of each."""
    removed = []
    for life in sorted(lives.keys() - {own}, key=age, reverse=True):
        left_bytes, left_files = left_bytes - lives[life][0], left_files - lives[life][1]
        if (left_bytes < 0 or left_files < 0) and age(life) < age(own):
            removed.append(life)
    return removed


def age(life: str) -> list[int]:
    """Return the sort key of a life's name (`attempts.TaskKey.life`): its numbers."""
    return [int(word) for word in life.split("-") if word.isdecimal()]


def link_or_copy(real: bytes, target: Path) -> None:
    """Link the file if the file system can, else copy it. The copy appears as a whole."""
    draft = durable.temporary(target)
    try:
        try:
            os.link(real, draft, follow_symlinks=False)
        except FileNotFoundError:
            raise
        except OSError:  # another file system, or one without links
            shutil.copyfile(os.fsdecode(real), draft, follow_symlinks=False)
            shutil.copystat(os.fsdecode(real), draft, follow_symlinks=False)
        draft.replace(target)
    finally:
        draft.unlink(missing_ok=True)
