"""The secrets that a job names, as its owner may use them now: values for its agents, references for its pods."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from oarlock.api.security import secretfiles
from oarlock.spec import errors, jobs
from oarlock.spec.access import kubernetessecrets, users
from oarlock.store import stores

if TYPE_CHECKING:
    from oarlock.api.services import provided

B = TypeVar("B")
Read = Callable[[str], secretfiles.Found]


async def reader(store: stores.Store, secrets: provided.Secrets, job: jobs.Job) -> Read:
    """Return a function that reads a secret of the job by its name. It raises NotFound."""
    owner = await store.read(lambda view: view.user(job.owner))
    admin = owner is not None and owner.right is users.Right.ADMIN
    return lambda name: secrets.read(name, job.owner, admin=admin)


async def references(
    store: stores.Store, secrets: provided.Secrets, job: jobs.Job
) -> tuple[kubernetessecrets.Named, ...]:
    """Return the job's secrets that refer to Kubernetes Secrets. One that cannot be read now is left out: its agent
    asks until it can.
    """
    if not job.spec.secrets:
        return ()
    read = await reader(store, secrets, job)
    return await asyncio.to_thread(_references, job, read)


def covering(secrets: secretfiles.SecretFiles, cover: Callable[[list[str]], B]) -> Callable[[jobs.Job], B]:
    """Return a function that makes a blanker of a job's secrets. `cover` makes one of values."""
    return lambda job: cover(values(secrets, job))


def values(secrets: secretfiles.SecretFiles, job: jobs.Job) -> list[str]:
    """Return every value that the job may have got from the server, to blank it in the job's logs. A value that is gone
    can neither be blanked nor be read.
    """
    found = []
    for secret in job.spec.secrets:
        with contextlib.suppress(errors.OarlockError):
            found += secrets.values(secret.name, job.owner)
    return found


def _references(job: jobs.Job, read: Read) -> tuple[kubernetessecrets.Named, ...]:
    found = []
    for secret in job.spec.secrets:
        with contextlib.suppress(errors.NotFound):
            told = read(secret.name)
            if isinstance(told, kubernetessecrets.Reference):
                found.append(kubernetessecrets.Named(secret.name, told))
    return tuple(found)
