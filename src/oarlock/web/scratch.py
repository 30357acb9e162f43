"""A folder for the time of one request. Threads make and remove it: a tree of many files takes long to remove."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from tempfile import TemporaryDirectory


@contextlib.asynccontextmanager
async def folder(prefix: str) -> AsyncIterator[Path]:
    made = await asyncio.to_thread(TemporaryDirectory, prefix=prefix)
    try:
        yield Path(made.name)
    finally:
        await asyncio.to_thread(made.cleanup)
