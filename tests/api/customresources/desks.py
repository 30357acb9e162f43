"""The namespaces of two users with a server that serves them: over a cluster in memory, and over a real API server."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import shutil
import subprocess
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import yaml
from tests.api import rig as rigs
from tests.api.customresources import memory
from tests.backends.kubernetes import conftest
from tests.backends.kubernetes.testcluster import apiserver, rights

from oarlock.api.customresources import clusterobjects, definitions, face
from oarlock.backends.kubernetes import oarlockjobs, projecting, site
from oarlock.backends.kubernetes.apiserver import client, objects
from oarlock.spec import errors, jobs, resources
from oarlock.store import stores

KUBECTL = str(apiserver.ASSETS / "kubectl") if (apiserver.ASSETS / "kubectl").exists() else shutil.which("kubectl")
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_numbers = itertools.count(1)
PATIENCE_S = 200.0
BUSY = (b"(Timeout)", b"(ServerTimeout)", b"request timed out", b"handshake timeout")
"""Words of `kubectl` about an API server that did not answer in time."""


class Desk:
    """The namespaces of ann and bob, and a server of Oarlock that serves them. The cluster is in memory."""

    def __init__(self, rig: rigs.Rig) -> None:
        number = next(_numbers)
        self.rig = rig
        self.cluster = memory.Cluster()
        self.ann, self.bob = f"ann-{number}", f"bob-{number}"
        self.leads = True
        self.launches = False
        self.tenants = {self.ann: site.Tenant("ann"), self.bob: site.Tenant("bob", "research")}
        self.pods = f"pods-{number}"  # the namespace of the pods, which is no user's

    @property
    def site(self) -> site.Site:
        return site.Site(installation="here", namespace=self.pods, namespaces=self.tenants)

    def client(self) -> client.Client:
        """Return the client of the server."""
        return self.cluster.client()

    @contextlib.asynccontextmanager
    async def serving(self, told: site.Site | None = None) -> AsyncIterator[clusterobjects.Objects]:
        """Serve the objects, as a server with these settings does between its start and its end."""
        told = told if told is not None else self.site
        watched = oarlockjobs.OarlockJobs(self.client(), told, monotonic=time.monotonic)
        serving = face.serving(
            self.rig.services,
            watched,
            told.namespaces,
            leads=lambda: self.leads,
            launches=lambda: self.launches,
            monotonic=time.monotonic,
        )
        async with serving:
            yield watched
        assert not [what for what, _ in self.rig.reports if what.startswith("resource")], self.rig.reports

    async def apply(self, namespace: str, name: str, /, **spec: Any) -> str:
        """Apply an OarlockJob as its user does; return its UID."""
        return self.cluster.apply(namespace, name, {"command": "python train.py", **spec})

    async def edit(self, namespace: str, name: str, **spec: Any) -> None:
        """Change these fields of the spec, as `kubectl edit` does."""
        self.cluster.apply(namespace, name, {**self.cluster.objects[namespace, name]["spec"], **spec})

    async def delete(self, namespace: str, name: str) -> None:
        self.cluster.delete(namespace, name)

    async def undefine(self) -> None:
        """Delete the definition, with all objects."""
        self.cluster.undefine()

    async def define(self) -> None:
        """Make the definition anew."""
        self.cluster.define()

    async def object(self, namespace: str, name: str) -> dict[str, Any]:
        return self.cluster.objects[namespace, name]

    async def until(self, namespace: str, name: str, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Return the status once it is so."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            status = (await self.object(namespace, name)).get("status", {})
            if holds(status):
                return status
            assert time.monotonic() < deadline, json.dumps(status, indent=2)
            await asyncio.sleep(0.05)

    async def job(self, name: str, holds: Callable[[jobs.Job], bool] = lambda job: True) -> jobs.Job:
        """Return the newest job of this name once there is one of which this holds."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            found = await self.jobs(name)
            if found and holds(found[0]):
                return found[0]
            assert time.monotonic() < deadline, found
            await asyncio.sleep(0.05)

    async def jobs(self, name: str) -> list[jobs.Job]:
        return await self.rig.store.read(lambda view: view.jobs(stores.JobFilter(name=name)))


class RealDesk(Desk):
    """The cluster is a real API server, its users have `kubectl`, and the server has the rights of `deploy/`."""

    def __init__(self, rig: rigs.Rig, server: apiserver.ApiServer, admin: client.Client) -> None:
        super().__init__(rig)
        self.server = server
        self.admin = admin
        self.users = {self.ann: "a-token", self.bob: "b-token"}

    def client(self) -> client.Client:
        return client.Client(conftest.access(self.server, rights.SERVER))

    async def kubectl(self, token: str, *words: str, fails: bool = False, text: str = "") -> str:
        """Return the output of `kubectl`, with its errors. Where the API server was too busy it is called again."""
        assert KUBECTL is not None
        config = self.server.kubeconfig(token)
        deadline = time.monotonic() + PATIENCE_S
        while True:
            process = await asyncio.create_subprocess_exec(
                *(KUBECTL, "--kubeconfig", str(config), *words),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
            said, _ = await process.communicate(text.encode())
            busy = process.returncode != 0 and any(one in said for one in BUSY)
            if not busy or time.monotonic() > deadline:
                break
        assert (process.returncode != 0) == fails, said.decode()
        return said.decode()

    async def apply(self, namespace: str, name: str, /, **spec: Any) -> str:
        manifest = {
            "apiVersion": f"{resources.GROUP}/{resources.VERSION}",
            "kind": "OarlockJob",
            "metadata": {"name": name, "namespace": namespace},
            "spec": {"command": "python train.py", **spec},
        }
        await self.kubectl(self.users[namespace], "apply", "--filename", "-", text=yaml.safe_dump(manifest))
        return str((await self.object(namespace, name))["metadata"]["uid"])

    async def undefine(self) -> None:
        definition = definitions.definition()
        path = f"{DEFINITIONS}/{definition['metadata']['name']}"
        await self.admin.delete(path)
        deadline = time.monotonic() + PATIENCE_S
        with contextlib.suppress(errors.NotFound):
            while await self.admin.get(path, objects.Bare):
                assert time.monotonic() < deadline, "the definition is gone"
                await asyncio.sleep(0.05)

    async def define(self) -> None:
        assert await define(self.server) == ""

    async def edit(self, namespace: str, name: str, **spec: Any) -> None:
        patch = json.dumps({"spec": spec})
        words = ("patch", "oarlockjob", name, "--type=merge", "--patch", patch)
        await self.kubectl(self.users[namespace], "--namespace", namespace, *words)

    async def delete(self, namespace: str, name: str) -> None:
        await self.kubectl(
            self.users[namespace], "--namespace", namespace, "delete", "--ignore-not-found", "oarlockjob", name
        )

    async def object(self, namespace: str, name: str) -> dict[str, Any]:
        path = f"{resources.API}/namespaces/{namespace}/oarlockjobs/{name}"
        found: dict[str, Any] = await self.admin.get(path, dict)
        return found


def condition(status: dict[str, Any], kind: str) -> dict[str, Any]:
    return next((one for one in status.get("conditions", ()) if one["type"] == kind), {})


def is_true(kind: str) -> Callable[[dict[str, Any]], bool]:
    return lambda status: condition(status, kind).get("status") == "True"


def is_false(kind: str) -> Callable[[dict[str, Any]], bool]:
    return lambda status: condition(status, kind).get("status") == "False"


async def define(server: apiserver.ApiServer) -> str:
    """Install the definition, and return once the API server has taken an object, or why it cannot."""
    first = {"metadata": {"name": "first"}, "spec": {"command": "x"}}
    first |= {"apiVersion": f"{resources.GROUP}/{resources.VERSION}", "kind": "OarlockJob"}
    path = f"{resources.API}/namespaces/default/oarlockjobs"
    async with client.Client(conftest.access(server), tries=1) as admin:
        await admin.create(DEFINITIONS, definitions.definition(), objects.Bare)
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                await admin.create(path, first, objects.Bare)
            except errors.Conflict:  # the answer to an earlier try was lost
                break
            except errors.NotFound:  # not served yet
                assert time.monotonic() < deadline
                await asyncio.sleep(0.1)
            except errors.Unavailable as error:
                if server.has_ended("kube-apiserver"):
                    return error.message
                if time.monotonic() > deadline:
                    raise
            else:
                break
        await discovered(admin, projecting.PLURAL)
    return ""


async def discovered(admin: client.Client, plural: str) -> None:
    """Return once discovery tells of the kind: the API server may take objects of it a moment earlier."""
    deadline = time.monotonic() + PATIENCE_S
    while not await projecting.defined(admin, plural):
        assert time.monotonic() < deadline, f"discovery tells of {plural}"
        await asyncio.sleep(0.05)


@contextlib.asynccontextmanager
async def real(rig: rigs.Rig, server: apiserver.ApiServer) -> AsyncIterator[RealDesk]:
    async with client.Client(conftest.access(server)) as admin:
        one = RealDesk(rig, server, admin)
        for namespace in (one.ann, one.bob, one.pods):
            await admin.create("/api/v1/namespaces", {"metadata": {"name": namespace}}, objects.Bare)
            await rights.grant(admin, namespace)
        await admit(admin, one.ann, "tenant-a")
        await admit(admin, one.bob, "tenant-b")
        yield one


async def admit(admin: client.Client, namespace: str, user: str) -> None:
    """Give the user the rights in this namespace that docs/kubernetes.md names."""
    rules = [{"apiGroups": [resources.GROUP], "resources": ["oarlockjobs"], "verbs": ["*"]}]
    path = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}"
    await admin.create(f"{path}/roles", {"metadata": {"name": "jobs"}, "rules": rules}, objects.Bare)
    binding = {
        "metadata": {"name": "jobs"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "jobs"},
        "subjects": [{"kind": "User", "name": user}],
    }
    await admin.create(f"{path}/rolebindings", binding, objects.Bare)
