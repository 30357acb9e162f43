"""The local backend keeps the contract, with control groups and without."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.backends import contract, local_rig

from oarlock.backends.local import cgroups


@local_rig.grouped
class TestWithControlGroups(contract.Contract):
    @pytest.fixture
    async def rig(self, home: Path) -> AsyncIterator[contract.Rig]:
        rig = local_rig.LocalRig(home)
        yield rig
        await rig.close()


class TestWithoutControlGroups(contract.Contract):
    @pytest.fixture
    async def rig(self, home: Path) -> AsyncIterator[contract.Rig]:
        rig = local_rig.LocalRig(home, groups=cgroups.Cgroups())
        yield rig
        await rig.close()
