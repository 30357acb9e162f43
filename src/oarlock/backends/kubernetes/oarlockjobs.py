"""The OarlockJobs of the cluster, kept current by a watch. `api.customresources` gives them their meaning.

Without their definition in the cluster there are none. It is looked for again now and then, so that it may be
installed while the server runs.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection, Mapping
from typing import Any

import msgspec
import structlog

from oarlock.backends.kubernetes.apiserver import client, credentials, objects, watches
from oarlock.backends.kubernetes.site import Site
from oarlock.spec import errors, resources

PATH = f"{resources.API}/oarlockjobs"
CONNECTIONS = 16
LOOK_AGAIN_S = 30.0

_log = structlog.get_logger(__name__)


class OarlockJobs:
    """`api.customresources.face.Objects`. Belongs to one event loop. `namespaces` are those whose objects count."""

    def __init__(self, api: client.Client, namespaces: Collection[str], *, monotonic: Callable[[], float]) -> None:
        self._api = api
        self._namespaces = frozenset(namespaces)
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
        """Return the UID of a namespace that lives as long as its cluster; without the right to read it, that of the
        objects' own namespace; without that right, None.
        """
        for name in ("kube-system", namespace):
            with contextlib.suppress(errors.Forbidden, errors.NotFound):
                return (await self._api.get(f"/api/v1/namespaces/{name}", objects.Bare)).metadata.uid or None
        return None

    async def write_status(self, found: resources.OarlockJob, status: resources.JobStatus) -> None:
        meta = found.metadata
        path = f"{resources.API}/namespaces/{meta.namespace}/oarlockjobs/{meta.name}/status"
        patch: dict[str, Any] = {
            "metadata": {"resourceVersion": meta.resource_version},  # else a later object of the name could get it
            "status": msgspec.to_builtins(status),
        }
        await self._api.patch(path, patch, resources.OarlockJob)

    async def tell(self, found: resources.OarlockJob, happening: resources.Happening) -> None:
        meta = found.metadata
        body = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": f"{meta.name}.{meta.uid[:8]}.{happening.number:x}", "namespace": meta.namespace},
            "involvedObject": {
                "apiVersion": f"{resources.GROUP}/{resources.VERSION}",
                "kind": "OarlockJob",
                "namespace": meta.namespace,
                "name": meta.name,
                "uid": meta.uid,
            },
            "reason": happening.reason,
            "message": happening.message,
            "type": "Warning" if happening.warning else "Normal",
            "source": {"component": "oarlock"},
            "firstTimestamp": happening.at,
            "lastTimestamp": happening.at,
            "count": 1,
        }
        with contextlib.suppress(errors.Conflict):  # written before, and the answer was lost
            await self._api.create(f"/api/v1/namespaces/{meta.namespace}/events", body, objects.Bare)

    async def close(self) -> None:
        await self._api.close()

    def _keep(self, found: resources.OarlockJob) -> resources.OarlockJob | None:
        return found if found.metadata.namespace in self._namespaces else None

    def _tell(self, uid: str) -> None:
        for heard in self._heard:
            heard(uid)

    async def _defined(self) -> bool:
        """Return whether the cluster has the definition."""
        try:
            found = await self._api.get(resources.API, Resources)
        except errors.NotFound:
            return False
        except errors.OarlockError as error:
            _log.warning("kubernetes.definition_unknown", error=str(error))
            return False
        return any(one.name == "oarlockjobs" for one in found.resources)


class ResourceName(msgspec.Struct, frozen=True):
    name: str = ""


class Resources(msgspec.Struct, frozen=True):
    """The resources of one version of a group, as discovery tells them."""

    resources: tuple[ResourceName, ...] = ()


def connect(
    site: Site, environ: Mapping[str, str], *, clock: Callable[[], float], monotonic: Callable[[], float]
) -> OarlockJobs:
    """Return the objects of the cluster of the settings. Raises InvalidInput where there is no kubeconfig."""
    access = credentials.find(environ, context=site.context, clock=clock, monotonic=monotonic)
    return OarlockJobs(client.Client(access, connections=CONNECTIONS), site.namespaces, monotonic=monotonic)
