"""The places where a job's checkpoints may lie, and the names that they have there (docs/agent-protocol.md section 4).

Processes write to a directory: below the server's own place, or below `checkpoint.to` where that is one. Where
`checkpoint.to` or the installation's own place is an object store, agents copy what was written to a prefix of it. All
are named by the job's id, so that no job reports a checkpoint that lies with another one.
"""

from __future__ import annotations

import urllib.parse
from pathlib import PurePosixPath

from oarlock.spec import errors, jobfile

STORED = "oarlock:checkpoints"
"""The installation's own place in an object store, as jobs and agents name it. The server signs the requests."""


def directory(spec: jobfile.JobSpec, job_id: str, own: str | None) -> str | None:
    """Return the directory that processes write to. `own` is the server's own place; None: the job decides itself."""
    to = spec.checkpoint.to
    place = own if to is None or elsewhere(to) else path(to)
    return f"{place.rstrip('/')}/{job_id}" if place is not None else None


def copies(spec: jobfile.JobSpec, job_id: str, stored: str | None) -> str | None:
    """Return the URL below which agents copy checkpoints; None where the job wants none.

    `stored` is the installation's own place in an object store, if it has one.
    """
    to = spec.checkpoint.to if spec.checkpoint.to is not None else stored
    return f"{to.rstrip('/')}/{job_id}" if to is not None and elsewhere(to) else None


def owner(found: str, own: str) -> str | None:
    """Return the id of the job whose folder of the server's own place has this checkpoint; None outside of it."""
    here, place = PurePosixPath(found), PurePosixPath(own)
    if not found.startswith("/") or ".." in here.parts or not here.is_relative_to(place):
        return None
    return next(iter(here.relative_to(place).parts), None)


def elsewhere(place: str) -> bool:
    """Return whether a place is not a directory of a machine."""
    return not place.startswith(("/", "file://"))


def path(place: str) -> str:
    """Return the path of a directory that is given as one or as a `file` URL."""
    return place if place.startswith("/") else urllib.parse.unquote(urllib.parse.urlsplit(place).path)


def name(attempt: int, round_number: int, step: int) -> str:
    """Return the name of a checkpoint in its place."""
    return f"attempt-{attempt}-round-{round_number}-step-{step}"


def short(found: str) -> str:
    """Return the last part of a checkpoint's path, which tells it apart within its job."""
    return found.rstrip("/").rpartition("/")[2] or found


def check(
    found: str, called: str, spec: jobfile.JobSpec, job_id: str, own: str | None, stored: str | None = None
) -> None:
    """Refuse a checkpoint that a task reports at `found` unless it lies in a place of its job under the name `called`.

    Raises InvalidInput, which says where it has to lie.
    """
    allowed = [place for place in (copies(spec, job_id, stored), directory(spec, job_id, own)) if place is not None]
    if found in {f"{place}/{called}" for place in allowed if elsewhere(place)}:
        return
    plain = {PurePosixPath(place) / called for place in allowed if not elsewhere(place)}
    if found.startswith("/") and PurePosixPath(found) in plain:
        return
    raise errors.InvalidInput(
        f"{found[:200]!r} is not a place of this job's checkpoints.",
        path="path",
        hint=f"This checkpoint has to be {' or '.join(f'{place}/{called}' for place in allowed)}.",
    )
