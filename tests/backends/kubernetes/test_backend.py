"""The Kubernetes backend keeps the contract of every backend, against a real API server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import pytest
from tests.backends import contract
from tests.backends.kubernetes import conftest
from tests.backends.kubernetes.testcluster import apiserver, cluster, rights

from oarlock.backends import backends
from oarlock.backends.kubernetes import backend
from oarlock.backends.kubernetes.apiserver import client
from oarlock.backends.kubernetes.pods import labels
from oarlock.spec import attempts, holdings
from oarlock.spec.protocol import assignments

pytestmark = apiserver.needed


class KubernetesRig(contract.Rig):
    """A namespace with two nodes and a pretend kubelet."""

    def __init__(self, server: apiserver.ApiServer, pretended: cluster.Cluster) -> None:
        self.server = server
        self.cluster = pretended
        self.opened: list[backend.KubernetesBackend] = []
        self.backend = self.open()

    def open(self) -> backend.KubernetesBackend:
        api = client.Client(conftest.access(self.server, rights.SERVER))
        opened = backend.KubernetesBackend(api, self.cluster.site, clock=time.time, monotonic=time.monotonic)
        opened.open()
        self.opened.append(opened)
        return opened

    def launch_of(
        self,
        key: attempts.TaskKey,
        play: cluster.Play,
        *,
        node: str = "n1",
        amount: holdings.Resources = holdings.Resources(cpus_milli=500, memory_bytes=1 << 28),  # noqa: B008  (frozen)
        **container: object,
    ) -> backends.TaskLaunch:
        self.cluster.plays[labels.pod_name(key)] = play
        return backends.TaskLaunch(
            key=key,
            assignment=assignments.Assignment(key=str(key), server="http://10.0.0.1:7317", token="t", command="true"),
            holding=holdings.Holding(
                job=key.job,
                attempt=key.attempt,
                role=key.role,
                index=key.index,
                node=self.cluster.node(node),
                amount=amount,
            ),
            limit=amount,
            container=backends.Container(**container),
        )

    def sleeper(self, key: attempts.TaskKey) -> backends.TaskLaunch:
        return self.launch_of(key, cluster.Play())

    def exiter(self, key: attempts.TaskKey, code: int) -> backends.TaskLaunch:
        return self.launch_of(key, cluster.Play(code=code))

    def unlaunchable(self, key: attempts.TaskKey) -> backends.TaskLaunch:
        return self.launch_of(key, cluster.Play(), node="elsewhere")

    async def starts(self, key: attempts.TaskKey) -> int:
        name = labels.pod_name(key)
        await self.cluster.until(lambda: self.cluster.starts[name] > 0, f"{name} starts")
        return self.cluster.starts[name]

    async def pass_time(self) -> None:
        self.cluster.check()
        await asyncio.sleep(0.02)

    async def reopen(self) -> None:
        self.backend = self.open()

    async def close(self) -> None:
        for opened in self.opened:
            await opened.close()
        await self.cluster.close()


@pytest.fixture
async def rig(api_server: apiserver.ApiServer, api: client.Client, namespace: str) -> AsyncIterator[KubernetesRig]:
    pretended = cluster.Cluster(api, namespace)
    await pretended.add("n1")
    await pretended.add("n2", gpus=4, labels={"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB"})
    pretended.open()
    made = KubernetesRig(api_server, pretended)
    yield made
    await made.close()


class TestKubernetes(contract.Contract):
    """The fixture `rig` is this module's."""
