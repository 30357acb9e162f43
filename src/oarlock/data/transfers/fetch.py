"""The command `fetch SOURCE DEST`: copy data to this disk, all of it or nothing.

The files are collected beside DEST in `.NAME.oarlock-fetch/`, under a lock, so that tasks that share a disk fetch once.
That folder also has a listing of the source: a fetch that was killed and started again continues with the files that
are there, unless the source has changed. At the end one rename puts everything in place. DEST becomes the directory or,
if the source is one file, the file. If DEST is a directory, one file is put into it.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterator
from concurrent import futures
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from oarlock.data import durable
from oarlock.data.transfers import homeguard, patience, places, reporting, schemes, weblinks
from oarlock.spec import errors
from oarlock.spec.input import quantities

WORKERS = 8


class Record(msgspec.Struct, frozen=True):
    """The record of the files in the collecting folder, or of those put in place."""

    source: str
    listing: str


def run(source: str, dest: str, *, home: str | None = None, task: str | None = None) -> Path:
    """Fetch the data and return its path. A source inside `home`, the server's, is refused.

    `task` is the directory of the task, for the installation's own place for checkpoints.

    Errors: those of `places`, `weblinks` and `homeguard`; InvalidInput if DEST has other content.
    """
    web = not schemes.signed(source) and schemes.of(source) in ("http", "https")
    if home is not None:
        homeguard.check_source(source, home)
    reporting.detail(f"listing {source}")
    listing = weblinks.listing(source) if web else places.listing(source, task)
    if home is not None and schemes.of(source) == "file":
        homeguard.check_files((item.path for item in listing.items), home)
    target = Path(dest).absolute()
    if listing.single and (dest.endswith("/") or target.is_dir()):
        target /= listing.items[0].name
    record = Record(source, fingerprint(listing))
    try:
        with gathering(target) as place:
            bring(source, listing, record, place, target, web=web, task=task)
    except OSError as error:
        raise durable.unavailable(error, f"data for {target}", target.parent) from error
    return target


def fingerprint(listing: places.Listing) -> str:
    return hashlib.sha256(msgspec.json.encode(listing)).hexdigest()


@contextmanager
def gathering(target: Path) -> Iterator[Path]:
    """Lock the collecting folder for one fetch at a time. The lock ends with its process."""
    target.parent.mkdir(parents=True, exist_ok=True)
    place = target.with_name(f".{target.name}.oarlock-fetch")
    place.mkdir(mode=0o700, exist_ok=True)
    with (place / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            reporting.detail(f"waiting for another task that fetches {target.name}")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield place


def bring(
    source: str,
    listing: places.Listing,
    record: Record,
    place: Path,
    target: Path,
    *,
    web: bool,
    task: str | None = None,
) -> None:
    files = place / "files"
    known = read_record(place)
    if occupied(target):
        if known == record and not files.exists():
            return  # another task has fetched the same data
        raise errors.InvalidInput(
            f"{target} exists already, with other content than {source}",
            hint="mount the data at another path, or delete the existing one",
            path="mount",
        )
    if known != record:
        shutil.rmtree(files, ignore_errors=True)
        durable.write(place / "record", msgspec.json.encode(record))
    files.mkdir(exist_ok=True)
    check_free_space(listing, files)
    download(source, listing, files, web=web, task=task)
    put_in_place(listing, files, target)


def read_record(place: Path) -> Record | None:
    try:
        return msgspec.json.decode((place / "record").read_bytes(), type=Record)
    except (OSError, msgspec.MsgspecError):
        return None


def occupied(target: Path) -> bool:
    if target.is_dir() and not target.is_symlink():
        return any(target.iterdir())
    return os.path.lexists(target)


def check_free_space(listing: places.Listing, files: Path) -> None:
    """Raise an error before the first byte if the data does not fit: other tasks use the disk too."""
    if listing.bytes is None:
        return
    there = sum(path.stat().st_size for path in files.rglob("*") if path.is_file())
    free = shutil.disk_usage(files).free
    if listing.bytes - there > free:
        raise errors.Unavailable(
            f"the data has {quantities.size_text(listing.bytes)}, but only {quantities.size_text(free)} are free",
            hint="free some space, or fetch less",
        )


def download(source: str, listing: places.Listing, files: Path, *, web: bool, task: str | None = None) -> None:
    meter = reporting.Meter("fetched", len(listing.items), listing.bytes)
    system = None if web else places.filesystem(source, task)[0]

    def one(item: places.Item) -> None:
        path = files / item.name
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            draft = path.with_name(draft_name(item.name))
            if system is None:
                weblinks.fetch(item, draft, meter.moved, patience.Patience())
            else:
                copied(system, source, item, draft, meter, patience.Patience())
            draft.replace(path)
        else:
            meter.moved(item.size or 0)
        meter.finished_file()

    with futures.ThreadPoolExecutor(min(WORKERS, len(listing.items))) as pool:
        try:
            for done in futures.as_completed([pool.submit(one, item) for item in listing.items]):
                done.result()
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise
    meter.done()


def draft_name(name: str) -> str:
    """Return a file name for the draft of `name`: unique, the same at the next start, and short enough."""
    return f".{hashlib.sha256(name.encode(errors='surrogateescape')).hexdigest()[:32]}.oarlock-part"


def copied(
    system: Any, source: str, item: places.Item, draft: Path, meter: reporting.Meter, waiting: patience.Patience
) -> None:
    def attempt() -> None:
        with places.foreign(source):
            system.get_file(item.path, str(draft), callback=counting(meter, waiting))

    patience.tried(attempt, waiting)
    found = draft.stat().st_size
    if item.size is not None and found != item.size:
        raise errors.Unavailable(
            f"{item.path} has {found:,} bytes instead of {item.size:,}",
            hint="try again when the source no longer changes",
        )
    meter.moved(waiting.moved(found))  # not every file system reports progress


def counting(meter: reporting.Meter, waiting: patience.Patience) -> Any:
    """Return a callback for one try of fsspec. It reports the bytes that no earlier try has moved."""
    from fsspec import callbacks

    class Counting(callbacks.Callback):  # type: ignore[misc]  # fsspec publishes no types
        def relative_update(self, inc: int = 1) -> None:
            self.value += inc
            meter.moved(waiting.moved(self.value))

    return Counting()


def put_in_place(listing: places.Listing, files: Path, target: Path) -> None:
    if listing.single:
        (files / listing.items[0].name).replace(target)
        files.rmdir()
    else:
        files.rename(target)
    durable.sync_folder(target.parent)
