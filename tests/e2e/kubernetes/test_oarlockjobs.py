"""Jobs by OarlockJobs, in pods: the real server with its settings. The objects are in memory, behind the API server."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from aiohttp import web
from tests.api.customresources import memory
from tests.backends.kubernetes.testcluster import apiserver, proxy
from tests.e2e.kubernetes import pods

from oarlock.backends.kubernetes.apiserver import transports
from oarlock.spec import resources

pytestmark = apiserver.needed

SPEC = {"framework": "plain", "image": "registry.example/plain:1", "grace": "1s"}


class WithObjects(proxy.Proxy):
    """The API server, with the OarlockJobs of a cluster in memory."""

    def __init__(self, upstream: str, objects: memory.Cluster) -> None:
        super().__init__(upstream)
        self._objects = objects

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        if not request.path.startswith(resources.API):
            return await super()._answer(request)
        if "watch" in request.query:
            answer = web.StreamResponse(headers={"Content-Type": "application/json"})
            await answer.prepare(request)
            async for line in self._objects.events(int(request.query["resourceVersion"])):
                await answer.write(line)
            return answer
        asked = transports.Request(method=request.method, path=request.path, data=await request.read() or None)
        told = self._objects.answer(asked)
        return web.Response(status=told.status, body=told.body, content_type="application/json")


class ObjectShell(pods.PodShell):
    """A user whose namespace `team` is the one of the OarlockJobs."""

    def __init__(self, folder: Path, api_server: apiserver.ApiServer) -> None:
        super().__init__(folder, api_server)
        self.objects = memory.Cluster()
        self.proxy = WithObjects(api_server.url, self.objects)

    async def _open(self) -> None:
        await super()._open()
        await self.proxy.open()
        config = Path(self.env["KUBECONFIG"])
        mine = self.home.parent / "kubeconfig"
        text = config.read_text().replace(self.api_server.url, self.proxy.url)
        mine.write_text("\n".join(line for line in text.splitlines() if "certificate-authority" not in line))
        self.env["KUBECONFIG"] = str(mine)

    async def _close(self) -> None:
        self.objects.drop()  # or the answers of watches never end
        await self.proxy.close()
        await super()._close()

    def configure(self, more: str = "") -> None:
        super().configure(f'{more}\n[kubernetes.namespaces.team]\nuser = "ann"\n')

    def apply(self, name: str, **spec: object) -> str:
        async def apply() -> str:
            return self.objects.apply("team", name, {**SPEC, **spec})

        return self.on_cluster(apply())

    def delete(self, name: str) -> None:
        async def delete() -> None:
            self.objects.delete("team", name)

        self.on_cluster(delete())

    def phase(self, name: str) -> str:
        async def phase() -> str:
            await asyncio.sleep(0)
            return str(self.objects.objects["team", name].get("status", {}).get("phase", ""))

        return self.on_cluster(phase())


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory, api_server: apiserver.ApiServer) -> Iterator[ObjectShell]:
    one = ObjectShell(tmp_path_factory.mktemp("objects"), api_server)
    try:
        one.open()
        one.do("users", "add", "ann")
        yield one
    finally:
        one.close()


def test_an_applied_job_runs_in_pods_and_tells_its_end(shell: ObjectShell) -> None:
    shell.apply("hello", command="echo hello from a pod")
    shell.until(lambda: shell.phase("hello") == "COMPLETED", "the job has ended")
    job = shell.job("hello")
    assert (job["owner"], job["resource"]["name"]) == ("ann", "hello")
    assert "hello from a pod" in shell.do("logs", "hello").stdout


def test_an_object_that_goes_while_no_server_runs_cancels_its_job(shell: ObjectShell) -> None:
    for name in ("goes", "stays"):
        shell.apply(name, command="sleep 600")
    for name in ("goes", "stays"):
        shell.until(lambda name=name: shell.phase(name) == "PROCESSING", f"{name} runs")
    os.kill(shell.server_pid(), signal.SIGKILL)
    shell.delete("goes")
    shell.do("up", "--backend", "kubernetes", "--detach")
    shell.wait_phase("goes", "CANCELED")
    assert shell.job("stays")["phase"] == "PROCESSING"
    shell.delete("stays")
    shell.wait_phase("stays", "CANCELED")
    shell.until(lambda: not shell.pods(), "all pods are gone")
