"""The command `store DIR URL`: copy a directory's files to a URL, each file as a whole.

Object stores show an object only when it is complete. On a file system each file is written under another name, synced
and renamed. Files that show that all others are there, such as `manifest.json`, `index.json` and `_SUCCESS`, are copied
last. Storing again copies everything again.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable, Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

from oarlock.data import durable, filekeys
from oarlock.data.transfers import fetch, patience, places, reporting, schemes, serverplaces
from oarlock.spec import errors

WORKERS = 8
LAST = ("manifest.json", "index.json", "_SUCCESS")


def run(
    directory: str, url: str, task: str | None = None, *, chosen: Callable[[Path], bool] = lambda path: True
) -> int:
    """Copy the files and return their number. An empty directory is not an error: a job need not have results.

    `task` is the directory of the task, for a place at the server itself, or if the server signs the requests. Only the
    files that are `chosen` are copied.
    """
    signed = schemes.signed(url)
    own = serverplaces.ServerPlace(url, task) if serverplaces.is_one(url) and not signed else None
    kind = schemes.of(url) if own is None and not signed else ""
    if kind in ("http", "https"):
        raise errors.InvalidInput(f"{url}: nothing can be stored by {kind}", hint="use file, s3 or gs", path="results")
    root = Path(directory)
    if not root.is_dir():
        raise errors.InvalidInput(f"{directory} is not a directory", hint="write results into $OARLOCK_RESULTS")
    files = sorted(path for path in found(root) if chosen(path))
    meter = reporting.Meter("stored", len(files), sum(path.stat().st_size for path in files))
    if own is not None:
        send = to_server(own, meter)
    else:
        send = to_folder(places.local(url), meter) if kind == "file" else to_objects(url, meter, task)
    first = [path for path in files if not is_last(path)]
    with futures.ThreadPoolExecutor(WORKERS) as pool:
        try:
            for done in futures.as_completed([pool.submit(send, path, name_of(path, root)) for path in first]):
                done.result()
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise
    for path in files:
        if is_last(path):
            send(path, name_of(path, root))
    meter.done()
    return len(files)


def name_of(path: Path, root: Path) -> str:
    return path.relative_to(root).as_posix()


def is_last(path: Path) -> bool:
    return path.name.endswith(LAST)


def found(root: Path) -> Iterator[Path]:
    """Yield regular files, and links to regular files inside the directory. Report the others."""
    real = root.resolve()
    for folder, folders, names in os.walk(root):
        for name in [*folders, *names]:
            path = Path(folder, name)
            if path.is_symlink() and not path.resolve().is_relative_to(real):
                reporting.detail(f"not stored: {path.relative_to(root)} is a link that leaves the directory")
            elif path.is_symlink() and path.is_dir():
                reporting.detail(f"not stored: {path.relative_to(root)} is a link to a folder")
            elif name in names and path.exists():
                if stat.S_ISREG(path.stat().st_mode):
                    yield path
                else:
                    reporting.detail(f"not stored: {path.relative_to(root)} is neither a file nor a folder")


def to_folder(target: Path, meter: reporting.Meter) -> Any:
    def send(path: Path, name: str) -> None:
        place = target / name
        try:
            durable.make_folder(place.parent, 0o777)
            draft = durable.temporary(place)
            try:
                shutil.copyfile(path, draft)
                with draft.open("rb") as file:
                    os.fsync(file.fileno())
                draft.replace(place)
            finally:
                draft.unlink(missing_ok=True)
            durable.sync_folder(place.parent)
        except OSError as error:
            raise durable.unavailable(error, str(place), target) from error
        meter.moved(place.stat().st_size)
        meter.finished_file()

    return send


def to_server(place: serverplaces.ServerPlace, meter: reporting.Meter) -> Any:
    def send(path: Path, name: str) -> None:
        place.send(os.fsencode(path), filekeys.of(os.fsencode(name)))
        meter.moved(path.stat().st_size)
        meter.finished_file()

    return send


def to_objects(url: str, meter: reporting.Meter, task: str | None = None) -> Any:
    system, root = places.filesystem(url, task)

    def send(path: Path, name: str) -> None:
        waiting = patience.Patience()

        def attempt() -> None:
            with places.foreign(url):
                system.put_file(str(path), f"{root}/{name}", callback=fetch.counting(meter, waiting))

        patience.tried(attempt, waiting)
        meter.moved(waiting.moved(path.stat().st_size))
        meter.finished_file()

    return send
