"""From a working directory to a snapshot that can be uploaded. The archive stays in the home's cache, so that a
directory that has not changed is not read again.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from oarlock.client import settings

if TYPE_CHECKING:
    from oarlock.data import snapshots

CACHE = ("cache", "snapshots")


def pack(directory: Path, told: settings.Settings) -> snapshots.Snapshot:
    """Raises TooLarge (with the ten largest files), InvalidInput (a link that leaves, an unreadable file)."""
    from oarlock.data import snapshots

    return snapshots.pack(directory, told.home.joinpath(*CACHE), limit_bytes=told.snapshot_limit_bytes, home=told.home)
