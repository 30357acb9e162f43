"""The OarlockJobs that the server makes for jobs of the command line, the SDK and the pages.

The object of a job has one place: a namespace of the job's owner (`[kubernetes.namespaces]`), else the namespace of the
pods, under a name that follows from the job. So every server and every repetition finds the same object, and a job has
one. Two labels tell it from the objects of users, and the job's record names its UID.

Kubernetes allows an owner in the same namespace only. Where the object lies beside the pods it owns them: with the
object, the cluster's garbage collector removes them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import structlog

from oarlock.backends.kubernetes.apiserver import answers, client, objects
from oarlock.backends.kubernetes.pods import labels
from oarlock.backends.kubernetes.site import Site
from oarlock.spec import errors, jobs, resources

PLURAL = "oarlockjobs"
PLANNED_UID = "uid-planned"
"""Stands for the UID of an object that is not made yet."""
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
DEFINITION = f"{DEFINITIONS}/{PLURAL}.{resources.GROUP}"
DISCOVERED_S = 30.0
"""The answer of discovery is kept so long: the definition may be installed later."""
DEFINITION_S = 5.0
"""And its UID, for many objects that are made one after the other."""
FORBIDDEN_FIRST_S, FORBIDDEN_MOST_S = 2.0, 120.0
"""An object that the API server forbids is not tried again for so long at first, and at most."""

_log = structlog.get_logger(__name__)


class _Forbidden:
    """What is forbidden in one namespace since an object could be made there.

    A webhook may forbid the object of one job, and a missing right or a full quota forbids all. After two jobs in a row
    the namespace waits, half as long as the jobs that were refused: so another one is the next to try.
    """

    def __init__(self) -> None:
        self._error = errors.Forbidden("")
        self._pause_s = FORBIDDEN_FIRST_S / 2
        self._last = 0.0  # monotonic
        self._jobs: set[str] = set()  # that were refused

    def check(self, job: str, now: float) -> None:
        """Raise Forbidden where it is too early to ask again."""
        if job in self._jobs:
            pause_s = self._pause_s
        else:
            pause_s = self._pause_s / 2 if len(self._jobs) > 1 else 0.0
        if now < self._last + pause_s:
            raise errors.Forbidden(self._error.message, hint=self._error.hint)

    def add(self, job: str, error: errors.Forbidden, now: float) -> None:
        self._error, self._last = error, now
        self._pause_s = min(FORBIDDEN_MOST_S, self._pause_s * 2)
        self._jobs.add(job)


class Projection:
    """Belongs to one event loop."""

    def __init__(self, api: client.Client, site: Site, *, monotonic: Callable[[], float]) -> None:
        self._api = api
        self._site = site
        self._monotonic = monotonic
        self._clusters: dict[str, str] = {}  # the identity of the cluster, by the namespace that was asked for
        self._forbidden: dict[str, _Forbidden] = {}  # by namespace
        self._defined = False
        self._discovered_at: float | None = None
        self._definition: tuple[str | None, float] = "", 0.0  # its UID, and when it was read
        self._reading = asyncio.Lock()

    async def make(self, job: jobs.Job) -> resources.OarlockJob | None:
        """Make the job's object, or find it; None where the cluster has no definition, or the settings want none.

        Raises Conflict where an object of another has its name, and what the API server says. What it forbids is not
        asked for again at once.
        """
        if not self._site.project or not await self._is_defined():
            return None
        body = manifest(job, self._site)
        meta = body["metadata"]
        path = f"{resources.API}/namespaces/{meta['namespace']}/{PLURAL}"
        forbidden = self._forbidden.setdefault(meta["namespace"], _Forbidden())
        forbidden.check(job.id, self._monotonic())
        try:
            made = await self._api.create(path, body, resources.OarlockJob)
            self._forbidden.pop(meta["namespace"], None)
            return made
        except errors.Forbidden as error:
            forbidden.add(job.id, error, self._monotonic())
            raise
        except errors.Conflict as error:
            if answers.reason(error) != answers.ALREADY_EXISTS:
                raise
            found = await self._api.get(f"{path}/{meta['name']}", resources.OarlockJob)
            if any(found.metadata.labels.get(name) != value for name, value in meta["labels"].items()):
                raise errors.Conflict(
                    f"The name {meta['name']} in {meta['namespace']} belongs to another object.",
                    hint="Delete or rename it.",
                ) from error
        return found

    async def reference(self, found: resources.OarlockJob) -> resources.Resource:
        """Return the object as a job's record names it."""
        meta = found.metadata
        cluster, definition = await self._identity(meta.namespace), await self.definition()
        return resources.Resource(meta.namespace, meta.name, meta.uid, cluster, definition)

    async def definition(self) -> str | None:
        """Return the UID of the definition, as it was a short time ago, or None."""
        return await self._lately_defined() or None

    async def present_definition(self) -> str | None:
        """Return what `projecting.definition` returns now: objects that are made next have that definition."""
        async with self._reading:
            return await self._read_definition()

    async def _lately_defined(self) -> str | None:
        """Return the same as it was a short time ago. A definition that was not there may be there now."""
        async with self._reading:
            known, read_at = self._definition
            is_fresh = self._monotonic() < read_at + DEFINITION_S and known != ""
            return known if is_fresh else await self._read_definition()

    async def _read_definition(self) -> str | None:
        read_at = self._monotonic()
        found = await definition(self._api)
        self._definition = found, read_at
        return found

    async def owner(self, job: jobs.Job) -> resources.Resource | None:
        """Return the object that owns the job's pods, made where the job has none yet; None where none can own them.

        A job runs without it where the server may not make it. Raises Unavailable.
        """
        found = job.resource
        try:
            if found is None and (made := await self.make(job)) is not None:
                found = await self.reference(made)
            return found if found is not None and await self._may_own(found) else None
        except errors.Unavailable:
            raise
        except errors.OarlockError as error:
            _log.warning("kubernetes.job_not_projected", job=job.id, error=str(error))
            return None

    async def planned(self, job: jobs.Job) -> resources.Resource | None:
        """Return the object that `owner` would make, and find fit, for a job that is only planned."""
        if not self._site.project or not await self._is_defined():
            return None
        namespace, name = place(job, self._site)
        found = resources.Resource(namespace, name, PLANNED_UID, await self._identity(namespace))
        return found if await self._may_own(found) else None

    async def manifests(self, job: jobs.Job) -> list[dict[str, Any]]:
        """Return the object that `make` would make for a job that is only planned, if it would make one."""
        return [manifest(job, self._site)] if self._site.project and await self._is_defined() else []

    async def references(self, found: resources.Resource | None) -> list[labels.OwnerReference]:
        """Return the owner references of objects that belong to this job's object, as far as it may own them."""
        return labels.references(found) if found is not None and await self._may_own(found) else []

    async def _may_own(self, found: resources.Resource) -> bool:
        """Return whether it may own pods. An owner of another cluster, or of a definition that was deleted since, would
        be missing here, and the pods removed.
        """
        if found.namespace != self._site.namespace or found.cluster is None:
            return False
        if found.cluster != await self._identity(found.namespace):
            return False
        present = await self._lately_defined()
        return present != "" and (None in (present, found.definition) or present == found.definition)

    async def _identity(self, namespace: str) -> str | None:
        if namespace not in self._clusters and (found := await identity(self._api, namespace)) is not None:
            self._clusters[namespace] = found
        return self._clusters.get(namespace)

    async def _is_defined(self) -> bool:
        now = self._monotonic()
        if self._discovered_at is None or now - self._discovered_at >= DISCOVERED_S:
            self._defined = await defined(self._api)
            self._discovered_at = now
        return self._defined


def place(job: jobs.Job, site: Site) -> tuple[str, str]:
    """Return the namespace and the name of the object that is made for the job."""
    namespaces = sorted(name for name, tenant in site.namespaces.items() if tenant.user == job.owner)
    return namespaces[0] if namespaces else site.namespace, f"{job.name}-{job.id.removeprefix('j-')}".lower()


def manifest(job: jobs.Job, site: Site) -> dict[str, Any]:
    """Return the object. Its spec is the job file, but for the name."""
    namespace, name = place(job, site)
    spec = {field: value for field, value in msgspec.to_builtins(job.spec).items() if field != "name"}
    spec |= {"snapshot": job.snapshot} if job.snapshot is not None else {}
    if job.continues is not None:
        spec["continues"] = f"{job.continues.job}@{job.continues.step}"
    marks = {labels.MANAGED_BY: "oarlock", labels.INSTALLATION: site.installation, labels.JOB: job.id}
    return {
        "apiVersion": f"{resources.GROUP}/{resources.VERSION}",
        "kind": "OarlockJob",
        "metadata": {"name": name, "namespace": namespace, "labels": marks},
        "spec": spec,
    }


def projected(found: resources.OarlockJob, site: Site) -> str | None:
    """Return the id of the job whose object this is by its labels, which every user can write."""
    said = found.metadata.labels
    return said.get(labels.JOB) if said.get(labels.INSTALLATION) == site.installation else None


def is_made(found: resources.OarlockJob) -> bool:
    """Return whether a server made the object for a job, by its labels: of this installation or another one."""
    said = found.metadata.labels
    return said.get(labels.MANAGED_BY) == "oarlock" and labels.JOB in said


async def identity(api: client.Client, namespace: str) -> str | None:
    """Return the UID of a namespace that lives as long as its cluster; without the right to read it, that of the
    objects' own namespace; without that right, None.
    """
    for name in ("kube-system", namespace):
        try:
            return (await api.get(f"/api/v1/namespaces/{name}", objects.Bare)).metadata.uid or None
        except (errors.Forbidden, errors.NotFound):
            continue
    return None


async def defined(api: client.Client, plural: str = PLURAL) -> bool:
    """Return whether the cluster has the definition. One that is being deleted takes no objects, and does not count."""
    try:
        found = await api.get(resources.API, Resources)
    except errors.NotFound:
        return False
    return any(one.name == plural and "create" in one.verbs for one in found.resources)


async def definition(api: client.Client, plural: str = PLURAL) -> str | None:
    """Return the UID of the definition of this kind: empty where there is none, or where it is being deleted with all
    its objects; None without the right to read it.
    """
    try:
        found = (await api.get(f"{DEFINITIONS}/{plural}.{resources.GROUP}", objects.Bare)).metadata
    except errors.NotFound:
        return ""
    except errors.Forbidden:
        return None
    return found.uid if found.deletion_timestamp is None else ""


class ResourceName(msgspec.Struct, frozen=True):
    name: str = ""
    verbs: tuple[str, ...] = ()


class Resources(msgspec.Struct, frozen=True):
    """The resources of one version of a group, as discovery tells them."""

    resources: tuple[ResourceName, ...] = ()
