"""The check that pods reach the server: a short pod on one node asks it for an answer, as agents do.

    server listens ──> pod of the server's image, bound by us ──> `agent.pyz --reach URL` ──> exit code and words

A pod that could not run says nothing about the address: no node is ready, its image is still being pulled. The server
begins its work then, and its log says so.
"""

from __future__ import annotations

import asyncio
from typing import Any

from oarlock.backends.kubernetes import client, labels, objects, podstates, rendering
from oarlock.backends.kubernetes.site import Site
from oarlock.spec import errors

PATIENCE_S = 60.0
"""The time for which the pod asks. Inside a cluster a Service leads to the server only once the server is ready."""
BOUND_S = 120.0
"""The longest time for the whole check, with the start of the pod."""
LOOK_S = 0.5
CONTAINER = "reach"
CA_VARIABLE = "OARLOCK_CA"
_ENDED = frozenset({"Succeeded", "Failed"})


async def check(api: client.Client, site: Site, node: str, url: str) -> str:
    """Return why a pod on this node does not reach the server at `url`; empty where it does.

    Raises an error of the client, or Unavailable, where the pod could not run.
    """
    manifest = pod(site, url)
    pods = f"/api/v1/namespaces/{site.namespace}/pods"
    path = f"{pods}/{manifest['metadata']['name']}"
    await api.delete(path, grace_s=0)  # of a server that ended in the middle of its check
    made = await api.create(pods, manifest, objects.Pod)
    try:
        await api.bind(site.namespace, made.metadata.name, made.metadata.uid, node)
        ended = await _ended(api, path, node)
    finally:
        await api.delete(path, uid=made.metadata.uid, grace_s=0)
    if ended.status.phase == "Succeeded":
        return ""
    status = next((one for one in ended.status.container_statuses if one.name == CONTAINER), None)
    terminated = status.state.terminated if status is not None else None
    if terminated is None:
        why = ended.status.message or ended.status.reason
        raise errors.Unavailable(f"the pod on {node} ended without an exit code: {why}", hint="Look at the node.")
    return terminated.message.strip()[-podstates.MAX_WORDS :] or f"the pod ended with {terminated.exit_code}"


def pod(site: Site, url: str) -> rendering.Manifest:
    """Return the pod. It requests nothing, so that it fits on any node."""
    asks = (*rendering.DELIVERED_AGENT, "--reach", url, f"{PATIENCE_S:g}")
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
            "name": f"oarlock-reach-{site.installation}",
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


async def _ended(api: client.Client, path: str, node: str) -> objects.Pod:
    """Return the pod once it has ended. Raises Unavailable after `BOUND_S`."""
    why = ""
    try:
        async with asyncio.timeout(BOUND_S):
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
