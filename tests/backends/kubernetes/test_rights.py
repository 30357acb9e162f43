"""The server has the rights that it uses, and no others. All tests of the backend run with these rights alone."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from tests.backends import contract
from tests.backends.kubernetes import conftest, test_noderequests
from tests.backends.kubernetes.test_backend import KubernetesRig, rig  # noqa: F401  (a fixture)
from tests.backends.kubernetes.testcluster import apiserver, cluster, customobjects, faults, recording, rights

from oarlock.backends.kubernetes import backend, noderequests, ownimage, remains
from oarlock.backends.kubernetes.apiserver import client, credentials, objects, transports
from oarlock.backends.kubernetes.pods import labels
from oarlock.spec import errors, jobfile
from oarlock.spec.reconciling import observations

pytestmark = apiserver.needed
key = contract.key


async def use_node_requests(provisioner: noderequests.NodeRequests, left: remains.Remains) -> None:
    request = test_noderequests.request()
    await provisioner.request("j-1", request)
    await provisioner.tell("j-1", request)
    assert await provisioner.answered()
    assert {one.plural for one in await left.there()} == {"secrets", "podtemplates", "provisioningrequests"}
    await provisioner.withdraw("j-1", request.number)


async def test_the_server_uses_each_of_its_rights(
    rig: KubernetesRig,  # noqa: F811  (the fixture)
    api: client.Client,
) -> None:
    """A verb that is not used any more must go."""
    used: recording.Used = set()
    note = recording.into(used, [rig.cluster.namespace])
    forgotten = set()

    def script(request: transports.Request, _: int) -> str:
        """Lose the first answer to each kind of creation, so that the server has to look."""
        if request.method != "POST" or request.path in forgotten:
            return ""
        forgotten.add(request.path)
        return "forget"

    kept = customobjects.CustomObjects(noderequests.PLURAL)
    recorded = client.Client(
        conftest.access(rig.server, rights.SERVER),
        around=lambda inner: note(faults.Faulty(kept.around(inner), script)),
    )
    opened = backend.KubernetesBackend(recorded, rig.cluster.site, clock=time.time, monotonic=time.monotonic)
    opened.open()
    rig.opened.append(opened)
    rig.backend = opened
    await rig.cluster.claim("data")
    data = (jobfile.Volume(claim="data", mount="/data"),)
    await opened.launch([rig.launch_of(key(), cluster.Play(), volumes=data), rig.launch_of(key(1), cluster.Play())])
    assert await rig.starts(key()) == 1
    await api.delete(f"{rig.cluster.path('pods')}/{labels.pod_name(key(1))}")  # another may have preempted it
    await contract.until(rig, lambda now: (rights.JOBS, "list", "events") in used, "its Events are asked for")
    await opened.kill([key()])
    await contract.until(
        rig, lambda now: all(one.state is observations.State.GONE for one in now.values()), "all is gone"
    )
    async with test_noderequests.definition(api):
        await use_node_requests(opened.provisioner(), opened.remains())
    await opened.discard(key().job, key().attempt)
    assert used == rights.of_backend()


async def test_a_server_in_a_pod_finds_the_image_of_its_own_pod(
    api_server: apiserver.ApiServer, api: client.Client, namespace: str, tmp_path: Path
) -> None:
    """The installation names the image once. A container that a webhook has put before the server's is another."""
    await rights.grant(api, namespace, of=rights.NAMESPACE)
    containers = [{"name": "proxy", "image": "mesh:1"}, {"name": "server", "image": cluster.SERVER_IMAGE}]
    pods = f"/api/v1/namespaces/{namespace}/pods"
    await api.create(pods, {"metadata": {"name": "oarlock-1"}, "spec": {"containers": containers}}, objects.Pod)
    (tmp_path / "token").write_text(rights.SERVER)
    (tmp_path / "ca.crt").write_text((api_server.folder / "certificates" / "apiserver.crt").read_text())
    (tmp_path / "namespace").write_text(namespace)
    service = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(api_server.port)}
    access = credentials.in_cluster(service, tmp_path, time.monotonic)
    used: recording.Used = set()
    async with client.Client(access, around=recording.into(used, [namespace], rights.NAMESPACE)) as inside:
        assert await ownimage.find(inside, {**service, "HOSTNAME": "oarlock-1"}) == cluster.SERVER_IMAGE
    assert used == rights.of_itself()


async def test_a_server_outside_a_cluster_names_its_image(api_server: apiserver.ApiServer) -> None:
    environ = {"KUBECONFIG": str(api_server.kubeconfig(rights.SERVER))}
    with pytest.raises(errors.InvalidInput, match="is not set"):
        await backend.connect(
            cluster.site.Site(installation="none"), environ, clock=time.time, wall=time.time, monotonic=time.monotonic
        )
