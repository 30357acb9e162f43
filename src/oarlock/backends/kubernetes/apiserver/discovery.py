"""The version of a kind that the cluster has. Newer features are found so, and never required."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from oarlock.backends.kubernetes.apiserver import client, objects
from oarlock.spec import errors

DISCOVERED_S = 60.0
"""The answer is kept so long: the kind may be installed later."""


class _Version(objects.Part, frozen=True):
    version: str = ""


class _Group(objects.Part, frozen=True):
    versions: tuple[_Version, ...] = ()


class _Resource(objects.Part, frozen=True):
    name: str = ""


class _Resources(objects.Part, frozen=True):
    resources: tuple[_Resource, ...] = ()


class Kind:
    """A kind of this group and plural, in the first of these versions that the cluster has."""

    def __init__(
        self, api: client.Client, group: str, plural: str, versions: Sequence[str], *, monotonic: Callable[[], float]
    ) -> None:
        self._api, self._group, self._plural, self._versions = api, group, plural, versions
        self._monotonic = monotonic
        self._version: str | None = None
        self._discovered_at: float | None = None

    @property
    def is_absent(self) -> bool:
        """Whether the cluster had none of them when it was asked last. Any thread may ask."""
        return self._discovered_at is not None and self._version is None

    async def version(self) -> str | None:
        """Return the version, None where the cluster has none of them."""
        now = self._monotonic()
        if self._discovered_at is None or now - self._discovered_at >= DISCOVERED_S:
            self._version = await self._discover()
            self._discovered_at = now
        return self._version

    async def _discover(self) -> str | None:
        try:
            group = await self._api.get(f"/apis/{self._group}", _Group)
            there = {one.version for one in group.versions}
            for version in self._versions:
                if version in there:
                    found = await self._api.get(f"/apis/{self._group}/{version}", _Resources)
                    if any(one.name == self._plural for one in found.resources):
                        return version
        except errors.NotFound:
            pass
        return None
