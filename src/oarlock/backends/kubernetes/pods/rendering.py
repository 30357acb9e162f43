"""The pod of a task, built field by field from allow-listed fields: nothing of a user is passed on unseen.

    init container `deliver`   the server's image: copies interpreter, agent and libraries, and the assignment
    container `task`           the user's image: the agent, under our interpreter, and below it the user's processes
    container `helper`         the server's image: moves data at the agent's request, and ends with the agent

    /oarlock/runtime   emptyDir   interpreter, agent, `oarlock.train`, hook; the task container cannot write it
    /oarlock/task      emptyDir   the task's directory (docs/agent-protocol.md, section 1)
    /oarlock/home      emptyDir   HOME
    /oarlock/checkpoints/JOB   the job's folder on the claim of the installation, if there is one
    /oarlock/environments      environments of the job's dependencies: its user's folder on that claim, or one for them
    /oarlock/mailbox   emptyDir   in memory, of agent and helper: requests hold the job's secrets
    /dev/shm           emptyDir in memory; with a profile's `shared_memory` that folder of the node

A pod keeps the restricted profile of Kubernetes' pod security standards. The assignments of a gang lie in Secrets,
since they hold tokens; a pod mounts its own item alone. Everything here is pure: a launch always gives the same
manifest.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from oarlock.backends import backends
from oarlock.backends.kubernetes import amounts
from oarlock.backends.kubernetes.pods import labels
from oarlock.backends.kubernetes.site import CONTAINERS, Profile, Sidecar, Site
from oarlock.spec import attempts, errors, holdings, jobfile
from oarlock.spec.checkpoints import checkpointlocations
from oarlock.spec.input import quantities
from oarlock.spec.protocol import serverimage

Manifest = dict[str, Any]

SCHEDULER = "oarlock"
"""No other scheduler binds pods with this scheduler name."""

INIT, TASK, HELPER = CONTAINERS
RUNTIME, TASK_DIRECTORY, HOME = "/oarlock/runtime", "/oarlock/task", "/oarlock/home"
MAILBOX, ENVIRONMENTS = "/oarlock/mailbox", "/oarlock/environments"
DELIVERED, HANDED = "/opt/oarlock/runtime", "/oarlock/assignment"
USER = "oarlock"
"""The name of the processes' user, for which the image has no entry: `getpass.getuser()` fails without a name."""
TERMINATION_LOG = "/dev/termination-log"
ADDRESS_VARIABLE = "OARLOCK_ADDRESS"
SECRET_PREFIX = "OARLOCK_SECRET_"
ASSIGNMENT, AUTHORITY, STORES = "assignment.json", "ca.pem", "stores.pem"

PORTS = tuple(range(29400, 29400 + 128))
"""The ports of each task: a pod has an address of its own. One for each process, and as many as a task may have."""

LINGER_S = 30.0
"""The time after the grace in which an agent delivers its last logs."""
SECRET_BYTES = 900_000
"""The most in one Secret. The API server takes 1 MiB, with base64 not counted."""

_PYTHON = (f"{RUNTIME}/lib/loader", "--library-path", f"{RUNTIME}/lib", f"{RUNTIME}/bin/python3", "-I", "-S")
"""Our interpreter with its own loader: the user's image needs neither Python nor a C library."""

_AGENT = (*_PYTHON, f"{RUNTIME}/agent.pyz", TASK_DIRECTORY)
INSIDE = (*_PYTHON, f"{RUNTIME}/agent.pyz", "--inside", TASK_DIRECTORY)
"""Begins a command in the environment of the task's processes."""
SHELL = (*_PYTHON, f"{RUNTIME}/agent.pyz", "--shell", TASK_DIRECTORY)
"""Begins the address of a task and a command to run there, in the place of ssh."""
SHELL_SERVER = (*_PYTHON, f"{RUNTIME}/agent.pyz", "--serve-shell", TASK_DIRECTORY)
"""The process of a worker of MPI, which runs the launcher's commands."""

PYTHON = serverimage.PYTHON
DELIVERED_AGENT = (PYTHON, "-I", "-S", f"{DELIVERED}/agent.pyz")
"""The agent in a container of the server's image."""
_HELPER = (PYTHON, "-m", "oarlock.data", "--task", TASK_DIRECTORY, "serve", MAILBOX)

_DELIVER = f"cp -R {DELIVERED}/. {RUNTIME}/ && cp {HANDED}/* {TASK_DIRECTORY}/"
_CLAIM = "/oarlock/claim"
"""The whole claim of checkpoints, which the init container alone sees. A kubelet would make a `subPath` as root."""
_ENVIRONMENTS_CLAIM = "/oarlock/environments-claim"
"""The same for a claim of environments alone."""


def pod(one: backends.TaskLaunch, site: Site, secret: str, *, steered: bool = False, bound: bool = False) -> Manifest:
    """Return the pod of one incarnation. `secret` names the Secret that holds its assignment. Raises InvalidInput.

    `steered` lets the stock scheduler bind it, to the node of the plan. `bound` binds it there from the beginning.
    """
    key, profiles = one.key, _profiles(one, site)
    bound_by = {labels.BOUND_BY: site.scheduler} if steered else {}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": labels.pod_name(key),
            "namespace": site.namespace,
            "labels": {
                **{name: text for profile in profiles for name, text in profile.labels.items()},
                **labels.of_task(site.installation, key),
            },
            "annotations": {
                **{name: text for profile in profiles for name, text in profile.annotations.items()},
                f"{labels.PREFIX}/name": one.container.job_name,
                **labels.referring(one.container.secrets),
                **bound_by,
            },
            **_owned(one),
        },
        "spec": {
            "schedulerName": site.scheduler if steered else SCHEDULER,
            **({"affinity": _affinity(one.holding.node)} if steered else {}),
            **({"nodeName": one.holding.node} if bound else {}),
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": int(one.assignment.grace_s + LINGER_S),
            **pod_settings(site),
            **_added(profiles, site),
            "initContainers": [_init(one, site)],
            "containers": [_task(one, site), _helper(one, site), *_sidecars(profiles, site)],
            "volumes": list(_volumes(one, site, secret)),
        },
    }


def _added(profiles: Sequence[Profile], site: Site) -> Manifest:
    """Return the settings of a pod that its profiles add."""
    found: Manifest = {}
    groups = sorted({group for one in profiles for group in one.groups})
    if groups:
        found["securityContext"] = {**_pod_security(site), "supplementalGroups": groups}
    tolerated = sorted({taint for one in profiles for taint in one.tolerate}.difference(site.tolerate))
    labels = {label: value for one in profiles for label, value in sorted(one.node_labels.items())}
    found |= on_nodes(site, tolerated, labels)
    claims = _device_claims(profiles)
    if claims:
        found["resourceClaims"] = [
            {"name": name, "resourceClaimTemplateName": template} for name, template in sorted(claims.items())
        ]
    for one in profiles:
        found |= {"runtimeClassName": one.runtime_class} if one.runtime_class else {}
        found |= {"priorityClassName": one.priority_class} if one.priority_class else {}
    return found


def on_nodes(site: Site, tolerated: Sequence[str], labels: dict[str, str]) -> Manifest:
    """Return the settings by which a pod tolerates further taints, and asks for a node with labels."""
    found: Manifest = {"tolerations": _tolerations([*site.tolerate, *tolerated])} if tolerated else {}
    return found | ({"nodeSelector": labels} if labels else {})


def _affinity(node: str) -> Manifest:
    there = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [there]}}}


def unbound(manifest: Manifest) -> Manifest:
    """Return the manifest of a pod without the name of a node."""
    return {**manifest, "spec": {name: value for name, value in manifest["spec"].items() if name != "nodeName"}}


class Gang(NamedTuple):
    """The objects of a gang. The Secrets are created first, so that a pod never lacks its own."""

    secrets: list[Manifest]
    pods: dict[attempts.TaskKey, Manifest]


def gang(launches: Sequence[backends.TaskLaunch], site: Site, *, steered: bool = False, bound: bool = False) -> Gang:
    """Return the objects that a launch creates. Raises InvalidInput."""
    by_key = {one.key: one for one in launches}
    found = secrets(launches, site)
    named = {key: manifest["metadata"]["name"] for manifest, keys in found for key in keys}
    pods = {key: pod(one, site, named[key], steered=steered, bound=bound) for key, one in by_key.items()}
    return Gang([manifest for manifest, _ in found], pods)


def secrets(launches: Sequence[backends.TaskLaunch], site: Site) -> list[tuple[Manifest, list[attempts.TaskKey]]]:
    """Return the Secrets that hold the assignments of these tasks, each with the keys of its tasks."""
    found = []
    for some in _by_size([(one, _assignment(one, site)) for one in launches]):
        keys = [one.key for one, _ in some]
        manifest = {
            "apiVersion": "v1",
            "kind": "Secret",
            "type": "Opaque",
            "metadata": {
                "name": _secret_name(keys),
                "namespace": site.namespace,
                "labels": labels.of_attempt(site.installation, keys[0].job, keys[0].attempt),
                **_owned(some[0][0]),
            },
            "data": {item(one.key): base64.b64encode(content).decode() for one, content in some} | _authority(site),
        }
        found.append((manifest, keys))
    return found


def _owned(one: backends.TaskLaunch) -> Manifest:
    """Return the part of the metadata by which the object goes with the job's OarlockJob."""
    found = one.container.resource
    return {"ownerReferences": labels.references(found)} if found is not None else {}


def item(key: attempts.TaskKey) -> str:
    """Return the name of a task's item in its gang's Secret."""
    return f"{key.role}-{key.index}-{key.incarnation}.json"


def _authority(site: Site) -> dict[str, str]:
    """Return the authorities of the server and of object stores, where the system's do not suffice."""
    named = {AUTHORITY: site.ca_pem, STORES: site.store_ca_pem}
    return {name: base64.b64encode(pem.encode()).decode() for name, pem in named.items() if pem}


def image(one: backends.TaskLaunch, site: Site) -> str:
    """Return the image of the task. Raises InvalidInput where neither the job nor the installation names one."""
    found = one.container.image or site.image_of(one.container.framework, gpus=one.container.gpus)
    if not found:
        raise errors.InvalidInput(
            f"there is no image for {one.container.framework}",
            path="image",
            hint="Name one in the job file, or in the table [kubernetes.images] of the server's configuration.",
        )
    return found


def _assignment(one: backends.TaskLaunch, site: Site) -> bytes:
    """Return the assignment with the facts of a pod.

    Its address is known in the pod alone: the agent takes it from there.
    """
    told = one.assignment
    return msgspec.json.encode(
        msgspec.structs.replace(
            told,
            key=str(one.key),
            address="",
            address_variable=ADDRESS_VARIABLE,
            ports=PORTS[: max(1, told.nproc)],
            exit_copy=TERMINATION_LOG,
            server_file=None,
            ca_file=f"{TASK_DIRECTORY}/{AUTHORITY}" if site.ca_pem else None,
            train_path=f"{RUNTIME}/train",
            hook_path=f"{RUNTIME}/hook",
            environments=ENVIRONMENTS if _environments(one, site) else None,
            secret_variables={secret.name: secret_variable(secret.name) for secret in one.container.secrets},
            helper=(),
            mailbox=MAILBOX,
            gpus=None,
            plugged_gpus=one.holding.amount.gpus,
            path_env={},
        )
    )


def _by_size(items: Sequence[tuple[backends.TaskLaunch, bytes]]) -> Iterator[list[tuple[backends.TaskLaunch, bytes]]]:
    some: list[tuple[backends.TaskLaunch, bytes]] = []
    size = 0
    for one, content in items:
        if some and size + len(content) > SECRET_BYTES:
            yield some
            some, size = [], 0
        some.append((one, content))
        size += len(content)
    if some:
        yield some


def _secret_name(keys: Iterable[attempts.TaskKey]) -> str:
    """Return a name that follows from the tasks, so that a repeated launch finds its own Secret."""
    listed = sorted(map(str, keys))
    first = attempts.TaskKey.parse(listed[0])
    digest = hashlib.sha256("\n".join(listed).encode()).hexdigest()[:10]
    return f"{first.job}-{first.attempt}-{digest}".lower()


def pod_settings(site: Site) -> Manifest:
    """Return the settings that all our pods share."""
    return {
        "securityContext": _pod_security(site),
        **({"imagePullSecrets": [{"name": name} for name in site.pull_secrets]} if site.pull_secrets else {}),
        **({"tolerations": _tolerations(site.tolerate)} if site.tolerate else {}),
    }


def _pod_security(site: Site) -> Manifest:
    return {
        "runAsNonRoot": True,
        "runAsUser": site.user_id,
        "runAsGroup": site.user_id,
        "fsGroup": site.user_id,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def container_security(added: Iterable[str] = ()) -> Manifest:
    """Return the rights of a container; `added` are the capabilities that a profile adds."""
    given = sorted(set(added))
    capabilities = {"drop": ["ALL"], **({"add": given} if given else {})}
    return {"allowPrivilegeEscalation": False, "capabilities": capabilities}


def _tolerations(taints: Iterable[str]) -> list[Manifest]:
    """Return the tolerations of taints, each a key or `KEY=VALUE`."""
    return [
        {"key": key, "operator": "Equal", "value": value} if equals else {"key": key, "operator": "Exists"}
        for key, equals, value in (taint.partition("=") for taint in taints)
    ]


def _init(one: backends.TaskLaunch, site: Site) -> Manifest:
    """Return the init container. It takes no more than the task: so the pod's requests are the task's."""
    environments, volume = _environments(one, site), _environments_volume(site)
    roots = {"checkpoints": _CLAIM} if site.checkpoint_claim else {}
    folders = [f"{_CLAIM}/{one.key.job}"] if site.checkpoint_claim else []
    if environments:
        roots.setdefault(volume, _ENVIRONMENTS_CLAIM)
        folders.append(f"{roots[volume]}/{environments}")
    claimed = [{"name": name, "mountPath": root} for name, root in roots.items()]
    making = f" && mkdir -p {' '.join(folders)}" if folders else ""
    return {
        "name": INIT,
        "image": site.image,
        "imagePullPolicy": site.pull_policy,
        "command": ["/bin/sh", "-c", _DELIVER + making],
        "resources": {"requests": requests(one.holding.amount, "")},
        "securityContext": container_security(),
        "volumeMounts": [
            {"name": "runtime", "mountPath": RUNTIME},
            {"name": "task", "mountPath": TASK_DIRECTORY},
            {"name": "assignment", "mountPath": HANDED, "readOnly": True},
            *claimed,
        ],
    }


def _task(one: backends.TaskLaunch, site: Site) -> Manifest:
    claims, more = device_claims(one, site), {name: str(amount) for name, amount in extended(one, site).items()}
    variables = {"USER": USER, "LOGNAME": USER, **_variables(one, site), "HOME": HOME}
    return {
        "name": TASK,
        "image": image(one, site),
        "imagePullPolicy": site.pull_policy,
        "command": list(_AGENT),
        "env": [
            *({"name": name, "value": value} for name, value in variables.items()),
            {"name": ADDRESS_VARIABLE, "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
            *_secret_variables(one),
        ],
        "resources": {
            "requests": requests(one.holding.amount, site.gpu_resource) | more,
            "limits": requests(_limit(one), site.gpu_resource) | more,
            **({"claims": [{"name": name} for name in sorted(claims)]} if claims else {}),
        },
        "securityContext": container_security(name for added in _profiles(one, site) for name in added.capabilities),
        "terminationMessagePath": TERMINATION_LOG,
        "volumeMounts": [
            {"name": "runtime", "mountPath": RUNTIME, "readOnly": True},
            {"name": "shm", "mountPath": "/dev/shm"},
            *_cached(one, site),
            *_shared(one, site),
        ],
    }


def secret_variable(name: str) -> str:
    """Return the variable in which the agent gets the value of a secret that refers to a Kubernetes Secret."""
    return SECRET_PREFIX + name.replace("-", "_").upper()


def _secret_variables(one: backends.TaskLaunch) -> Iterator[Manifest]:
    """Yield the references of the job's secrets: the kubelet reads the values, and the server never has them."""
    for secret in one.container.secrets:
        source = {"secretKeyRef": {"name": secret.at.secret, "key": secret.at.key}}
        yield {"name": secret_variable(secret.name), "valueFrom": source}


def _profiles(one: backends.TaskLaunch, site: Site) -> list[Profile]:
    return site.profiles_of(one.container.pool, one.container.owner)


def device_claims(one: backends.TaskLaunch, site: Site) -> dict[str, str]:
    """Return the claims of devices that profiles give to the pod: the template of each, by its name in the pod."""
    return _device_claims(_profiles(one, site))


def extended(one: backends.TaskLaunch, site: Site) -> dict[str, int]:
    """Return the amounts of extended resources that profiles give to the task."""
    return {name: amount for profile in _profiles(one, site) for name, amount in profile.resources.items()}


def _device_claims(profiles: Iterable[Profile]) -> dict[str, str]:
    return {name: template for one in profiles for name, template in one.device_claims.items()}


def _variables(one: backends.TaskLaunch, site: Site) -> dict[str, str]:
    """Return the variables that profiles add; those of the agent stay as they are."""
    own = {"HOME", ADDRESS_VARIABLE, *(secret_variable(secret.name) for secret in one.container.secrets)}
    given = {name: value for profile in _profiles(one, site) for name, value in profile.env.items()}
    return {name: value for name, value in given.items() if name not in own}


def volumes(one: backends.TaskLaunch, site: Site) -> list[jobfile.Volume]:
    """Return the claims that the pod mounts, by the job file and by the profiles."""
    added = [volume for profile in _profiles(one, site) for volume in profile.volumes]
    return [*one.container.volumes, *added]


def _helper(one: backends.TaskLaunch, site: Site) -> Manifest:
    """Return the helper. It requests nothing, so that the pod's requests are the task's."""
    return {
        "name": HELPER,
        "image": site.image,
        "imagePullPolicy": site.pull_policy,
        "command": list(_HELPER),
        "env": [{"name": "HOME", "value": HOME}],
        "resources": {"requests": {"cpu": "0", "memory": "0"}},
        "securityContext": container_security(),
        "volumeMounts": list(_shared(one, site)),
    }


def _sidecars(profiles: Iterable[Profile], site: Site) -> Iterator[Manifest]:
    """Yield the containers that profiles add. They request nothing, as the helper, and see none of the task's files."""
    for one in (container for profile in profiles for container in profile.containers):
        yield {
            "name": one.name,
            "image": one.image,
            "imagePullPolicy": site.pull_policy,
            **({"command": list(one.command)} if one.command else {}),
            **({"args": list(one.args)} if one.args else {}),
            "env": [{"name": name, "value": value} for name, value in one.env.items()],
            "resources": {"requests": {"cpu": "0", "memory": "0"}, **_limited(one)},
            "securityContext": container_security(),
        }


def _limited(one: Sidecar) -> Manifest:
    memory_bytes = quantities.memory_bytes(one.memory)
    return {"limits": {"memory": str(memory_bytes)}} if memory_bytes else {}


def _environments(one: backends.TaskLaunch, site: Site) -> str:
    """Return the folder on the claim with the environments of the job's user; empty where the job shares none.

    An environment is code that jobs run. So no user writes those of another.
    """
    if not any(site.claims) or not one.assignment.requirements:
        return ""
    owner = one.container.owner
    plain = re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._@-]*", owner)
    return f"environments/{owner if plain else hashlib.sha256(owner.encode()).hexdigest()}"


def _environments_volume(site: Site) -> str:
    """Return the name of the pod's volume with the environments."""
    return "environments" if site.environments_claim else "checkpoints"


def environments_claim(one: backends.TaskLaunch, site: Site) -> str:
    """Return the claim that the pod mounts for environments alone; empty for none."""
    return site.environments_claim if _environments(one, site) else ""


def _cached(one: backends.TaskLaunch, site: Site) -> Iterator[Manifest]:
    if folder := _environments(one, site):
        yield {"name": _environments_volume(site), "mountPath": ENVIRONMENTS, "subPath": folder}


def _shared(one: backends.TaskLaunch, site: Site) -> Iterator[Manifest]:
    """Yield the mounts that agent and helper see under the same paths."""
    yield {"name": "task", "mountPath": TASK_DIRECTORY}
    yield {"name": "home", "mountPath": HOME}
    yield {"name": "mailbox", "mountPath": MAILBOX}
    if site.checkpoint_claim:
        # Its own folder alone: no job reads or writes the checkpoints of another.
        mine = one.key.job
        root = site.checkpoint_path.rstrip("/")
        yield {"name": "checkpoints", "mountPath": f"{root}/{mine}", "subPath": mine}
        other = checkpointlocations.owner(one.container.continues, root)
        if other is not None and other != mine:
            yield {"name": "checkpoints", "mountPath": f"{root}/{other}", "subPath": other, "readOnly": True}
    for place, volume in enumerate(volumes(one, site)):
        yield {"name": _claim_name(place), "mountPath": volume.mount, "readOnly": volume.read_only}


def _volumes(one: backends.TaskLaunch, site: Site, secret: str) -> Iterator[Manifest]:
    shared: Manifest = {"medium": "Memory"}
    # What lies there counts as memory of the container that wrote it. A job without a limit of memory may use that of
    # the node either way, and is evicted first either way: a bound here alone would only end jobs that train.
    if one.limit.memory_bytes:
        shared["sizeLimit"] = str(one.limit.memory_bytes)
    yield {"name": "runtime", "emptyDir": {}}
    yield {"name": "task", "emptyDir": {}}
    yield {"name": "home", "emptyDir": {}}
    yield {"name": "mailbox", "emptyDir": {"medium": "Memory", "sizeLimit": "16Mi"}}
    folder = next((added.shared_memory for added in reversed(_profiles(one, site)) if added.shared_memory), "")
    yield {"name": "shm"} | ({"hostPath": {"path": folder, "type": "Directory"}} if folder else {"emptyDir": shared})
    items = [{"key": item(one.key), "path": ASSIGNMENT}]
    items += [{"key": name, "path": name} for name in _authority(site)]
    yield {"name": "assignment", "secret": {"secretName": secret, "defaultMode": 0o440, "items": items}}
    if site.checkpoint_claim:
        yield {"name": "checkpoints", "persistentVolumeClaim": {"claimName": site.checkpoint_claim}}
    if claim := environments_claim(one, site):
        yield {"name": "environments", "persistentVolumeClaim": {"claimName": claim}}
    for place, volume in enumerate(volumes(one, site)):
        if volume.claim in site.claims:  # a job from before the claim was made the installation's
            raise errors.InvalidInput(
                f"the claim {volume.claim} stores checkpoints or environments of all jobs",
                path=f"volumes[{place}].claim",
                hint="Submit the job without this volume.",
            )
        source = {"claimName": volume.claim, "readOnly": volume.read_only}
        yield {"name": _claim_name(place), "persistentVolumeClaim": source}


def _claim_name(place: int) -> str:
    return f"volume-{place}"


def _limit(one: backends.TaskLaunch) -> holdings.Resources:
    """Return the limit of the job file; GPUs are always limited to those that are held."""
    return msgspec.structs.replace(one.limit, gpus=one.holding.amount.gpus)


def requests(amount: holdings.Resources, gpu: str) -> dict[str, str]:
    found = {}
    if amount.cpus_milli:
        found["cpu"] = amounts.cpu_text(amount.cpus_milli)
    if amount.memory_bytes:
        found["memory"] = str(amount.memory_bytes)
    if amount.gpus and gpu:
        found[gpu] = str(amount.gpus)
    return found
