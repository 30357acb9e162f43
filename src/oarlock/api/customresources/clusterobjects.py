"""The interface to the OarlockJobs of a cluster, as the face uses them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import msgspec

from oarlock.spec import jobs as nouns
from oarlock.spec import resources


class Tenant(Protocol):
    """The user as whom a namespace's jobs are submitted, and the pool of those that name none."""

    @property
    def user(self) -> str: ...

    @property
    def pool(self) -> str: ...


class Objects(Protocol):
    """The OarlockJobs of the cluster, kept current. `synced` is set once they are known."""

    @property
    def synced(self) -> asyncio.Event: ...

    @property
    def items(self) -> Mapping[str, resources.OarlockJob]:
        """Return the objects by UID."""
        ...

    def listen(self, heard: Callable[[str], object]) -> None:
        """Call `heard` with the UID of each object that has come, changed or gone."""
        ...

    async def run(self) -> None:
        """Follow the cluster until cancelled."""
        ...

    async def renew(self) -> None:
        """Return once `items` come from a list that began after this call."""
        ...

    async def cluster(self, namespace: str) -> str | None:
        """Return the identity of the cluster with this namespace; None where this server may not read it."""
        ...

    async def present_definition(self) -> str | None:
        """Return the UID of the definition of the objects, an empty text where it is deleted or about to be, with all
        its objects; None where the server may not read it.
        """
        ...

    async def definition(self) -> str | None:
        """Return the same UID as it was a short time ago, or None."""
        ...

    async def uid(self, found: resources.Resource) -> str | None:
        """Return the UID that the object at this place has now; None where there is none."""
        ...

    def follows(self, namespace: str) -> bool:
        """Return whether the objects of this namespace are among the items."""
        ...

    def place(self, job: nouns.Job) -> tuple[str, str]:
        """Return the namespace and the name of the object that is made for the job."""
        ...

    def projected(self, found: resources.OarlockJob) -> str | None:
        """Return the id of the job in the labels of an object of the server's; None for an object of a user."""
        ...

    def is_made(self, found: resources.OarlockJob) -> bool:
        """Return whether a server made the object for a job, by its labels: of this installation or another one."""
        ...

    async def project(self, job: nouns.Job) -> resources.Resource | None:
        """Make the job's object, or find it; None where there are no objects. Raises Forbidden, Conflict, ..."""
        ...

    async def remove(self, found: resources.OarlockJob) -> None:
        """Delete the object, unless it is another one now."""
        ...

    async def write_spec(self, found: resources.OarlockJob, patch: dict[str, Any]) -> None:
        """Change these fields of the spec. Raises Conflict where the object has changed since, NotFound where it is
        gone.
        """
        ...

    async def write_status(self, found: resources.OarlockJob, status: resources.JobStatus) -> None:
        """Replace the status. Raises Conflict where the object has changed since, NotFound where it is gone."""
        ...

    async def tell(self, found: resources.OarlockJob, event: resources.Event) -> None:
        """Write an Event of the object. A repeated call does nothing."""
        ...

    async def close(self) -> None: ...


class Owner(msgspec.Struct, frozen=True):
    """The owner of a job as the tenant of the job's object."""

    user: str
    pool: str
