"""Environments of dependencies on a claim of their own, in an installation without one for checkpoints."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.backends.kubernetes.testcluster import apiserver
from tests.e2e.kubernetes import pods, test_pods

pytestmark = apiserver.needed


class CachingShell(pods.PodShell):
    def __init__(self, folder: Path, api_server: apiserver.ApiServer) -> None:
        super().__init__(folder, api_server, checkpoint_claim=False)

    def configure(self, more: str = "") -> None:
        super().configure(f'environments_claim = "cache"\n{more}')

    async def _open(self) -> None:
        await super()._open()
        await self.cluster.claim("cache")


@pytest.fixture
def shell(
    tmp_path: Path,
    api_server: apiserver.ApiServer,
) -> Iterator[CachingShell]:
    one = CachingShell(tmp_path / "user", api_server)
    try:
        one.open()
        yield one
    finally:
        one.close()


def test_dependencies_are_installed_once_without_a_claim_for_checkpoints(shell: CachingShell) -> None:
    test_pods.installs_once(shell, "cache")
    assert not (shell.cluster.folder / "claims" / "checkpoints").exists()
    refused = shell.do("run", "--volume", "cache:/x", "--", "true", code=1)
    assert "stores checkpoints or environments of all jobs" in refused.stderr
