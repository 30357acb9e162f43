"""The check that pods reach the server: a short pod asks it for an answer, as agents do, on up to three nodes.

    server listens ──> pod of the server's image, bound by us ──> `agent.pyz --reach URL` ──> exit code and words

One pod that gets an answer suffices: the network of a single node may be broken. A pod that could not run says nothing
about the address: its image is still being pulled, it was evicted. The server begins then, and its log says so.

Several servers may check at the same time, and `oarlock doctor` beside them: each pod has a name of its own. A process
that is killed leaves its pod behind. Each server removes, a while after its start, the pods that it found there.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import structlog

from oarlock.backends.kubernetes.apiserver import answers, client, objects
from oarlock.backends.kubernetes.pods import labels, podstates, rendering
from oarlock.backends.kubernetes.site import Site
from oarlock.spec import errors

PATIENCE_S = 60.0
"""The time for which the pod asks. Inside a cluster a Service leads to the server only once the server is ready."""
AGAIN_S = 10.0
"""The same on a further node, once a pod on one node has waited in vain."""
BOUND_S = 120.0
"""The longest time for the whole check, with the start of the pods."""
LEFT_S = 900.0
"""No process waits so long for a pod that only tries something: one of before was left behind."""
REACH, PULL = "oarlock-reach-", "oarlock-pull-"
"""Begin the names of such pods: of this check, and of the images of `examining`."""
MOST_NODES = 3
LOOK_S = 0.5
INSIDE = 'Run the server inside the cluster: "Install" in docs/kubernetes.md says how.'
"""The next step where pods do not reach the server."""
CONTAINER = "reach"
CA_VARIABLE = "OARLOCK_CA"
NOT_REACHED = 1
"""The exit code with which the agent says that it got no answer, and why."""
_TRACEBACK = "Traceback (most recent call last)"
_ENDED = frozenset({"Succeeded", "Failed"})

_log = structlog.get_logger(__name__)


async def check(api: client.Client, site: Site, nodes: Sequence[str], url: str) -> str:
    """Return why pods on the first of these nodes do not reach the server at `url`; empty where one does.

    Raises an error of the client, or Unavailable, where none did and one could not run.
    """
    end = asyncio.get_running_loop().time() + BOUND_S
    why, unknown = "", None
    for node in nodes[:MOST_NODES]:
        try:
            said = await _check(api, site, node, url, min(AGAIN_S, PATIENCE_S) if why else PATIENCE_S, end)
        except errors.OarlockError as error:
            unknown = error
            continue
        if not said:
            return ""
        why = why or said
    if unknown is not None:
        raise unknown
    return why


async def _check(api: client.Client, site: Site, node: str, url: str, patience_s: float, end: float) -> str:
    async with made(api, site, node, pod(site, url, patience_s)) as path:
        ended = await _ended(api, path, node, end)
    if ended.status.phase == "Succeeded":
        return ""
    status = next((one for one in ended.status.container_statuses if one.name == CONTAINER), None)
    terminated = status.state.terminated if status is not None else None
    words = terminated.message.strip() if terminated is not None else ""
    if terminated is None or terminated.exit_code != NOT_REACHED or not words or _TRACEBACK in words:
        code = "no exit code" if terminated is None else f"exit code {terminated.exit_code}"
        why = ended.status.message or ended.status.reason or words
        raise errors.Unavailable(f"the pod on {node} could not ask ({code}): {why}", hint="Look at the node.")
    return words[-podstates.MAX_WORDS :]


@contextlib.asynccontextmanager
async def made(api: client.Client, site: Site, node: str, manifest: rendering.Manifest) -> AsyncIterator[str]:
    """Make a pod on the node, and yield its path; remove it in the end. Its name gets an ending that no other has."""
    pods = f"/api/v1/namespaces/{site.namespace}/pods"
    name = f"{manifest['metadata']['name']}-{secrets.token_hex(4)}"
    path = f"{pods}/{name}"
    try:
        created = await api.create(pods, manifest | {"metadata": manifest["metadata"] | {"name": name}}, objects.Pod)
    except errors.Conflict as error:
        if answers.reason(error) != answers.ALREADY_EXISTS:
            raise
        created = await api.get(path, objects.Pod)  # it was made before, and the answer was lost
    try:
        await api.bind(site.namespace, name, created.metadata.uid, node)
        yield path
    finally:
        await api.delete(path, uid=created.metadata.uid, grace_s=0)


async def sweep(api: client.Client, site: Site, sleep: Callable[[float], Awaitable[object]] = asyncio.sleep) -> None:
    """Remove the pods of checks that are there now, and still are when no process can be waiting for them any more."""
    pods = f"/api/v1/namespaces/{site.namespace}/pods"
    chosen = {"labelSelector": f"{labels.MANAGED_BY}=oarlock,!{labels.JOB}"}
    try:
        found = [one.metadata for one in await api.list(pods, objects.Bare, chosen, accept=client.METADATA)]
        left = [one for one in found if one.name.startswith((REACH, PULL)) and _may_be_ours(one, site)]
        if left:
            await sleep(LEFT_S)
        for one in left:
            await api.delete(f"{pods}/{one.name}", uid=one.uid, grace_s=0)
    except errors.OarlockError as error:
        _log.warning("kubernetes.checks_not_swept", error=str(error))


def _may_be_ours(found: objects.Meta, site: Site) -> bool:
    """Return whether this is no pod of another installation. Those that try an image do not say whose they are."""
    return found.labels.get(labels.INSTALLATION, site.installation) == site.installation


def pod(site: Site, url: str, patience_s: float) -> rendering.Manifest:
    """Return the pod, but for the end of its name. It requests nothing, so that it fits on any node."""
    asks = (*rendering.DELIVERED_AGENT, "--reach", url, f"{patience_s:g}")
    container: dict[str, Any] = {
        "name": CONTAINER,
        "image": site.image,
        "imagePullPolicy": site.pull_policy,
        "command": list(asks),
        "env": [{"name": CA_VARIABLE, "value": site.ca_pem}] if site.ca_pem else [],
        "resources": {"requests": {"cpu": "0", "memory": "0"}},
        "securityContext": rendering.container_security(),
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"{REACH}{site.installation}",
            "namespace": site.namespace,
            "labels": {labels.MANAGED_BY: "oarlock", labels.INSTALLATION: site.installation},
        },
        "spec": {
            "schedulerName": rendering.SCHEDULER,
            "restartPolicy": "Never",
            "activeDeadlineSeconds": int(BOUND_S),
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": 1,
            **rendering.pod_settings(site),
            "containers": [container],
        },
    }


async def _ended(api: client.Client, path: str, node: str, end: float) -> objects.Pod:
    """Return the pod once it has ended. Raises Unavailable at `end`, which the clock of the event loop tells."""
    why = ""
    try:
        async with asyncio.timeout_at(end):
            while True:
                found = await api.get(path, objects.Pod)
                if found.status.phase in _ENDED:
                    return found
                why = podstates.pull_failure(found) or why
                await asyncio.sleep(LOOK_S)
    except TimeoutError as error:
        raise errors.Unavailable(
            f"the pod on {node} did not end within {BOUND_S:.0f} s{f': {why}' if why else ''}",
            hint="Look at it: kubectl describe pod",
        ) from error
