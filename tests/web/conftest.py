"""The server in this process, with its pages."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio
from tests.web import browsers


@pytest_asyncio.fixture
async def rig(tmp_path: Path) -> AsyncIterator[browsers.WebRig]:
    made = browsers.WebRig(tmp_path / "server")
    async with made.running():
        await made.prepare()
        yield made
