"""The devices that drivers offer on the nodes (ResourceSlices), kept current by a watch where profiles name claims.

The cluster's scheduler allocates them. Here only a change counts: a node that was closed to a claim of devices opens
(`bars`). Without the kind, or without the right to read it, such a node opens by time.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import NamedTuple

from oarlock.backends.kubernetes import steering
from oarlock.backends.kubernetes.apiserver import client, discovery, objects, watches
from oarlock.backends.kubernetes.site import Site
from oarlock.spec import errors

SLICES = "resourceslices"
PAUSE_MOST_S = 60.0
"""The longest pause of the watch, where the right to read slices is missing."""


class _Kept(NamedTuple):
    node: str  # empty: devices that several nodes reach
    identity: tuple[str, str]


class Slices:
    """Belongs to one event loop. `changed` is called after each change."""

    def __init__(
        self, api: client.Client, site: Site, *, monotonic: Callable[[], float], changed: Callable[[], object]
    ) -> None:
        self._api = api
        self._site = site
        self._monotonic = monotonic
        self._changed = changed
        self._kind = discovery.Kind(api, steering.DEVICES, SLICES, steering.DEVICE_VERSIONS, monotonic=monotonic)
        self._watch: watches.Watch[objects.ResourceSlice, _Kept] | None = None
        self._by_node: dict[str, frozenset[tuple[str, str]]] | None = None

    async def run(self) -> None:
        """Follow the slices until cancelled. Return at once where no profile names claims of devices."""
        if not self._site.device_templates:
            return
        version = None
        while version is None:
            with contextlib.suppress(errors.OarlockError):
                version = await self._kind.version()
            if version is None:
                await asyncio.sleep(discovery.DISCOVERED_S)
        self._watch = watches.Watch(
            self._api,
            f"/apis/{steering.DEVICES}/{version}/{SLICES}",
            objects.ResourceSlice,
            _keep,
            monotonic=self._monotonic,
            changed=self._forget,
            pause_most_s=PAUSE_MOST_S,
        )
        await self._watch.run()

    def of(self, name: str) -> object:
        """Return a value that changes with the devices that drivers offer on the node."""
        if self._by_node is None:
            found: dict[str, set[tuple[str, str]]] = {}
            for one in self._watch.items.values() if self._watch is not None else ():
                found.setdefault(one.node, set()).add(one.identity)
            self._by_node = {node: frozenset(identities) for node, identities in found.items()}
        return self._by_node.get(name), self._by_node.get("")

    def _forget(self) -> None:
        self._by_node = None
        self._changed()


def _keep(found: objects.ResourceSlice) -> _Kept:
    return _Kept(found.spec.node_name, (found.metadata.uid, found.metadata.resource_version))
