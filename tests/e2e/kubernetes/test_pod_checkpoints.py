"""Checkpoints of two pods that share no volume: the agents upload the shards, and the manifest follows last."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests import objectstores
from tests.backends.kubernetes.testcluster import apiserver, kubelet
from tests.e2e import separate
from tests.e2e.kubernetes import pods

pytestmark = apiserver.needed


@pytest.fixture
def shell(tmp_path_factory: pytest.TempPathFactory, api_server: apiserver.ApiServer) -> Iterator[pods.PodShell]:
    with pods.opened(tmp_path_factory.mktemp("user"), api_server, checkpoint_claim=False) as one:
        yield one


@pytest.mark.timeout(1800)
def test_checkpoints_of_two_pods_without_a_shared_volume(shell: pods.PodShell, bucket: objectstores.Bucket) -> None:
    """A pod is killed at each step of the upload. No torn copy is ever offered, and the best whole one stays."""

    def kill(worker: int) -> None:
        kubelet.kill(shell.uid("torn", "worker", worker))

    separate.kill_at_each_step(shell, bucket, "torn", kill)
