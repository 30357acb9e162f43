"""The OarlockJobs of the cluster, kept current by a watch. `api.customresources` gives them their meaning.

Without their definition in the cluster there are none. It is looked for again now and then, so that it may be
installed while the server runs.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import structlog

from oarlock.backends.kubernetes import projecting
from oarlock.backends.kubernetes.apiserver import client, credentials, objects, watches
from oarlock.backends.kubernetes.site import Site
from oarlock.spec import errors, jobs, resources

PATH = f"{resources.API}/oarlockjobs"
CONNECTIONS = 16
LOOK_AGAIN_S = 30.0

_log = structlog.get_logger(__name__)


class OarlockJobs:
    """`api.customresources.clusterobjects.Objects`. Belongs to one event loop."""

    def __init__(self, api: client.Client, site: Site, *, monotonic: Callable[[], float]) -> None:
        self._api = api
        self._site = site
        self._projection = projecting.Projection(api, site, monotonic=monotonic)
        self._heard: list[Callable[[str], object]] = []
        self._watch: watches.Watch[resources.OarlockJob, resources.OarlockJob] = watches.Watch(
            api,
            PATH,
            resources.OarlockJob,
            self._keep,
            monotonic=monotonic,
            entered=lambda found: self._tell(found.metadata.uid),
            missing=lambda uid, was, last: self._tell(uid),
        )
        self.synced = self._watch.synced

    @property
    def items(self) -> Mapping[str, resources.OarlockJob]:
        return self._watch.items

    def listen(self, heard: Callable[[str], object]) -> None:
        self._heard.append(heard)

    async def run(self) -> None:
        while True:
            if await self._defined():
                await self._watch.run()
            await asyncio.sleep(LOOK_AGAIN_S)

    async def renew(self) -> None:
        await self._watch.renew()

    async def cluster(self, namespace: str) -> str | None:
        return await projecting.identity(self._api, namespace)

    async def present_definition(self) -> str | None:
        found = await self._projection.present_definition()
        return found or (None if await projecting.defined(self._api) else "")

    async def definition(self) -> str | None:
        return await self._projection.definition()

    async def uid(self, found: resources.Resource) -> str | None:
        path = f"{resources.API}/namespaces/{found.namespace}/oarlockjobs"
        try:
            return (await self._api.get(f"{path}/{found.name}", objects.Bare)).metadata.uid
        except errors.NotFound:
            return None
        except errors.Forbidden:  # in a namespace of users, or one that is being deleted: there it may only list
            named = await self._api.list(path, objects.Bare, {"fieldSelector": f"metadata.name={found.name}"})
            return next((one.metadata.uid for one in named), None)

    def follows(self, namespace: str) -> bool:
        return namespace in self._site.namespaces or namespace == self._site.namespace

    def place(self, job: jobs.Job) -> tuple[str, str]:
        return projecting.place(job, self._site)

    def projected(self, found: resources.OarlockJob) -> str | None:
        return projecting.projected(found, self._site)

    def is_made(self, found: resources.OarlockJob) -> bool:
        return projecting.is_made(found)

    async def project(self, job: jobs.Job) -> resources.Resource | None:
        found = await self._projection.make(job)
        if found is None:
            return None
        self._watch.put(found)  # else it would be missing until the watch tells of it
        return await self._projection.reference(found)

    async def remove(self, found: resources.OarlockJob) -> None:
        meta = found.metadata
        path = f"{resources.API}/namespaces/{meta.namespace}/oarlockjobs/{meta.name}"
        await self._api.delete(path, uid=meta.uid)

    async def write_spec(self, found: resources.OarlockJob, patch: dict[str, Any]) -> None:
        meta = found.metadata
        path = f"{resources.API}/namespaces/{meta.namespace}/oarlockjobs/{meta.name}"
        body = {"metadata": {"resourceVersion": meta.resource_version}, "spec": patch}
        await self._api.patch(path, body, resources.OarlockJob)

    async def write_status(self, found: resources.OarlockJob, status: resources.JobStatus) -> None:
        meta = found.metadata
        path = f"{resources.API}/namespaces/{meta.namespace}/oarlockjobs/{meta.name}/status"
        patch: dict[str, Any] = {
            "metadata": {"resourceVersion": meta.resource_version},  # else a later object of the name could get it
            "status": msgspec.to_builtins(status),
        }
        await self._api.patch(path, patch, resources.OarlockJob)

    async def tell(self, found: resources.OarlockJob, event: resources.Event) -> None:
        meta = found.metadata
        body = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": f"{meta.name}.{meta.uid[:8]}.{event.number:x}", "namespace": meta.namespace},
            "involvedObject": {
                "apiVersion": f"{resources.GROUP}/{resources.VERSION}",
                "kind": "OarlockJob",
                "namespace": meta.namespace,
                "name": meta.name,
                "uid": meta.uid,
            },
            "reason": event.reason,
            "message": event.message,
            "type": "Warning" if event.warning else "Normal",
            "source": {"component": "oarlock"},
            "firstTimestamp": event.at,
            "lastTimestamp": event.at,
            "count": 1,
        }
        with contextlib.suppress(errors.Conflict):  # written before, and the answer was lost
            await self._api.create(f"/api/v1/namespaces/{meta.namespace}/events", body, objects.Bare)

    async def close(self) -> None:
        await self._api.close()

    def _keep(self, found: resources.OarlockJob) -> resources.OarlockJob | None:
        """Return the object if it counts, whatever its labels say: they may get lost."""
        return found if self.follows(found.metadata.namespace) else None

    def _tell(self, uid: str) -> None:
        for heard in self._heard:
            heard(uid)

    async def _defined(self) -> bool:
        """Return whether the cluster has the definition."""
        try:
            return await projecting.defined(self._api)
        except errors.OarlockError as error:
            _log.warning("kubernetes.definition_unknown", error=str(error))
            return False


def connect(
    site: Site, environ: Mapping[str, str], *, clock: Callable[[], float], monotonic: Callable[[], float]
) -> OarlockJobs:
    """Return the objects of the cluster of the settings. Raises InvalidInput where there is no kubeconfig."""
    access = credentials.find(environ, context=site.context, clock=clock, monotonic=monotonic)
    return OarlockJobs(client.Client(access, connections=CONNECTIONS), site, monotonic=monotonic)
