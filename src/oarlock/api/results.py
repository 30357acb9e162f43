"""Results in the server's own place: `root/JOB/`, stored there by the tasks; deleted with the job's record."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path


class ResultDirectories:
    """`services.Results`, and what retention asks."""

    def __init__(self, root: Path) -> None:
        self._root = root

    async def forget(self, job_id: str) -> None:
        """`job_id` is an id that the server has made. Again: nothing."""
        await asyncio.to_thread(shutil.rmtree, self._root / job_id, True)
