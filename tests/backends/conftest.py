"""Backends of processes on this machine, each with a home of its own. Their processes end with the test."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.backends import local_rig


@pytest.fixture
async def rig(home: Path) -> AsyncIterator[local_rig.LocalRig]:
    rig = local_rig.LocalRig(home)
    yield rig
    await rig.close()


@pytest.fixture
async def rigs() -> AsyncIterator[local_rig.Rigs]:
    """Rigs that the test makes."""
    rigs = local_rig.Rigs()
    yield rigs
    await rigs.close()
