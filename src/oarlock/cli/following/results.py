"""The place of a job's results: the one in its job file, else the server's own, which only its machine can read."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

from oarlock.spec import errors

if TYPE_CHECKING:
    from oarlock.client.synchronous import clients
    from oarlock.spec import jobs

KEPT = "results"


def place(client: clients.Client, job: jobs.Job) -> str | None:
    """Return a URL or a path; None if no stored results are known."""
    if job.spec.results:
        return job.spec.results
    try:
        server = client.server()
    except errors.OarlockError:
        return None
    folder = Path(server.home, KEPT, job.id)
    return str(folder) if server.local and server.home and folder.is_dir() else None


def folder(found: str | None) -> Path | None:
    """Return the directory of this machine that the place is, if it is one."""
    if found is None or not found.startswith(("/", "file://")):
        return None
    return Path(found if found.startswith("/") else unquote(found.removeprefix("file://")))
