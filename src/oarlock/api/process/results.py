"""Results and kept files in the server's own place: `results/JOB/` and `files/JOB/`, stored there by the tasks; deleted
with the job's record.
"""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path


class ResultDirectories:
    """`provided.Results`, and what retention asks. Each of `roots` has a folder for each job."""

    def __init__(self, *roots: Path) -> None:
        self._roots = roots

    async def forget(self, job_id: str) -> None:
        """Delete them. `job_id` is an id that the server has made. Again: nothing."""
        for root in self._roots:
            await asyncio.to_thread(shutil.rmtree, root / job_id, True)
