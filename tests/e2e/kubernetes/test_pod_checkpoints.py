"""Checkpoints of two pods that share no volume: the agents upload the shards, and the manifest follows last."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

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
@pytest.mark.parametrize("steps", [separate.UPLOAD[::2], separate.UPLOAD[1::2]], ids=["before writes", "after writes"])
def test_checkpoints_of_two_pods_without_a_shared_volume(
    shell: pods.PodShell, bucket: objectstores.Bucket, steps: Sequence[separate.Step]
) -> None:
    """A pod is killed at each step of the upload. No torn copy is ever offered, and the best whole one stays.

    The wait before the next try doubles each time, as after any failure of the platform. Two jobs of four steps wait
    for 30 s in all, where one of eight would wait for two minutes.
    """

    def kill(worker: int) -> None:
        kubelet.kill(shell.uid("torn", "worker", worker))

    separate.kill_at_each_step(shell, bucket, "torn", kill, steps)
