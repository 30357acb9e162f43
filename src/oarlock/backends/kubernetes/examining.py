"""The examination of a cluster for `oarlock doctor`: rights, nodes, GPUs, pulls of images, and the way to the server.

It asks with the credentials of the kubeconfig, as a server that started here would. Images are pulled by short pods in
the namespace of the jobs, one for each image. They are removed at once.
"""

from __future__ import annotations

import asyncio
import collections
import hashlib
import types
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import NamedTuple

import msgspec

from oarlock.backends.kubernetes import clusterstate, ownimage, reaching
from oarlock.backends.kubernetes.apiserver import client, credentials, objects
from oarlock.backends.kubernetes.pods import labels, podstates, rendering
from oarlock.backends.kubernetes.site import Site
from oarlock.spec import errors
from oarlock.spec.cluster.nodes import Node


class Right(NamedTuple):
    """A right of the server in the namespace of the jobs (`within`) or in the whole cluster.

    With a `name`, it is the right to this one object.
    """

    within: bool
    verb: str
    resource: str
    name: str = ""


RIGHTS = (
    Right(True, "create", "pods"),
    Right(True, "get", "pods"),
    Right(True, "delete", "pods"),
    Right(True, "create", "pods/binding"),
    Right(True, "create", "pods/exec"),
    Right(True, "get", "pods/exec"),
    Right(True, "create", "secrets"),
    Right(True, "get", "secrets"),
    Right(True, "list", "secrets"),
    Right(True, "deletecollection", "secrets"),
    Right(True, "get", "persistentvolumeclaims"),
    Right(True, "list", "events"),
    Right(True, "list", "provisioningrequests.autoscaling.x-k8s.io"),
    Right(True, "create", "provisioningrequests.autoscaling.x-k8s.io"),
    Right(True, "delete", "provisioningrequests.autoscaling.x-k8s.io"),
    Right(True, "create", "podtemplates"),
    Right(True, "list", "podtemplates"),
    Right(True, "deletecollection", "podtemplates"),
    Right(False, "list", "nodes"),
    Right(False, "watch", "nodes"),
    Right(False, "list", "pods"),
    Right(False, "watch", "pods"),
    Right(False, "list", "persistentvolumes"),
    Right(False, "watch", "persistentvolumes"),
    Right(False, "list", "resourceslices.resource.k8s.io"),
    Right(False, "watch", "resourceslices.resource.k8s.io"),
    Right(False, "list", "oarlockjobs.oarlock.dev"),
    Right(False, "watch", "oarlockjobs.oarlock.dev"),
    *(Right(False, verb, "oarlockpools.oarlock.dev") for verb in ("list", "watch", "create", "patch", "delete")),
    Right(False, "patch", "oarlockpools/status.oarlock.dev"),
    Right(False, "get", "namespaces", "kube-system"),
    Right(False, "get", "customresourcedefinitions.apiextensions.k8s.io", "oarlockjobs.oarlock.dev"),
    Right(False, "get", "customresourcedefinitions.apiextensions.k8s.io", "oarlockpools.oarlock.dev"),
)
"""The rights that the server needs beside those of `OBJECTS`."""
OBJECTS = (
    Right(True, "create", "oarlockjobs.oarlock.dev"),
    Right(True, "get", "oarlockjobs.oarlock.dev"),
    Right(True, "patch", "oarlockjobs.oarlock.dev"),
    Right(True, "delete", "oarlockjobs.oarlock.dev"),
    Right(True, "patch", "oarlockjobs/status.oarlock.dev"),
    Right(True, "create", "events"),
)
"""The rights to the objects of jobs, in the namespace of the jobs and in each namespace of users."""

PULL_S = 300.0
"""The longest time that a pull may take."""
DEADLINE_S = 2 * int(PULL_S)
"""The cluster ends a pod after this time, in case the examination has died. A pull that only lasts is not cut short."""
LOOK_S = 0.5
_REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
_UNKNOWN = "ContainerStatusUnknown"  # the kubelet has lost sight of the container, or never had one
_NOT_YET = frozenset({"", "ContainerCreating", "PodInitializing"})


class Result(msgspec.Struct, frozen=True):
    """One finding. Without a `fix` there is nothing to repair."""

    check: str
    message: str
    fix: str = ""


class _Review(msgspec.Struct, frozen=True):
    class Status(msgspec.Struct, frozen=True):
        allowed: bool = False

    status: Status = Status()


async def of(
    site: Site,
    environ: Mapping[str, str],
    url: str,
    *,
    clock: Callable[[], float],
    monotonic: Callable[[], float],
) -> list[Result]:
    """Return the findings for the cluster of the kubeconfig. Its own pods are named apart from those of a server."""
    try:
        access = credentials.find(environ, context=site.context, clock=clock, monotonic=monotonic)
    except errors.OarlockError as error:
        return [Result("cluster", error.message, error.hint or "Set KUBECONFIG.")]
    async with client.Client(access) as api:
        named = msgspec.structs.replace(site, installation="doctor")
        return [result async for result in examine(api, named, url, environ)]


async def examine(
    api: client.Client,
    site: Site,
    url: str = "",
    environ: Mapping[str, str] = types.MappingProxyType({}),
) -> AsyncIterator[Result]:
    """Yield the findings. `url` is that of a server which runs; without one nobody can tell whether pods reach it.

    Where the site does not name the server's image, it is that of the pod that this process runs in.
    """
    try:
        version = await api.version()
        yield Result("cluster", f"{api.access.server} is Kubernetes {version.git_version}")
        missing = [right async for right in _missing(api, site)]
        yield _rights(site, missing)
        if missing:
            return  # every other check would fail for this reason
        nodes = [node for node in await _nodes(api, site) if node is not None]
        for result in _of_nodes(nodes, site):
            yield result
        usable = [node for node in nodes if node.open and node.admits(None)]
        if not usable:
            return
        if not site.image:
            try:
                site = msgspec.structs.replace(site, image=await ownimage.find(api, environ))
            except errors.OarlockError as error:
                yield Result("images", f"the server's image is not known: {error.message}", error.hint or ownimage.FIX)
        for image, node in _pulls(usable, site).items():
            yield await _pull(api, site, node, image)
        if url and site.image:
            yield await _reach(api, site, usable[0].name, url)
    except errors.OarlockError as error:
        yield Result("cluster", error.message, error.hint or "Look at the cluster: kubectl get nodes")


async def _missing(api: client.Client, site: Site) -> AsyncIterator[str]:
    asked_for = [(right, site.namespace) for right in (*RIGHTS, *OBJECTS)]
    asked_for += [(right, namespace) for namespace in sorted(site.namespaces) for right in OBJECTS]
    for (within, verb, resource, only), place in asked_for:
        kind, _, group = resource.partition(".")
        name, _, below = kind.partition("/")
        asked = {
            "verb": verb,
            "group": group,
            "resource": name,
            "subresource": below,
            "name": only,
            "namespace": place if within else "",
        }
        body = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": asked},
        }
        answer = await api.create(_REVIEWS, body, _Review)
        if not answer.status.allowed:
            where = f"in {place}" if within else "in the whole cluster"
            yield f"{verb} {resource} {only} {where}" if only else f"{verb} {resource} {where}"


def _rights(site: Site, missing: list[str]) -> Result:
    if not missing:
        return Result(
            "rights", f"all {len(RIGHTS) + len(OBJECTS)} rights are there, for jobs in the namespace {site.namespace}"
        )
    return Result(
        "rights",
        f"these credentials may not: {', '.join(missing)}",
        "Grant them: kubectl apply -f deploy/base/rights.yaml; in a namespace of users, bind the cluster role"
        " oarlock-objects there (docs/kubernetes.md gives the reason of each)",
    )


async def _nodes(api: client.Client, site: Site) -> list[Node | None]:
    return [clusterstate.node(found, site) for found in await api.list("/api/v1/nodes", objects.Node)]


def _of_nodes(nodes: list[Node], site: Site) -> Iterable[Result]:
    closed = [
        f"{node.name} ({', '.join(map(str, node.taints)) or node.reason})"
        for node in sorted(nodes, key=lambda node: node.name)
        if not node.open
    ]
    wanted = f" with the labels {site.nodes}" if site.nodes else ""
    if len(closed) == len(nodes):
        why = f": {', '.join(closed[:5])}" if closed else f": the cluster has none{wanted}"
        fix = "Repair a node, or let tasks tolerate its taint: `tolerate` in [kubernetes]."
        yield Result("nodes", f"no node takes tasks{why}", fix)
        return
    rest = f"; not {', '.join(closed[:5])}" if closed else ""
    yield Result("nodes", f"{len(nodes) - len(closed)} of {len(nodes)} nodes take tasks{rest}")
    counts = collections.Counter(device.type for node in nodes if node.open for device in node.devices)
    counted = ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()))
    yield Result("gpus", counted or f"no node has {site.gpu_resource}: jobs get no GPUs")


def _pulls(usable: list[Node], site: Site) -> dict[str, str]:
    """Return the images, each with a node where jobs can get it."""
    found = dict.fromkeys((site.image, *site.offered_on(gpus=False).values()), usable[0].name)
    with_gpus = [node.name for node in usable if node.capacity.gpus]
    for image in site.offered_on(gpus=True).values() if with_gpus else ():
        found.setdefault(image, with_gpus[0])
    return {image: node for image, node in found.items() if image}


async def _pull(api: client.Client, site: Site, node: str, image: str) -> Result:
    try:
        async with reaching.made(api, site, node, pod(site, image)) as path, asyncio.timeout(PULL_S):
            while True:
                found = await api.get(path, objects.Pod)
                if why := podstates.pull_failure(found):
                    break
                if _was_pulled(next(iter(found.status.container_statuses), None)):
                    return Result("images", f"{image} can be pulled on {node}")
                if found.status.phase == "Failed":
                    said = found.status.message or found.status.reason or "its pod failed without a reason"
                    fix = f"Look at the node: kubectl describe node {node}"
                    return Result("images", f"whether {image} can be pulled on {node} is not known: {said}", fix)
                await asyncio.sleep(LOOK_S)
    except TimeoutError:
        why = f"it is not there after {PULL_S:.0f} s"
    except errors.OarlockError as error:
        why = error.message
    fix = "Check its name and the registry. A private one needs `pull_secrets` in [kubernetes]."
    return Result("images", f"{image} cannot be pulled on {node}: {why}", fix)


def _was_pulled(status: objects.ContainerStatus | None) -> bool:
    """Return whether the container has started, or has failed for another reason than its image."""
    if status is None:
        return False
    waiting, ended = status.state.waiting, status.state.terminated
    if waiting is not None:
        return waiting.reason not in _NOT_YET | podstates.PULLS
    return status.state.running is not None or (ended is not None and ended.reason != _UNKNOWN)


def pod(site: Site, image: str) -> rendering.Manifest:
    """Return a pod that pulls the image. Its command need not be in the image: that fails after the pull."""
    named = hashlib.sha256(image.encode()).hexdigest()[:10]
    asked = reaching.pod(site, "", 0.0)
    container = {
        **asked["spec"]["containers"][0],
        "name": "pull",
        "image": image,
        "command": ["/bin/true"],
        "env": [],
    }
    return {
        **asked,
        "metadata": {
            "name": f"{reaching.PULL}{named}",
            "namespace": site.namespace,
            "labels": {labels.MANAGED_BY: "oarlock"},
        },
        "spec": {**asked["spec"], "activeDeadlineSeconds": DEADLINE_S, "containers": [container]},
    }


async def _reach(api: client.Client, site: Site, node: str, url: str) -> Result:
    fix = f"{reaching.INSIDE} Or name its URL: `server` in [kubernetes]."
    try:
        why = await reaching.check(api, site, [node], url)
    except errors.OarlockError as error:
        return Result("server", f"a pod on {node} could not try to reach {url}: {error.message}", error.hint or fix)
    if why:
        return Result("server", f"pods on {node} do not reach the server at {url}: {why}", fix)
    return Result("server", f"pods on {node} reach the server at {url}")
