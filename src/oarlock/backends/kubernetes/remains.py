"""Secrets of gangs, and requests for nodes with their PodTemplates: `backends.remains.Remains` for a cluster.

They are listed by our labels, and by their metadata alone: Secrets hold the tokens of tasks. A Secret or PodTemplate is
deleted as a collection that has one name, because the server has no right to delete others one by one; the UID makes
sure that it is the object that was listed.
"""

from __future__ import annotations

from collections.abc import Callable

import structlog

from oarlock.backends import backends
from oarlock.backends.kubernetes import noderequests
from oarlock.backends.kubernetes.apiserver import client, discovery, objects
from oarlock.backends.kubernetes.pods import labels
from oarlock.backends.kubernetes.site import Site
from oarlock.backends.remains import Remain
from oarlock.spec import errors

_log = structlog.get_logger(__name__)

SECRETS, TEMPLATES = "secrets", "podtemplates"


class Remains:
    """Belongs to one event loop."""

    def __init__(self, api: client.Client, site: Site, *, monotonic: Callable[[], float]) -> None:
        self._api = api
        self._site = site
        self._denied: set[str] = set()  # the kinds of which the log has told that they cannot be listed
        self._requests = discovery.Kind(
            api, noderequests.GROUP, noderequests.PLURAL, noderequests.VERSIONS, monotonic=monotonic
        )

    async def there(self) -> list[Remain]:
        found = await self._listed(SECRETS, labels.ATTEMPT)
        found += await self._listed(TEMPLATES, noderequests.NUMBER)
        if await self._requests.version() is not None:
            found += await self._listed(noderequests.PLURAL, noderequests.NUMBER)
        return found

    async def remove(self, remain: Remain, still: backends.Still) -> None:
        backends.check(still)
        path = await self._path(remain.plural)
        if remain.plural == noderequests.PLURAL:
            await self._api.delete(f"{path}/{remain.name}", uid=remain.uid)
            return
        named = {"labelSelector": self._selector, "fieldSelector": f"metadata.name={remain.name}"}
        await self._api.delete_all(path, named, uid=remain.uid)

    async def _listed(self, plural: str, number: str) -> list[Remain]:
        """Return the objects of this kind; `number` is the label with the number of the attempt or request."""
        chosen = {"labelSelector": self._selector}
        try:
            listed = await self._api.list(await self._path(plural), objects.Bare, chosen, accept=client.METADATA)
        except errors.Forbidden as error:  # the rights of an older installation
            if plural not in self._denied:
                _log.warning("remains.cannot_be_listed", plural=plural, error=str(error))
            self._denied.add(plural)
            return []
        return [
            Remain(
                plural=plural,
                name=one.metadata.name,
                uid=one.metadata.uid,
                job=one.metadata.labels[labels.JOB],
                number=int(one.metadata.labels[number]),
                of_attempt=number == labels.ATTEMPT,
            )
            for one in listed
            if labels.JOB in one.metadata.labels and one.metadata.labels.get(number, "").isdecimal()
        ]

    @property
    def _selector(self) -> str:
        return labels.selector({labels.MANAGED_BY: "oarlock", labels.INSTALLATION: self._site.installation})

    async def _path(self, plural: str) -> str:
        group = "/api/v1"
        if plural == noderequests.PLURAL:
            group = f"/apis/{noderequests.GROUP}/{await self._requests.version()}"
        return f"{group}/namespaces/{self._site.namespace}/{plural}"
