"""Requests for nodes to the cluster's autoscaler: a ProvisioningRequest for each gang, where the cluster has that kind.

    request ──> a PodTemplate for each role and class of nodes ──> one ProvisioningRequest over all ──> its conditions

The pods of the templates are the tasks of the gang: their amounts, and the class that the scheduler has chosen. An
autoscaler adds nodes for all of them or for none. It runs none of them: the gang is launched as any other once its
nodes are there.

Whether the cluster has the kind, discovery tells. Elsewhere the Event (`tell`) and the server's measurements carry the
same numbers.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, NoReturn, Protocol

from oarlock.backends.kubernetes import projecting
from oarlock.backends.kubernetes.apiserver import client, discovery, objects
from oarlock.backends.kubernetes.pods import labels, rendering
from oarlock.backends.kubernetes.site import Site
from oarlock.spec import errors, resources
from oarlock.spec.cluster import nodes, provisioning

GROUP = "autoscaling.x-k8s.io"
PLURAL = "provisioningrequests"
VERSIONS = ("v1", "v1beta1")
"""Those that we can write, the best first."""
NUMBER = f"{labels.PREFIX}/node-request"
MISSING = f"{labels.PREFIX}/missing-nodes"
"""The annotation of an Event with the numbers: `large=2,small=1`."""
MAX_MESSAGE = 300

Answer = provisioning.Answer
_WORDS = (
    ("Failed", Answer.FAILED),
    ("BookingExpired", Answer.EXPIRED),
    ("CapacityRevoked", Answer.EXPIRED),
    ("Provisioned", Answer.PROVISIONED),
    ("Accepted", Answer.ACCEPTED),
)
"""Types of conditions, the one that counts first."""


class _Status(objects.Part, frozen=True):
    conditions: tuple[objects.Condition, ...] = ()


class ProvisioningRequest(objects.Part, frozen=True):
    metadata: objects.Meta = objects.Meta()
    status: _Status = _Status()


class Lacking(Protocol):
    """Returns the claims that no new node of the class can mount; `judged`: as `Volumes.lacking` describes."""

    def __call__(self, node_class: str, *, judged: bool) -> tuple[str, ...]: ...


def _nothing(node_class: str, *, judged: bool) -> tuple[str, ...]:
    return ()


class NodeRequests:
    """`backends.provisioners.Provisioner` for a cluster. `clock` is the wall clock, for the times in Events."""

    def __init__(
        self,
        api: client.Client,
        site: Site,
        *,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        projection: projecting.Projection | None = None,
        lacking: Lacking = _nothing,
    ) -> None:
        self._lacking = lacking
        self._projection = projection or projecting.Projection(api, site, monotonic=monotonic)
        self._api = api
        self._site = site
        self._clock = clock
        self._monotonic = monotonic
        self._kind = discovery.Kind(api, GROUP, PLURAL, VERSIONS, monotonic=monotonic)

    async def follow(self) -> NoReturn:
        """Find out again and again whether the cluster takes requests. `lacking` depends on it in each replica."""
        while True:
            with contextlib.suppress(errors.OarlockError):
                await self._kind.version()
            await asyncio.sleep(discovery.DISCOVERED_S)

    def lacking(self, node_class: str) -> tuple[str, ...]:
        if node_class not in self._site.node_classes:
            return ()
        return self._lacking(node_class, judged=not self._kind.is_absent)

    async def answered(self) -> list[provisioning.Answered] | None:
        version = await self._kind.version()
        if version is None:
            return None
        chosen = {labels.MANAGED_BY: "oarlock", labels.INSTALLATION: self._site.installation}
        found = await self._api.list(
            self._requests(version), ProvisioningRequest, {"labelSelector": labels.selector(chosen)}
        )
        return [one for request in found if (one := answer(request)) is not None]

    async def request(
        self, job: str, request: provisioning.NodeRequest, resource: resources.Resource | None = None
    ) -> None:
        version = await self._kind.version()
        if version is None:
            return
        owners = await self._projection.references(resource)
        owned = {"ownerReferences": owners} if owners else {}
        templates = [template(self._site, job, request, index) for index in range(len(request.need.tasks))]
        for one in templates:
            one["metadata"] |= owned
            await self._create(f"{self._namespace}/podtemplates", one)
        body = {
            "apiVersion": f"{GROUP}/{version}",
            "kind": "ProvisioningRequest",
            "metadata": _metadata(self._site, job, request.number, name(job, request.number)) | owned,
            "spec": {
                "provisioningClassName": self._site.provisioning_class,
                "podSets": [
                    {"podTemplateRef": {"name": one["metadata"]["name"]}, "count": tasks.count}
                    for one, tasks in zip(templates, request.need.tasks, strict=True)
                ],
            },
        }
        await self._create(self._requests(version), body)

    async def withdraw(self, job: str, number: int) -> None:
        version = await self._kind.version()
        if version is None:
            return
        chosen = _labels(self._site, job, number)  # the request is the one that is listed, so that it goes last
        await self._api.delete_all(f"{self._namespace}/podtemplates", {"labelSelector": labels.selector(chosen)})
        await self._api.delete(f"{self._requests(version)}/{name(job, number)}")

    async def tell(
        self, job: str, request: provisioning.NodeRequest, resource: resources.Resource | None = None
    ) -> None:
        """Write an Event on the job's object: the numbers in words, and as an annotation."""
        namespace = resource.namespace if resource is not None else self._site.namespace
        numbers = ",".join(f"{node_class}={count}" for node_class, count in sorted(request.need.nodes.items()))
        at = datetime.fromtimestamp(self._clock(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        event_name = f"{name(job, request.number)}.{int(self._clock() * 1000):x}"
        body = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {
                **_metadata(self._site, job, request.number, event_name),
                "namespace": namespace,
                "annotations": {MISSING: numbers},
            },
            "involvedObject": involved(self._site, job, resource),
            "reason": "NodesMissing",
            "message": message(request.need),
            "type": "Normal",
            "source": {"component": "oarlock"},
            "firstTimestamp": at,
            "lastTimestamp": at,
            "count": 1,
        }
        await self._create(f"/api/v1/namespaces/{namespace}/events", body)

    @property
    def _namespace(self) -> str:
        return f"/api/v1/namespaces/{self._site.namespace}"

    def _requests(self, version: str) -> str:
        return f"/apis/{GROUP}/{version}/namespaces/{self._site.namespace}/{PLURAL}"

    async def _create(self, path: str, body: Any) -> None:
        """Create the object. One with its name is ours, made by a request whose answer was lost."""
        try:
            await self._api.create(path, body, objects.Bare)
        except errors.Conflict:
            return


def name(job: str, number: int) -> str:
    return f"{job}-nodes-{number}".lower()


def message(need: provisioning.Need) -> str:
    """Return the missing nodes as a sentence, and the next step."""
    parts = [f"{count} node{'' if count == 1 else 's'} of {one}" for one, count in sorted(need.nodes.items())]
    are, them = ("is", "it") if sum(need.nodes.values()) == 1 else ("are", "them")
    return f"{' and '.join(parts)} {are} missing for this job. It starts once the cluster has added {them}."


def involved(site: Site, job: str, resource: resources.Resource | None) -> dict[str, str]:
    """Return the reference to the job's object in the cluster; for a job without one, to its name there."""
    kind = {"apiVersion": f"{resources.GROUP}/{resources.VERSION}", "kind": "OarlockJob"}
    if resource is None:
        return kind | {"namespace": site.namespace, "name": job.lower()}
    return kind | {"namespace": resource.namespace, "name": resource.name, "uid": resource.uid}


def template(site: Site, job: str, request: provisioning.NodeRequest, index: int) -> rendering.Manifest:
    """Return the PodTemplate of the tasks of one role on nodes of one class."""
    tasks = request.need.tasks[index]
    chosen = {**site.nodes, **({site.class_label: tasks.node_class} if tasks.node_class else {})}
    wanted = rendering.requests(tasks.amount, site.gpu_resource)
    held = tasks.constraints or nodes.Constraints()
    wanted |= _extended(held.claims)
    chosen |= dict(held.labels)
    tolerated = [taint for taint in held.tolerates if taint not in site.tolerate]
    return {
        "apiVersion": "v1",
        "kind": "PodTemplate",
        "metadata": _metadata(site, job, request.number, f"{name(job, request.number)}-{index}"),
        "template": {
            "metadata": {"labels": _labels(site, job, request.number)},
            "spec": {
                "restartPolicy": "Never",
                **rendering.pod_settings(site),
                **rendering.on_nodes(site, tolerated, chosen),
                **_volumes(held.claims),
                **_device_claims(held.claims),
                "containers": [
                    {
                        "name": rendering.TASK,
                        "image": site.image,
                        "resources": {"requests": wanted, "limits": wanted, **_devices_used(held.claims)},
                        "securityContext": rendering.container_security(),
                    }
                ],
            },
        },
    }


def _volumes(claims: Sequence[str]) -> rendering.Manifest:
    """Return the claims of volumes, so that the autoscaler adds nodes where these are. Nothing mounts them."""
    named = [claim for claim in claims if nodes.is_volume(claim)]
    found = [
        {"name": f"claim-{place}", "persistentVolumeClaim": {"claimName": claim}} for place, claim in enumerate(named)
    ]
    return {"volumes": found} if found else {}


def _templates(claims: Sequence[str]) -> list[tuple[str, str]]:
    named = [claim.removeprefix(nodes.DEVICES) for claim in claims if claim.startswith(nodes.DEVICES)]
    return [(f"devices-{place}", template) for place, template in enumerate(named)]


def _device_claims(claims: Sequence[str]) -> rendering.Manifest:
    found = [{"name": name, "resourceClaimTemplateName": template} for name, template in _templates(claims)]
    return {"resourceClaims": found} if found else {}


def _extended(claims: Sequence[str]) -> dict[str, str]:
    """Return the amounts of extended resources of each task."""
    named = (
        claim.removeprefix(nodes.RESOURCES).partition("=") for claim in claims if claim.startswith(nodes.RESOURCES)
    )
    return {resource: amount for resource, _, amount in named}


def _devices_used(claims: Sequence[str]) -> rendering.Manifest:
    found = [{"name": name} for name, _ in _templates(claims)]
    return {"claims": found} if found else {}


def answer(request: ProvisioningRequest) -> provisioning.Answered | None:
    """Return the answer in the conditions of a request; None where its labels name no job."""
    said = request.metadata.labels
    number = said.get(NUMBER, "")
    if not said.get(labels.JOB) or not number.isdigit():
        return None
    conditions = {one.type: one for one in request.status.conditions}
    for kind, meaning in _WORDS:
        found = conditions.get(kind)
        if found is not None and found.status == "True":
            waits = conditions.get("Provisioned", found) if meaning is Answer.ACCEPTED else found
            words = (waits.message or waits.reason)[:MAX_MESSAGE] if meaning is not Answer.PROVISIONED else ""
            return provisioning.Answered(job=said[labels.JOB], number=int(number), answer=meaning, message=words)
    return provisioning.Answered(job=said[labels.JOB], number=int(number), answer=Answer.NONE)


def _labels(site: Site, job: str, number: int) -> dict[str, str]:
    return {
        labels.MANAGED_BY: "oarlock",
        labels.INSTALLATION: site.installation,
        labels.JOB: job,
        NUMBER: str(number),
    }


def _metadata(site: Site, job: str, number: int, named: str) -> rendering.Manifest:
    return {"name": named, "namespace": site.namespace, "labels": _labels(site, job, number)}
