"""The server's home is no place to read data from or to store results in: tokens and other people's files lie there.

A path is judged by where it leads: symbolic links and `..` are resolved. It is judged when the job is submitted, and
again when data is fetched or stored, since a link may have changed. On the local backend this keeps jobs from a mistake
and users from a short way; a program that runs as the server's user can open any of its files itself.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit

from oarlock.spec import errors

OWN = ("checkpoints", "results", "files")
"""The server's own places below the home, to which its errands store what no user has named."""


def check_source(source: str, home: str) -> None:
    """Raise InvalidInput for a file or directory of this machine that lies in the home, or that holds it."""
    path = _local(source)
    if path is not None:
        found, kept = _real(path), _real(Path(home))
        if found.is_relative_to(kept) or kept.is_relative_to(found):
            raise _refused(source)


def check_destination(url: str, home: str, allowed: Sequence[str] = ()) -> None:
    """Raise InvalidInput for a directory in the home, unless it lies in one of the `allowed` directories there."""
    path = _local(url)
    if path is None:
        return
    found, kept = _real(path), _real(Path(home))
    if found.is_relative_to(kept) and not any(found.is_relative_to(kept / name) for name in allowed):
        raise _refused(url)


def check_files(paths: Iterable[str], home: str) -> None:
    """As `check_source`, for each file that was found at a local source: one may be a link into the home."""
    kept = _real(Path(home))
    for path in paths:
        if _real(Path(path)).is_relative_to(kept):
            raise _refused(path)


def _local(place: str) -> Path | None:
    """The path of a place on this machine: an absolute path, or a `file` URL however it is written."""
    if place.startswith("/"):
        return Path(place)
    parts = urlsplit(place)
    return Path(unquote(parts.path)) if parts.scheme == "file" else None


def _real(path: Path) -> Path:
    return Path(os.path.realpath(path))


def _refused(place: str) -> errors.InvalidInput:
    return errors.InvalidInput(
        f"{place} leads into the home of the server, where its tokens and everybody's files lie",
        hint="Name another directory: copy what the job needs there, or into the directory that is submitted.",
        path="source",
    )
