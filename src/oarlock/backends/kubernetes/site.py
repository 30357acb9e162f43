"""The facts of one cluster that an administrator declares: the table `[kubernetes]` of the server's configuration.

[kubernetes]
namespace = "training"
gpu_resource = "nvidia.com/gpu"
tolerate = ["nvidia.com/gpu"]

[kubernetes.domains]
rack = "example.com/rack"

[kubernetes.node_classes.large]
cpus = 96
memory = "1Ti"
gpus = 8
gpu_type = "h100"
max = 10

[kubernetes.namespaces.team-a]  # OarlockJobs of this namespace are jobs of ann
user = "ann"
pool = "research"
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable, Mapping
from enum import StrEnum
from pathlib import Path

import msgspec

from oarlock.backends.kubernetes import amounts
from oarlock.spec import errors, holdings, jobfile, resources
from oarlock.spec.cluster import nodes, profiles
from oarlock.spec.input import mounts, quantities

DOMAINS = {"zone": "topology.kubernetes.io/zone", "nvlink": "nvidia.com/gpu.clique"}
NVIDIA = "nvidia.com/gpu"
OWN = "oarlock.dev/"
"""Begins the labels and annotations of the server."""
CONTAINERS = ("deliver", "task", "helper")
"""The containers of each pod."""

MAX_NODES = 10_000
MAX_GPUS = 1024
HINT = "PreferNoSchedule"
"""The effect of taints that close no node."""
EFFECTS = (*sorted(nodes.CLOSING), HINT)
CORDON = "node.kubernetes.io/unschedulable"
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_SUBDOMAIN = re.compile(r"(?=.{1,253}$)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_WORD = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_VARIABLE = re.compile(r"[-._a-zA-Z][-._a-zA-Z0-9]*")
_CAPABILITY = re.compile(r"[A-Z][A-Z_]{1,62}")
_NAMES = "Use small letters, digits, hyphens and dots."


class NodeClass(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Nodes that an autoscaler may add: the amounts that tasks get on one of them, and the most nodes.

    `domains` has, by level of the topology, the domain of all of them, or the number of nodes that share one. `taints`
    (`KEY=VALUE:EFFECT`) and `labels` are those that new nodes have, as far as they decide which gangs may use them.
    `device_claims` are the ResourceClaimTemplates whose claims new nodes can serve, and `resources` the amounts of
    extended resources that each of them has.
    """

    cpus: float | str
    memory: str | int
    max: int
    gpus: int = 0
    gpu_type: str = "gpu"
    gpu_memory: str | int = 0
    domains: dict[str, str | int] = {}
    taints: tuple[str, ...] = ()
    labels: dict[str, str] = {}
    device_claims: tuple[str, ...] = ()
    resources: dict[str, int] = {}

    def all_labels(self, name: str, site: Site) -> dict[str, str]:
        """Return the labels that are known of each new node."""
        places = {
            site.domain_labels[level]: domain
            for level, domain in self.domains.items()
            if isinstance(domain, str) and level in site.domain_labels
        }
        return {**places, **self.labels, site.class_label: name}

    def declared(self, name: str, site: Site) -> nodes.NodeClass:
        """Return the class as the scheduler reads it. Raises InvalidInput, with the place of an invalid value."""
        path = f"kubernetes.node_classes.{name}"
        if not 1 <= self.max <= MAX_NODES:
            raise errors.InvalidInput(
                f"{self.max} is not a number of nodes", path=f"{path}.max", hint="Give 1 to 10000."
            )
        if not 0 <= self.gpus <= MAX_GPUS:
            raise errors.InvalidInput(
                f"{self.gpus} is not a number of GPUs", path=f"{path}.gpus", hint="Give 0 to 1024."
            )
        shared = {level: count for level, count in self.domains.items() if isinstance(count, int)}
        if any(count < 1 for count in shared.values()):
            raise errors.InvalidInput(
                "a domain has at least one node", path=f"{path}.domains", hint="Give a name, or a number from 1."
            )
        try:
            memory = quantities.memory_bytes(self.gpu_memory)
            capacity = holdings.Resources(
                quantities.cpus_milli(self.cpus), quantities.memory_bytes(self.memory), self.gpus
            )
        except errors.InvalidInput as error:
            raise errors.InvalidInput(error.message, path=path, hint=error.hint) from error
        model = nodes.Node(
            name=name,
            capacity=capacity,
            devices=tuple(
                nodes.Device(index=index, type=self.gpu_type, memory_bytes=memory) for index in range(self.gpus)
            ),
            domains={level: domain for level, domain in self.domains.items() if isinstance(domain, str)},
            node_class=name,
            labels=site.selecting(self.labels),
            taints=site.taints(_taint(text, f"{path}.taints") for text in self.taints),
            lacks=(
                *sorted(nodes.DEVICES + template for template in site.device_templates - set(self.device_claims)),
                *site.lacking({name: str(amount) for name, amount in self.resources.items()}),
            ),
        )
        return nodes.NodeClass(name=name, model=model, most=self.max, shared=shared)


def _taint(text: str, path: str) -> nodes.Taint:
    """Return the taint `KEY=VALUE:EFFECT` or `KEY:EFFECT`. Raises InvalidInput."""
    mark, _, effect = text.rpartition(":")
    key, _, value = mark.partition("=")
    if not key or effect not in EFFECTS:
        raise errors.InvalidInput(
            f"{text!r} is not a taint.", path=path, hint="Write KEY=VALUE:EFFECT, with NoSchedule or NoExecute."
        )
    return nodes.Taint(key=key, value=value, effect=effect)


class Sidecar(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A container beside a task. It requests nothing, and `memory` is its limit. It ends with the task."""

    name: str
    image: str
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    env: dict[str, str] = {}
    memory: str | int = 0  # 0: no limit

    def check(self, path: str) -> None:
        """Raise InvalidInput for a container that Kubernetes does not take, or that would replace one of ours."""
        if self.name in CONTAINERS or not _LABEL.fullmatch(self.name):
            why = "is one of Oarlock's own" if self.name in CONTAINERS else "is not a valid name of a container"
            raise errors.InvalidInput(
                f"{self.name!r} {why}.", path=f"{path}.name", hint="Use small letters, digits and hyphens."
            )
        if not self.image:
            raise errors.InvalidInput(
                "The container has no image.", path=f"{path}.image", hint="Write it as registry.example/name:1."
            )
        _check_variables(self.env, f"{path}.env")
        try:
            quantities.memory_bytes(self.memory)
        except errors.InvalidInput as error:
            raise errors.InvalidInput(error.message, path=f"{path}.memory", hint=error.hint) from error


class Profile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Additions to the pods of all jobs, or of those in some pools or of some users. No job file can name or change
    one. A user may choose the pool of a job, and not its owner.

    `env` are variables of the task's container, as if its image set them: the job's own win. `groups` are numbers of
    further groups of all processes, as the files of a volume may need. The planner knows `tolerate` (the taints that
    pods tolerate, each a key or `KEY=VALUE`) and `node_labels` (those that a node must have). `device_claims` has, by
    the name of a claim in the pod, the ResourceClaimTemplate from which the cluster makes it. `resources` are amounts
    of extended resources for each task, and `capabilities` are added to those of the task's container, which has none.
    `shared_memory` is a folder of the node that the tasks there see as /dev/shm, so that they share memory; with the
    empty one each pod has its own.
    """

    pools: tuple[str, ...] = ()  # leaves, which have jobs; empty: all
    users: tuple[str, ...] = ()  # owners of jobs; empty: all
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    env: dict[str, str] = {}
    volumes: tuple[jobfile.Volume, ...] = ()
    runtime_class: str = ""
    priority_class: str = ""
    groups: tuple[int, ...] = ()
    tolerate: tuple[str, ...] = ()
    node_labels: dict[str, str] = {}
    device_claims: dict[str, str] = {}
    resources: dict[str, int] = {}
    capabilities: tuple[str, ...] = ()
    containers: tuple[Sidecar, ...] = ()
    shared_memory: str = ""

    @property
    def planned(self) -> profiles.Profile:
        """The part that the scheduler reads."""
        return profiles.Profile(
            pools=self.pools,
            users=self.users,
            tolerate=self.tolerate,
            node_labels=self.node_labels,
            claims=(
                *(volume.claim for volume in self.volumes),
                *(nodes.DEVICES + template for template in self.device_claims.values()),
                *self.extended,
            ),
        )

    @property
    def extended(self) -> list[str]:
        """The extended resources as claims of the planner."""
        return [f"{nodes.RESOURCES}{name}={amount}" for name, amount in sorted(self.resources.items())]

    def check(self, name: str, claims: Collection[str], taken: Collection[str], gpu_resource: str) -> None:
        """Raise InvalidInput for an addition with which no pod would start. `claims` are those of the installation, and
        `taken` has the folders that are Oarlock's own.
        """
        path = f"kubernetes.profiles.{name}"
        _check_marks(self.annotations, "annotation", f"{path}.annotations")
        _check_marks(self.labels, "label", f"{path}.labels")
        _check_variables(self.env, f"{path}.env")
        self._check_task(path, gpu_resource)
        for number, container in enumerate(self.containers):
            container.check(f"{path}.containers[{number}]")
        self._check_nodes(path)
        self._check_volumes(path, claims, taken)

    def _check_task(self, path: str, gpu_resource: str) -> None:
        for label, value in self.labels.items():
            if value and not _WORD.fullmatch(value):
                raise errors.InvalidInput(
                    f"{value!r} is not a valid value of the label {label}.",
                    path=f"{path}.labels",
                    hint="Use at most 63 letters, digits, hyphens, dots and underscores.",
                )
        for resource, amount in self.resources.items():
            domain, slash, word = resource.partition("/")
            is_named = slash and _SUBDOMAIN.fullmatch(domain) and _WORD.fullmatch(word)
            if not is_named or resource == gpu_resource or domain.endswith("kubernetes.io") or amount < 1:
                raise errors.InvalidInput(
                    f"{amount} of {resource!r} is not an amount of an extended resource.",
                    path=f"{path}.resources",
                    hint='Write it as "rdma/hca" = 1. Job files ask for CPUs, memory and GPUs.',
                )
        for capability in self.capabilities:
            if not _CAPABILITY.fullmatch(capability) or capability.startswith("CAP_") or capability == "ALL":
                raise errors.InvalidInput(
                    f"{capability!r} is not a capability of Linux.",
                    path=f"{path}.capabilities",
                    hint='Name each without CAP_, as "IPC_LOCK".',
                )
        if self.shared_memory and (why := mounts.fault(self.shared_memory, taken=())):
            raise errors.InvalidInput(
                f"Pods cannot share the folder {self.shared_memory} of their node: it {why}.",
                path=f"{path}.shared_memory",
                hint="Name one in memory: /dev/shm, or a tmpfs of the node.",
            )

    def _check_nodes(self, path: str) -> None:
        for taint in self.tolerate:
            key = taint.partition("=")[0]
            if not key or key == CORDON or key.startswith(OWN):
                raise errors.InvalidInput(
                    f"No task can tolerate the taint {taint!r}.",
                    path=f"{path}.tolerate",
                    hint="Give keys of taints, or KEY=VALUE. Cordoned and full nodes take no new tasks.",
                )
        for claim_name, template in self.device_claims.items():
            if not _LABEL.fullmatch(claim_name) or not _SUBDOMAIN.fullmatch(template):
                raise errors.InvalidInput(
                    f"{claim_name!r} of {template!r} is not a claim of devices.",
                    path=f"{path}.device_claims",
                    hint='Write NAME = "TEMPLATE": small letters, digits and hyphens.',
                )

    def _check_volumes(self, path: str, claims: Collection[str], taken: Collection[str]) -> None:
        for number, volume in enumerate(self.volumes):
            at = f"{path}.volumes[{number}]"
            if volume.claim and volume.claim in claims:
                raise errors.InvalidInput(
                    f"The claim {volume.claim} stores checkpoints or environments of all jobs.",
                    path=f"{at}.claim",
                    hint="Leave it out: each job sees its own checkpoints and environments.",
                )
            if not _SUBDOMAIN.fullmatch(volume.claim):
                raise errors.InvalidInput(
                    f"{volume.claim!r} is not a valid name of a claim.", path=f"{at}.claim", hint=_NAMES
                )
            if why := mounts.fault(volume.mount, taken):
                raise errors.InvalidInput(
                    f"Nothing can be mounted at {volume.mount}: it {why}.",
                    path=f"{at}.mount",
                    hint=f"Name an absolute path that is not below {' or '.join(taken)}.",
                )


def _check_marks(marks: dict[str, str], what: str, path: str) -> None:
    """Raise InvalidInput for the name of a label or an annotation that is Oarlock's own, or that Kubernetes refuses."""
    for mark in marks:
        if mark.startswith(OWN) or mark == resources.MANAGED_BY:
            raise errors.InvalidInput(
                f"The {what} {mark} is one of Oarlock's own.",
                path=path,
                hint=f"Name it otherwise: those with {OWN}, and {resources.MANAGED_BY}, are the server's.",
            )
        prefix, _, word = mark.rpartition("/")
        if not _WORD.fullmatch(word) or ("/" in mark and not _SUBDOMAIN.fullmatch(prefix)):
            raise errors.InvalidInput(
                f"{mark!r} is not a valid name of {'an annotation' if what == 'annotation' else 'a label'}.",
                path=path,
                hint="Write it as example.com/name.",
            )


def _check_variables(variables: Iterable[str], path: str) -> None:
    for variable in variables:
        if not _VARIABLE.fullmatch(variable):
            raise errors.InvalidInput(
                f"{variable!r} is not a valid name of a variable.", path=path, hint="Use letters, digits and _."
            )


class Mode(StrEnum):
    BIND = "bind"  # the server binds pods itself, but for those that wait for a volume
    STEER = "steer"  # the stock scheduler binds all pods, by node affinity


class Tenant(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The user as whom the OarlockJobs of a namespace are submitted, and the pool of those that name none."""

    user: str
    pool: str = "default"


Planned = tuple[profiles.Profile, ...]
VENDOR = "nvidia.com/"
CUDA = "-cuda"
"""Ends the name of a framework's image for jobs with GPUs of this vendor: `torch-cuda`."""
Taint = nodes.Taint


class Site(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`installation` tells the pods of one Oarlock from those of another in the same cluster. Without one the server
    derives it from its task secret. `server` is the URL by which pods reach the server. `ca_pem` is the authority that
    they trust for it, where the system's do not suffice.

    `domains` gives the node label of a level of the topology, where it differs from that of `DOMAINS`; an empty one
    switches the level off. `tolerate` lists keys of taints that tasks tolerate;
    a node with another closing taint takes no tasks. `nodes` are labels that a node must have to be used.
    """

    installation: str = ""
    server: str = ""
    ca_pem: str = ""
    namespace: str = "oarlock"
    context: str | None = None  # of the kubeconfig; else the current one
    mode: Mode = Mode.BIND
    scheduler: str = "default-scheduler"  # that binds in mode `steer`, and pods with unbound claims
    gpu_resource: str = NVIDIA
    gpu_type: str = ""  # of all nodes, where no label says it
    gpu_product_label: str = "nvidia.com/gpu.product"
    gpu_memory_label: str = "nvidia.com/gpu.memory"  # in MiB
    class_label: str = "node.kubernetes.io/instance-type"
    domains: dict[str, str] = {}  # over `DOMAINS`
    tolerate: tuple[str, ...] = (NVIDIA,)
    nodes: dict[str, str] = {}
    image: str = ""  # the server's own image, which brings agent and interpreter; found by itself in a pod
    images: dict[str, str] = {}  # by framework, for jobs that name none; `torch-cuda` for those with NVIDIA's GPUs
    pull_policy: str = "IfNotPresent"
    pull_secrets: tuple[str, ...] = ()
    namespaces: dict[str, Tenant] = {}  # of OarlockJobs: whose they are
    project: bool = True  # whether jobs of the command line, the SDK and the pages get an OarlockJob
    checkpoint_claim: str = ""  # the claim of a volume for checkpoints, which all tasks mount
    environments_claim: str = ""  # that of the environments of dependencies; else they are on the other one
    store_ca: str = ""  # a PEM file with the authorities of object stores, beside those of the system
    store_ca_pem: str = ""  # its content
    checkpoint_path: str = "/oarlock/checkpoints"  # where they mount it
    checkpoint_url: str = (
        ""  # a place in an object store in its stead, s3://BUCKET/PREFIX, with the server's credentials
    )
    node_classes: dict[str, NodeClass] = {}  # that an autoscaler may add, by the value of their `class_label`
    provisioning_class: str = "best-effort-atomic-scale-up.autoscaling.x-k8s.io"  # of ProvisioningRequests
    user_id: int = 10_001  # of the processes in pods, and their group
    profiles: dict[str, Profile] = {}

    @property
    def domain_labels(self) -> dict[str, str]:
        """The node label of each level of the topology that is known here."""
        return {level: label for level, label in (DOMAINS | self.domains).items() if label}

    @property
    def claims(self) -> tuple[str, str]:
        """The claims that no job mounts as a whole: of the checkpoints, and of environments alone; empty: none."""
        return self.checkpoint_claim, self.environments_claim

    def image_of(self, framework: str, *, gpus: bool) -> str | None:
        """Return the image of jobs of this framework that name none. `gpus`: of jobs with GPUs."""
        cuda = self.images.get(f"{framework}{CUDA}") if gpus and self.has_cuda else None
        return cuda or self.images.get(framework)

    @property
    def has_cuda(self) -> bool:
        """Whether the GPUs are NVIDIA's, as a whole or in parts (`nvidia.com/mig-1g.5gb`)."""
        return self.gpu_resource.startswith(VENDOR)

    @property
    def offered(self) -> dict[str, str]:
        """The images, by name, that the installation's jobs can get."""
        return self.offered_on(gpus=True)

    def offered_on(self, *, gpus: bool) -> dict[str, str]:
        """Return the images, by name, that jobs can get on a node, which has GPUs or has none."""
        cuda = gpus and self.has_cuda
        return {name: image for name, image in self.images.items() if cuda or not name.endswith(CUDA)}

    def profiles_of(self, pool: str, owner: str) -> list[Profile]:
        """Return the profiles of a job of this owner in this pool, by name: a later one wins."""
        return [one for _, one in sorted(self.profiles.items()) if one.planned.covers(pool, owner)]

    @property
    def planned(self) -> Planned:
        """The part of the profiles that the scheduler reads, by name, without those that say nothing about nodes."""
        planned = (one.planned for _, one in sorted(self.profiles.items()))
        claimed = (profiles.Profile(claims=(self.checkpoint_claim,)),) if self.checkpoint_claim else ()
        return (*claimed, *(one for one in planned if one.tolerate or one.node_labels or one.claims))

    def lacking(self, has: Mapping[str, str]) -> tuple[str, ...]:
        """Return those extended resources of profiles of which a node has too few for one task. `has` are its amounts,
        as Kubernetes writes them.
        """
        asked = {(name, amount) for one in self.profiles.values() for name, amount in one.resources.items()}
        lacked = [(name, amount) for name, amount in asked if amounts.units(has.get(name, "0"), up=False) < amount]
        return tuple(sorted(f"{nodes.RESOURCES}{name}={amount}" for name, amount in lacked))

    @property
    def device_templates(self) -> set[str]:
        """The ResourceClaimTemplates that profiles name."""
        return {template for one in self.profiles.values() for template in one.device_claims.values()}

    def taints(self, found: Iterable[Taint]) -> tuple[Taint, ...]:
        """Return the taints that close a node to some gangs or to all of them."""
        some = [key for one in self.profiles.values() for key in one.tolerate]
        return tuple(
            msgspec.structs.replace(taint, tolerable=taint.is_tolerated(some))
            for taint in found
            if taint.effect != HINT and not taint.is_tolerated(self.tolerate)
        )

    def selecting(self, labels: dict[str, str]) -> dict[str, str]:
        """Return those of a node's labels that a profile names."""
        named = sorted({label for one in self.profiles.values() for label in one.node_labels})
        return {label: labels[label] for label in named if label in labels}

    def check_namespaces(self) -> None:
        """Raise InvalidInput where the namespace of the pods is a user's.

        The objects there own the pods of all users' jobs. With a right on the objects one user could end the others'
        pods.
        """
        if self.namespace in self.namespaces:
            raise errors.InvalidInput(
                f"The OarlockJobs beside the pods, in {self.namespace}, own the pods of all users' jobs, so that they "
                f"cannot belong to {self.namespaces[self.namespace].user}.",
                path=f"kubernetes.namespaces.{self.namespace}",
                hint="Make a namespace for the user, and name it in its place: kubectl create namespace NAME",
            )

    def check_profiles(self) -> None:
        """Raise InvalidInput for a profile with which no pod would start, and for two volumes at one place."""
        self._check_labels()
        self._check_containers()
        mounted: list[tuple[str, str]] = []  # profiles, each with a place
        for name, one in sorted(self.profiles.items()):
            one.check(name, self.claims, (*mounts.TAKEN, self.checkpoint_path), self.gpu_resource)
            for volume in one.volumes:
                place = volume.mount.rstrip("/")
                same = [other for other, its in mounted if its == place and self._meet(self.profiles[other], one)]
                mounted.append((name, place))
                if same:
                    raise errors.InvalidInput(
                        f"The profiles {same[0]} and {name} mount volumes at the same place, {volume.mount}."
                        if same[0] != name
                        else f"The profile {name} mounts two volumes at the same place, {volume.mount}.",
                        path=f"kubernetes.profiles.{name}.volumes",
                        hint="Mount one of them elsewhere.",
                    )

    def _check_labels(self) -> None:
        """Raise InvalidInput where no node can have the labels that the profiles of some job name."""
        given = sorted(self.profiles.items())
        for place, (name, one) in enumerate(given):
            others = [(f"profile {other}", two.node_labels) for other, two in given[:place] if self._meet(one, two)]
            for other, labels in [("setting `nodes`", self.nodes), *others]:
                for label, value in one.node_labels.items():
                    if labels.get(label, value) != value:
                        raise errors.InvalidInput(
                            f"No node can have the label {label} both as {value} and as {labels[label]}.",
                            path=f"kubernetes.profiles.{name}.node_labels",
                            hint=f"The {other} wants another value: leave one of them out, or name pools or users.",
                        )

    def _check_containers(self) -> None:
        """Raise InvalidInput where two containers have one name. It is one of all profiles, whatever their jobs."""
        known: dict[str, str] = {}
        for name, one in sorted(self.profiles.items()):
            for container in one.containers:
                other = known.setdefault(container.name, name)
                if other != name or sum(each.name == container.name for each in one.containers) > 1:
                    raise errors.InvalidInput(
                        f"The profiles {other} and {name} have containers of the same name, {container.name}."
                        if other != name
                        else f"The profile {name} has two containers of the same name, {container.name}.",
                        path=f"kubernetes.profiles.{name}.containers",
                        hint="Name one of them otherwise.",
                    )

    def _meet(self, one: Profile, other: Profile) -> bool:
        """Return whether some job may have both profiles."""
        pools = not one.pools or not other.pools or bool(set(one.pools) & set(other.pools))
        users = not one.users or not other.users or bool(set(one.users) & set(other.users))
        return pools and users

    def profile_mounts(self) -> list[tuple[str, str]]:
        """Return the places where profiles mount volumes, each with its pool; `*` is every pool."""
        return [
            (pool, volume.mount)
            for one in self.profiles.values()
            for pool in one.pools or ("*",)
            for volume in one.volumes
        ]


def authorities_of_stores(told: Site) -> str:
    """Return the authorities of object stores as PEM; an empty text where the system's suffice."""
    return told.store_ca_pem or (Path(told.store_ca).read_text(encoding="utf-8") if told.store_ca else "")


def completed(told: Site, task_secret: bytes, tls_ca: str | None) -> Site:
    """Return the site with the name of the installation, and with the authority of this file, unless it names them."""
    return msgspec.structs.replace(
        told,
        installation=told.installation or installation(task_secret),
        ca_pem=told.ca_pem or (Path(tls_ca).read_text(encoding="utf-8") if tls_ca else ""),
        store_ca_pem=authorities_of_stores(told),
    )


def installation(task_secret: bytes) -> str:
    """Return the name of this installation in its cluster: the same for each server that shares the task secret."""
    return hashlib.sha256(b"installation:" + task_secret).hexdigest()[:12]
