"""The image of the pod that this process runs in: the installation names it once, and it brings the agent into pods."""

from __future__ import annotations

from collections.abc import Mapping

from oarlock.backends.kubernetes.apiserver import client, objects
from oarlock.spec import errors

SERVER_CONTAINER = "server"
"""The server's container in its own pod, where others may stand beside it."""
FIX = "Name the image of this server: `image` in the table [kubernetes] of config.toml."


async def find(api: client.Client, environ: Mapping[str, str]) -> str:
    """Return the image. Raises InvalidInput outside a cluster, and the errors of the client."""
    if not api.access.inside:
        raise errors.InvalidInput(
            "The image that brings the agent into pods is not set.", path="kubernetes.image", hint=FIX
        )
    name = environ.get("HOSTNAME", "")
    found = await api.get(f"/api/v1/namespaces/{api.access.namespace}/pods/{name}", objects.Pod)
    containers = {one.name: one.image for one in found.spec.containers}
    return containers.get(SERVER_CONTAINER) or found.spec.containers[0].image
