"""The places at which a volume of a cluster can be mounted in a container, for job files and settings alike.

A place with which no pod can start is refused before the job is: the cluster would refuse each of its launches.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable

OWN = "/oarlock"
"""The folder in which containers have what Oarlock brings."""
SHARED_MEMORY = "/dev/shm"
TAKEN = (OWN, SHARED_MEMORY)


def fault(place: str, taken: Iterable[str] = TAKEN) -> str:
    """Return why nothing can be mounted there, the end of a sentence; empty where a volume can."""
    if not place.startswith("/"):
        return "is not absolute"
    if plain(place) != place.rstrip("/") or ":" in place:
        return "is not a plain path: it has no `.`, `..`, `//` or `:`"
    if plain(place) == "":
        return "is the root of the container"
    under = next((folder for folder in taken if is_below(place, folder)), None)
    return f"is below {under}, which is taken" if under is not None else ""


def plain(place: str) -> str:
    """Return the same place in its one shortest form; empty for the root."""
    return posixpath.normpath(f"/{place.lstrip('/')}").rstrip("/")


def is_below(place: str, folder: str) -> bool:
    """Return whether the place is the folder or below it."""
    return f"{place.rstrip('/')}/".startswith(f"{folder.rstrip('/')}/")
