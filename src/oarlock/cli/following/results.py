"""Where a job's results lie: where its job file says, else in the server's own place, seen on its machine alone."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

from oarlock.spec import errors

if TYPE_CHECKING:
    from oarlock.client.synchronous import client as clients
    from oarlock.spec import jobs

KEPT = "results"


def place(client: clients.Client, job: jobs.Job) -> str | None:
    """A URL or path; None where nothing is known to be stored."""
    if job.spec.results:
        return job.spec.results
    try:
        server = client.server()
    except errors.OarlockError:
        return None
    folder = Path(server.home, KEPT, job.id)
    return str(folder) if server.local and server.home and folder.is_dir() else None


def folder(found: str | None) -> Path | None:
    """The directory of this machine that such a place is, if it is one."""
    if found is None or not found.startswith(("/", "file://")):
        return None
    return Path(found if found.startswith("/") else unquote(found.removeprefix("file://")))
