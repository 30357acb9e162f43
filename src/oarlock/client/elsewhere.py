"""Files that a job file sends to a place of its own, an object store or a directory.

This process reads them with the user's own rights, because the server has no access.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from oarlock.client import answers
from oarlock.data import durable, filekeys
from oarlock.data.transfers import schemes
from oarlock.spec import bodies, errors

T = TypeVar("T")

LIMIT_S = 20.0


def added(found: answers.FileList, under: str, *, same_machine: bool) -> answers.FileList:
    """Return the list with the files that lie elsewhere, where this process can list them."""
    items, parts = list(found.items), []
    for part in found.elsewhere:
        try:
            items += _listed(part, same_machine)
        except errors.NotFound:
            pass  # the job has stored no file there yet
        except errors.OarlockError as error:
            part = msgspec.structs.replace(part, failure=error.message)
        parts.append(part)
    kept = sorted((one for one in items if filekeys.is_under(one.path, under)), key=lambda one: one.path)
    return msgspec.structs.replace(
        found,
        items=tuple(kept),
        files=len(kept),
        bytes=sum(one.bytes for one in kept),
        elsewhere=tuple(parts),
    )


def _listed(part: answers.Elsewhere, same_machine: bool) -> list[bodies.JobFile]:
    from oarlock.data.transfers import places

    if schemes.of(part.url) == "file" and not same_machine:
        raise errors.Unavailable("it is a directory of the server's machine", hint="Download it on that machine.")
    return [
        bodies.JobFile(path=f"{part.path}/{filekeys.of(os.fsencode(item.name))}", bytes=item.size or 0, modified_at=0.0)
        for item in within(LIMIT_S, lambda: places.listing(part.url).items)
    ]


def within(limit_s: float, look: Callable[[], T]) -> T:
    """Return the result of `look`. Raises Unavailable after `limit_s`: libraries try for minutes to log in."""
    found: list[T] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            found.append(look())
        except BaseException as error:  # noqa: BLE001 - raised by the thread that waits
            failed.append(error)

    thread = threading.Thread(target=run, name="elsewhere", daemon=True)
    thread.start()
    thread.join(limit_s)
    if failed:
        raise failed[0]
    if not found:
        raise errors.Unavailable(f"it did not answer within {limit_s:g} s", hint="Check the credentials in this shell.")
    return found[0]


class Places:
    """The places of one download. Each is opened once, for all of its files and in any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._opened: dict[str, tuple[Any, str]] = {}

    def fetch(self, url: str, file: bodies.JobFile, place: Path, moved: Callable[[int], object]) -> int:
        """Download one of these files to `place`, as a whole or not at all; return its size."""
        from oarlock.data.transfers import places

        name = b"/".join(filekeys.parts(file.path)[1:])
        system, root = self._open(url)
        draft = durable.temporary(place)
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            with places.foreign(url):
                system.get_file(f"{root.rstrip('/')}/{os.fsdecode(name)}", str(draft))
            size = draft.stat().st_size
            draft.replace(place)
        except OSError as error:
            raise durable.unavailable(error, str(place), place.parent) from error
        finally:
            draft.unlink(missing_ok=True)
        moved(size)
        return size

    def _open(self, url: str) -> tuple[Any, str]:
        from oarlock.data.transfers import places

        with self._lock:
            if url not in self._opened:
                self._opened[url] = places.filesystem(url)
            return self._opened[url]
