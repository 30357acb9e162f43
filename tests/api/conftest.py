"""The server in this process that the tests of this room talk to."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio
from tests.api import rig as rigs


@pytest_asyncio.fixture
async def rig(tmp_path: Path) -> AsyncIterator[rigs.Rig]:
    made = rigs.Rig(tmp_path / "server")
    async with made.running():
        await made.prepare()
        yield made
