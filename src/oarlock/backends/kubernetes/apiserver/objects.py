"""The fields of Kubernetes objects that Oarlock reads, as structs. Everything else in an answer is skipped unparsed.

The API server writes JSON with `omitempty`, so that every field has a default here. Times stay the text of RFC 3339.
"""

from __future__ import annotations

from typing import Generic, Protocol, TypeVar

import msgspec


class Part(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """A part of an object, written as Kubernetes writes it: `resourceVersion`, `nodeName`."""


class Owner(Part, frozen=True):
    kind: str = ""
    name: str = ""
    uid: str = ""


class Meta(Part, frozen=True):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    deletion_grace_period_seconds: int | None = None
    owner_references: tuple[Owner, ...] = ()


class Bare(Part, frozen=True):
    """An object of any kind, of which only the metadata matter."""

    metadata: Meta = Meta()


class IsMeta(Protocol):
    """The metadata that lists and watches read."""

    @property
    def uid(self) -> str: ...

    @property
    def resource_version(self) -> str: ...


class HasMeta(Protocol):
    @property
    def metadata(self) -> IsMeta: ...


T = TypeVar("T", bound=HasMeta)


class ListMeta(Part, frozen=True):
    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")


class Page(Part, Generic[T], frozen=True):
    """One page of a list."""

    metadata: ListMeta = ListMeta()
    items: list[T] | None = None


# Pods


class Requirements(Part, frozen=True):
    requests: dict[str, str] = {}
    limits: dict[str, str] = {}


class Container(Part, frozen=True):
    name: str = ""
    image: str = ""
    resources: Requirements = Requirements()
    restart_policy: str = ""  # `Always` makes an init container a native sidecar (1.28 and newer)


class DeviceClaim(Part, frozen=True):
    """A claim of devices in a pod, and the ResourceClaimTemplate from which the cluster makes it."""

    name: str = ""
    resource_claim_template_name: str = ""


class PodSpec(Part, frozen=True):
    node_name: str = ""
    scheduler_name: str = ""
    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] = ()
    overhead: dict[str, str] = {}
    resource_claims: tuple[DeviceClaim, ...] = ()


class Waiting(Part, frozen=True):
    reason: str = ""
    message: str = ""


class Running(Part, frozen=True):
    started_at: str | None = None


class Terminated(Part, frozen=True):
    exit_code: int = 0
    signal: int = 0
    reason: str = ""
    message: str = ""
    finished_at: str | None = None


class ContainerState(Part, frozen=True):
    waiting: Waiting | None = None
    running: Running | None = None
    terminated: Terminated | None = None


class ContainerStatus(Part, frozen=True):
    name: str = ""
    image: str = ""
    state: ContainerState = ContainerState()
    restart_count: int = 0


class Condition(Part, frozen=True):
    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""
    last_transition_time: str | None = None


class PodStatus(Part, frozen=True):
    phase: str = ""
    reason: str = ""
    message: str = ""
    pod_ip: str = msgspec.field(default="", name="podIP")
    conditions: tuple[Condition, ...] = ()
    container_statuses: tuple[ContainerStatus, ...] = ()
    init_container_statuses: tuple[ContainerStatus, ...] = ()


class Event(Part, frozen=True):
    metadata: Meta = Meta()
    reason: str = ""
    message: str = ""


class Pod(Part, frozen=True):
    metadata: Meta = Meta()
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()


class PodVolume(Part, frozen=True):
    """A volume of a pod, as far as it is one of a driver. `Raw` is not empty where the field is there."""

    persistent_volume_claim: msgspec.Raw = msgspec.Raw()
    ephemeral: msgspec.Raw = msgspec.Raw()
    csi: msgspec.Raw = msgspec.Raw()

    @property
    def is_attached(self) -> bool:
        return any(map(bytes, (self.persistent_volume_claim, self.ephemeral, self.csi)))


class MountingSpec(PodSpec, frozen=True):
    volumes: tuple[PodVolume, ...] = ()

    @property
    def holds(self) -> bool:
        """Whether the pod holds volumes of drivers, or devices by claims."""
        return bool(self.resource_claims) or any(one.is_attached for one in self.volumes)


class MountingPod(Part, frozen=True):
    """A pod with its volumes. They are left out of the pods that are kept as a whole."""

    metadata: Meta = Meta()
    spec: MountingSpec = MountingSpec()


class VolumeClaimStatus(Part, frozen=True):
    phase: str = ""


class VolumeClaimSpec(Part, frozen=True):
    access_modes: tuple[str, ...] = ()


class VolumeClaim(Part, frozen=True):
    """A claim of a volume (PersistentVolumeClaim)."""

    metadata: Meta = Meta()
    spec: VolumeClaimSpec = VolumeClaimSpec()
    status: VolumeClaimStatus = VolumeClaimStatus()


class ClaimReference(Part, frozen=True):
    namespace: str = ""
    name: str = ""


class NodeRequirement(Part, frozen=True):
    key: str = ""
    operator: str = ""
    values: tuple[str, ...] = ()


class NodeTerm(Part, frozen=True):
    match_expressions: tuple[NodeRequirement, ...] = ()
    match_fields: tuple[NodeRequirement, ...] = ()


class NodeSelector(Part, frozen=True):
    node_selector_terms: tuple[NodeTerm, ...] = ()


class VolumeNodes(Part, frozen=True):
    required: NodeSelector | None = None


class VolumeSpec(Part, frozen=True):
    claim_ref: ClaimReference | None = None
    node_affinity: VolumeNodes | None = None


class VolumeStatus(Part, frozen=True):
    phase: str = ""


class Volume(Part, frozen=True):
    """A volume (PersistentVolume)."""

    metadata: Meta = Meta()
    spec: VolumeSpec = VolumeSpec()
    status: VolumeStatus = VolumeStatus()


class SliceSpec(Part, frozen=True):
    node_name: str = ""


class ResourceSlice(Part, frozen=True):
    """Devices that a driver offers on one node, or on several."""

    metadata: Meta = Meta()
    spec: SliceSpec = SliceSpec()


# Nodes


class Taint(Part, frozen=True):
    key: str = ""
    value: str = ""
    effect: str = ""


class NodeSpec(Part, frozen=True):
    unschedulable: bool = False
    taints: tuple[Taint, ...] = ()


class NodeAddress(Part, frozen=True):
    type: str = ""
    address: str = ""


class NodeStatus(Part, frozen=True):
    allocatable: dict[str, str] = {}
    conditions: tuple[Condition, ...] = ()
    addresses: tuple[NodeAddress, ...] = ()


class Node(Part, frozen=True):
    metadata: Meta = Meta()
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


# Answers that are not objects


class StatusCause(Part, frozen=True):
    reason: str = ""
    message: str = ""
    field: str = ""


class StatusDetails(Part, frozen=True):
    name: str = ""
    kind: str = ""
    uid: str = ""
    causes: tuple[StatusCause, ...] = ()
    retry_after_seconds: int = 0


class Status(Part, frozen=True):
    """The API server's account of an error."""

    code: int = 0
    reason: str = ""
    message: str = ""
    details: StatusDetails | None = None


class Version(Part, frozen=True):
    major: str = ""
    minor: str = ""
    git_version: str = ""
