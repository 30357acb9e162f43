"""Mode `steer`: the stock scheduler binds the pods of a gang, each to the node of the plan by a node affinity.

    mode `bind`, all claims are on every node    made with `schedulerName: oarlock`, and bound by us
    else, or the pods claim devices              made for the stock scheduler, which also chooses volumes and devices

A volume of a class with `WaitForFirstConsumer` is made once a scheduler has placed its first pod: bound by us, that pod
would wait for ever. A volume that some nodes alone can mount (a local disk, a disk of one zone) has been made for one
node: bound by us to another one, its pod would wait, too, and the stock scheduler refuses at once. A claim that many
nodes may write to (`ReadWriteMany`) counts as being on every node.

A claim of devices (`resource.k8s.io`) belongs to one pod. The cluster makes it from a template that a profile names,
and its scheduler alone allocates the devices. A cluster without the kind would leave the claim out of the pod without a
word, and the task would start without its devices: such a launch fails.

A gang that is not bound as a whole soon enough fails, with the scheduler's own reason, and its pods are removed. An
annotation of each pod names its scheduler, for a server that finds the pods of another.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Collection, Sequence

import structlog

from oarlock.backends import backends
from oarlock.backends.kubernetes.apiserver import client, discovery, objects
from oarlock.backends.kubernetes.pods import labels, ownpods, podstates, rendering
from oarlock.backends.kubernetes.site import Site
from oarlock.spec import attempts, errors

BOUND_S = 25.0
"""The time from the beginning of a launch until its last pod is bound."""
REASON_S = 5.0
"""The part of the time of a launch that is left to ask for the scheduler's reason."""
LOOK_S = 0.1
KNOWN_S = 60.0
"""A claim that was on every node is not asked for again so soon."""
EVERYWHERE = "ReadWriteMany"
DEVICES, TEMPLATES = "resource.k8s.io", "resourceclaimtemplates"
DEVICE_VERSIONS = ("v1", "v1beta2", "v1beta1", "v1alpha3")
"""In older ones pods name the template in another field."""

_OF_CLAIM = ("unbound immediate", "not found", "being deleted", "lost")
"""Words about a claim of a volume that no node can mount now."""

_log = structlog.get_logger(__name__)


class Unbound(errors.Unavailable):
    """The scheduler has said why it does not bind the pods of the tasks `keys` on their nodes."""

    def __init__(self, message: str, keys: Collection[attempts.TaskKey]) -> None:
        super().__init__(message, hint="It is tried again.")
        self.keys = keys
        self._said = said = message.lower()
        # "volume node affinity conflict", "no available volume zone", "exceed max volume count"
        self.by_volume = "volume" in said and not any(words in said for words in _OF_CLAIM)
        self.by_device = "resourceclaim" in said or "allocate all claims" in said

    def lacks(self, resource: str) -> bool:
        """Return whether the scheduler found too little of an extended resource."""
        return re.search(rf"insufficient {re.escape(resource.lower())}(?![-\w]|[./]\w)", self._said) is not None


class Claims:
    """The claims that pods mount. Belongs to one event loop."""

    def __init__(self, api: client.Client, site: Site, *, monotonic: Callable[[], float]) -> None:
        self._api = api
        self._site = site
        self._monotonic = monotonic
        self._everywhere: dict[str, float] = {}  # until when a claim counts as being on every node

    async def local(self, launches: Sequence[backends.TaskLaunch]) -> list[str]:
        """Return the claims of these tasks that may not be on every node.

        Raises Unavailable for one that is not there.
        """
        named = {volume.claim for one in launches for volume in rendering.volumes(one, self._site)}
        if launches and self._site.checkpoint_claim:
            named.add(self._site.checkpoint_claim)
        named |= {claim for one in launches if (claim := rendering.environments_claim(one, self._site))}
        return [name for name in sorted(named) if not await self._is_everywhere(name)]

    async def _is_everywhere(self, name: str) -> bool:
        now = self._monotonic()
        if self._everywhere.get(name, 0.0) > now:
            return True
        namespace = self._site.namespace
        try:
            claim = await self._api.get(
                f"/api/v1/namespaces/{namespace}/persistentvolumeclaims/{name}", objects.VolumeClaim
            )
        except errors.NotFound as error:
            raise errors.Unavailable(
                f"there is no claim {name} in the namespace {namespace}", hint="Make the claim, or name another one."
            ) from error
        except errors.Forbidden as error:  # the rights of an older installation
            _log.warning("kubernetes.claim_unknown", claim=name, why=str(error))
            return True
        everywhere = claim.status.phase == "Bound" and EVERYWHERE in claim.spec.access_modes
        if everywhere:
            self._everywhere[name] = now + KNOWN_S
        return everywhere


class DeviceClaims:
    """The claims of devices that profiles give to pods. Belongs to one event loop."""

    def __init__(self, api: client.Client, site: Site, *, monotonic: Callable[[], float]) -> None:
        self._site = site
        self._kind = discovery.Kind(api, DEVICES, TEMPLATES, DEVICE_VERSIONS, monotonic=monotonic)

    def any(self, launches: Sequence[backends.TaskLaunch]) -> bool:
        """Return whether a pod of these tasks claims devices."""
        return any(rendering.device_claims(one, self._site) for one in launches)

    async def require(self) -> None:
        """Raise Unavailable where the cluster cannot allocate devices to claims."""
        if await self._kind.version() is None:
            raise errors.Unavailable(
                f"a profile gives the pods device_claims, but the cluster has no {TEMPLATES}.{DEVICES}"
                f" ({', '.join(DEVICE_VERSIONS)})",
                hint="Update the cluster (Kubernetes 1.31 has it as an option), or change the profile.",
            )

    def check_returned(self, one: backends.TaskLaunch, pod: objects.Pod) -> None:
        """Raise Unavailable where the API server left a claim out of the pod."""
        given = {claim.name: claim.resource_claim_template_name for claim in pod.spec.resource_claims}
        left_out = [name for name, of in rendering.device_claims(one, self._site).items() if given.get(name) != of]
        if left_out:
            raise errors.Unavailable(
                f"the API server left the device claim {left_out[0]} out of the pod of {one.key}",
                hint="Enable the feature DynamicResourceAllocation, or exclude the namespace from webhooks.",
            )


def bound_s(within_s: float) -> float:
    """Return the time in which the scheduler must have bound the pods of a launch that is broken off after `within_s`
    seconds.
    """
    return min(BOUND_S, within_s - REASON_S)


async def until_bound(
    api: client.Client,
    site: Site,
    own: ownpods.OwnPods,
    launches: Collection[backends.TaskLaunch],
    until: float,
    monotonic: Callable[[], float],
) -> None:
    """Return once the scheduler has bound the pods of all these tasks to the nodes of the plan.

    Raises Unbound with its reason where that is not so at the time `until`, Unavailable where a pod has gone.
    """
    waiting = list(launches)
    while True:
        waiting = [one for one in waiting if not _is_bound(one, own)]
        if not waiting:
            return
        if monotonic() >= until:
            break
        await asyncio.sleep(LOOK_S)
    text = f"the scheduler {site.scheduler} did not bind {len(waiting)} of {len(launches)} pods in time: "
    why = await _reason(api, site, waiting[0].key)
    if why:
        raise Unbound(f"{text}{why}", [one.key for one in waiting])
    raise errors.Unavailable(f"{text}it has said nothing about them: does it run?", hint="It is tried again.")


def _is_bound(one: backends.TaskLaunch, own: ownpods.OwnPods) -> bool:
    pod = own.by_key.get(one.key)
    if pod is None:
        raise errors.Unavailable(f"the pod of {one.key} was removed by another", hint="It is tried again.")
    if pod.spec.node_name and pod.spec.node_name != one.holding.node:
        raise errors.Unavailable(
            f"the pod of {one.key} is on {pod.spec.node_name}, not on {one.holding.node}",
            hint="Exclude the namespace from webhooks that change where pods run.",
        )
    return bool(pod.spec.node_name)


async def _reason(api: client.Client, site: Site, key: attempts.TaskKey) -> str:
    name = labels.pod_name(key)
    try:
        pod = await api.get(f"/api/v1/namespaces/{site.namespace}/pods/{name}", objects.Pod)
    except errors.OarlockError:
        return ""
    return podstates.unscheduled(pod)
