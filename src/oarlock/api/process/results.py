"""Results and kept files in the server's home: tasks store them, and the removal of the job deletes them."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path


class ResultDirectories:
    """`provided.Results`, also for retention. Each of `roots` (`results/`, `files/`) has a folder for each job."""

    def __init__(self, *roots: Path) -> None:
        self._roots = roots

    async def forget(self, job_id: str) -> None:
        """Delete the files of a job. A second call does nothing. The server has made the id."""
        for root in self._roots:
            await asyncio.to_thread(shutil.rmtree, root / job_id, True)
