"""The labels of our objects, by which a pod is known again, and the names that follow from a task's key."""

from __future__ import annotations

from collections.abc import Iterable

from oarlock.backends.kubernetes.apiserver import objects
from oarlock.backends.kubernetes.site import Site
from oarlock.spec import attempts, resources
from oarlock.spec.access import kubernetessecrets

PREFIX = "oarlock.dev"
MANAGED_BY = resources.MANAGED_BY
INSTALLATION = resources.INSTALLATION
JOB = f"{PREFIX}/job"
ATTEMPT = f"{PREFIX}/attempt"
ROLE = f"{PREFIX}/role"
INDEX = f"{PREFIX}/index"
INCARNATION = f"{PREFIX}/incarnation"
TENSORBOARD = f"{PREFIX}/tensorboard"
"""The installation of the pod and the Secret of a TensorBoard. They lack its usual label, so that the pod counts as one
of others: the place that it takes is held by no job."""
BOUND_BY = f"{PREFIX}/bound-by"
"""An annotation: the scheduler that binds the pod, where that is not the server."""
SECRETS = f"{PREFIX}/secrets"
"""An annotation: the secrets of the job that refer to Kubernetes Secrets, each `NAME=SECRET/KEY`."""

OwnerReference = dict[str, str]


def pod_name(key: attempts.TaskKey) -> str:
    """Return the one name that the pod of this incarnation may have."""
    return f"{key.job}-{key.attempt}-{key.role}-{key.index}-{key.incarnation}".lower()


def of_attempt(installation: str, job: str, attempt: int) -> dict[str, str]:
    return {MANAGED_BY: "oarlock", INSTALLATION: installation, JOB: job, ATTEMPT: str(attempt)}


def of_task(installation: str, key: attempts.TaskKey) -> dict[str, str]:
    return {
        **of_attempt(installation, key.job, key.attempt),
        ROLE: str(key.role),
        INDEX: str(key.index),
        INCARNATION: str(key.incarnation),
    }


def of_tensorboard(installation: str, job: str, attempt: int) -> dict[str, str]:
    return {MANAGED_BY: "oarlock", TENSORBOARD: installation, JOB: job, ATTEMPT: str(attempt)}


def referring(secrets: Iterable[kubernetessecrets.Named]) -> dict[str, str]:
    """Return the annotation of a pod with these secrets."""
    text = " ".join(map(str, secrets))
    return {SECRETS: text} if text else {}


def referred(meta: objects.Meta) -> list[kubernetessecrets.Named]:
    """Return the secrets of the pod that refer to Kubernetes Secrets."""
    parts = (one.partition("=") for one in meta.annotations.get(SECRETS, "").split())
    told = ((name, at.partition("/")) for name, _, at in parts)
    return [kubernetessecrets.Named(name, kubernetessecrets.Reference(secret, key)) for name, (secret, _, key) in told]


def references(owner: resources.Resource) -> list[OwnerReference]:
    """Return the owner references of the objects that go with this OarlockJob."""
    kind = {"apiVersion": f"{resources.GROUP}/{resources.VERSION}", "kind": "OarlockJob"}
    return [{**kind, "name": owner.name, "uid": owner.uid}]


def selector(chosen: dict[str, str]) -> str:
    return ",".join(f"{name}={value}" for name, value in sorted(chosen.items()))


def is_same(there: objects.Meta, manifest: dict[str, str]) -> bool:
    """Return whether an object of this name is the one that has the labels of the manifest. Only our own labels count:
    those of a webhook, or of a profile that was changed, do not.
    """
    own = {name: value for name, value in manifest.items() if name == MANAGED_BY or name.startswith(f"{PREFIX}/")}
    return own.items() <= there.labels.items()


def ours(meta: objects.Meta, site: Site) -> bool:
    """Return whether this is an object of our installation. The label alone says nothing: each user may set it."""
    return meta.namespace == site.namespace and meta.labels.get(INSTALLATION) == site.installation


def key(meta: objects.Meta) -> attempts.TaskKey | None:
    """Return the key of the task that this object belongs to; None where its labels do not say one."""
    said = meta.labels
    try:
        parts = [said[name] for name in (JOB, ATTEMPT, ROLE, INDEX, INCARNATION)]
        return attempts.TaskKey.parse("/".join(parts))
    except (KeyError, ValueError):
        return None
