"""The refusal of the server's home as a source of data or a destination of results.

The home holds tokens and other users' files. A path is checked after symbolic links and `..` are resolved: when the job
is submitted, and again when data is fetched or stored, because a link may have changed. On the local backend this only
prevents mistakes: a program that runs as the server's user can open any of the server's files itself.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit

from oarlock.spec import errors

OWN = ("checkpoints", "results", "files")
"""The folders of the home to which the helper command itself stores files."""


def check_source(source: str, home: str) -> None:
    """Raise InvalidInput for a file or directory of this machine that is in the home, or that contains it."""
    path = _local(source)
    if path is not None:
        found, kept = _real(path), _real(Path(home))
        if found.is_relative_to(kept) or kept.is_relative_to(found):
            raise _refused(source)


def check_destination(url: str, home: str, allowed: Sequence[str] = ()) -> None:
    """Raise InvalidInput for a directory in the home, unless it is in one of the `allowed` directories there."""
    path = _local(url)
    if path is None:
        return
    found, kept = _real(path), _real(Path(home))
    if found.is_relative_to(kept) and not any(found.is_relative_to(kept / name) for name in allowed):
        raise _refused(url)


def check_files(paths: Iterable[str], home: str) -> None:
    """Check each file found at a local source as `check_source` does: one may be a link into the home."""
    kept = _real(Path(home))
    for path in paths:
        if _real(Path(path)).is_relative_to(kept):
            raise _refused(path)


def _local(place: str) -> Path | None:
    """Return the path of a place on this machine (an absolute path or a `file` URL), else None."""
    if place.startswith("/"):
        return Path(place)
    parts = urlsplit(place)
    return Path(unquote(parts.path)) if parts.scheme == "file" else None


def _real(path: Path) -> Path:
    return Path(os.path.realpath(path))


def _refused(place: str) -> errors.InvalidInput:
    return errors.InvalidInput(
        f"{place} leads into the home of the server, which holds its tokens and all users' files",
        hint="Name another directory: copy the files that the job needs there, or into the submitted directory.",
        path="source",
    )
