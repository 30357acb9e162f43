"""The OarlockPools of the cluster, kept current by a watch. `api.customresources.poolface` gives them their meaning."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import structlog

from oarlock.backends.kubernetes import projecting
from oarlock.backends.kubernetes.apiserver import client, credentials, watches
from oarlock.backends.kubernetes.site import Site
from oarlock.spec import errors, resources

PLURAL = "oarlockpools"
PATH = f"{resources.API}/{PLURAL}"
CONNECTIONS = 4
LOOK_AGAIN_S = 30.0

_log = structlog.get_logger(__name__)


class OarlockPools:
    """`api.customresources.poolface.Objects`. Belongs to one event loop."""

    def __init__(self, api: client.Client, installation: str, *, monotonic: Callable[[], float]) -> None:
        self._api = api
        self.installation = installation
        self._deleted: set[str] = set()
        self.changed = asyncio.Event()
        self._watch: watches.Watch[resources.OarlockPool, resources.OarlockPool] = watches.Watch(
            api,
            PATH,
            resources.OarlockPool,
            lambda found: found,
            monotonic=monotonic,
            changed=self.changed.set,
            missing=lambda uid, was, last: self._lose(was),
        )
        self.synced = self._watch.synced

    @property
    def items(self) -> Mapping[str, resources.OarlockPool]:
        """The objects by name."""
        return {found.metadata.name: found for found in self._watch.items.values()}

    async def run(self) -> None:
        while True:
            try:
                if await projecting.defined(self._api, PLURAL):
                    await self._watch.run()
            except errors.OarlockError as error:
                _log.warning("kubernetes.definition_unknown", error=str(error))
            await asyncio.sleep(LOOK_AGAIN_S)

    async def is_defined(self) -> bool:
        if await projecting.definition(self._api, PLURAL) == "":  # where it goes, discovery may tell so only later
            return False
        return await projecting.defined(self._api, PLURAL)

    async def renew(self) -> None:
        await self._watch.renew()

    def _lose(self, was: resources.OarlockPool) -> None:
        if was.installation() == self.installation:
            self._deleted.add(was.metadata.name)

    def take_deleted(self) -> set[str]:
        """Return the names of our objects that were deleted since the last call, and are not there again."""
        deleted, self._deleted = self._deleted, set()
        return deleted - self.items.keys()

    async def create(self, name: str, spec: dict[str, Any]) -> str:
        """Make the object of a pool; return its UID. Raises Conflict where it exists."""
        body = {
            "apiVersion": f"{resources.GROUP}/{resources.VERSION}",
            "kind": "OarlockPool",
            "metadata": {"name": name, "labels": {resources.INSTALLATION: self.installation}},
            "spec": spec,
        }
        made = await self._api.create(PATH, body, resources.OarlockPool)
        self._watch.put(made)
        return made.metadata.uid

    async def write_spec(self, found: resources.OarlockPool, patch: dict[str, Any]) -> None:
        """Change these fields of the spec. Raises Conflict where the object has changed since."""
        meta = {"resourceVersion": found.metadata.resource_version}
        await self._api.patch(f"{PATH}/{found.metadata.name}", {"metadata": meta, "spec": patch}, resources.OarlockPool)

    async def write_status(self, found: resources.OarlockPool, status: resources.PoolStatus) -> str:
        """Replace the status; return the object's new version.

        Raises Conflict where the object has changed since, NotFound where it is gone.
        """
        told = msgspec.to_builtins(status)
        before = found.status if isinstance(found.status, dict) else {}
        for field in ("held", "entitlement", "limit"):  # a merge would keep the amounts that are gone
            told[field] = {**dict.fromkeys(before.get(field) or {}), **told[field]}
        patch = {"metadata": {"resourceVersion": found.metadata.resource_version}, "status": told}
        made = await self._api.patch(f"{PATH}/{found.metadata.name}/status", patch, resources.OarlockPool)
        return made.metadata.resource_version

    async def remove(self, found: resources.OarlockPool) -> None:
        await self._api.delete(f"{PATH}/{found.metadata.name}", uid=found.metadata.uid)

    async def close(self) -> None:
        await self._api.close()


def connect(
    site: Site, environ: Mapping[str, str], *, clock: Callable[[], float], monotonic: Callable[[], float]
) -> OarlockPools:
    """Return the pools of the cluster of the settings. Raises InvalidInput where there is no kubeconfig."""
    access = credentials.find(environ, context=site.context, clock=clock, monotonic=monotonic)
    return OarlockPools(client.Client(access, connections=CONNECTIONS), site.installation, monotonic=monotonic)
