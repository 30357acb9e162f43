"""Checkpoints of two pods without a shared claim: a server outside the cluster, and an object store on this machine."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests import objectstores
from tests.e2e import separate
from tests.e2e import shell as shells
from tests.node import conftest, test_outside
from tests.node.conftest import Site

pytestmark = pytest.mark.node


@pytest.fixture
def reached(site: Site) -> Iterator[objectstores.Bucket]:
    """A bucket of a store at an address that pods reach."""
    server = objectstores.Server(test_outside.address(site))
    yield server.bucket()
    server.stop()


@pytest.fixture
def claimless(site: Site, tmp_path: Path) -> Iterator[shells.Shell]:
    settings = next(block.text for block in conftest.page() if block.file == "config.toml")
    without = re.sub("checkpoint_claim.*", "", settings)
    assert without != settings
    with test_outside.opened(site, tmp_path / "outside", without) as one:
        yield one


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_checkpoints_go_to_an_object_store(site: Site, claimless: shells.Shell, reached: objectstores.Bucket) -> None:
    """A pod is removed by force at each step of the upload."""

    def kill(worker: int) -> None:
        job = claimless.job("torn")
        name = f"{job['id']}-{job['attempts'][-1]['number']}-worker-{worker}-1".lower()
        site.kubectl("delete", "pod", name, "--namespace", conftest.JOBS, "--grace-period", "0", "--force")

    separate.kill_at_each_step(claimless, reached, "torn", kill)
