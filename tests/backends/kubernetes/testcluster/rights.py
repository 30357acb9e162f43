"""The rights of the server in a cluster, as `deploy/` grants them: in the tests the server has no others."""

from __future__ import annotations

import contextlib
import functools
from pathlib import Path
from typing import Any

import yaml

from oarlock.backends.kubernetes.apiserver import client, objects
from oarlock.spec import errors

DEPLOY = Path(__file__).parents[4] / "deploy"
NAMESPACE, JOBS = "oarlock", "oarlock-jobs"
SERVER = "server-token"
"""The token of the service account of `deploy/`, at the API server of the tests."""

Right = tuple[str, str, str]
"""(scope, verb, resource). The scope is `cluster`, or a namespace."""

_API = "/apis/rbac.authorization.k8s.io/v1"
_PLURALS = {
    "ClusterRole": "clusterroles",
    "ClusterRoleBinding": "clusterrolebindings",
    "Role": "roles",
    "RoleBinding": "rolebindings",
}


@functools.cache
def documents() -> tuple[dict[str, Any], ...]:
    return tuple(yaml.safe_load_all((DEPLOY / "base" / "rights.yaml").read_text()))


def granted() -> set[Right]:
    """Return what the server may do. A right to some objects alone is one for each of their names."""
    roles = {(one["kind"], one["metadata"]["name"]): one["rules"] for one in documents() if "rules" in one}
    return {
        (one["metadata"].get("namespace", "cluster"), verb, _text(resource, group, name))
        for one in documents()
        if "roleRef" in one
        for rule in roles[one["roleRef"]["kind"], one["roleRef"]["name"]]
        for verb in rule["verbs"]
        for resource in rule["resources"]
        for group in rule["apiGroups"]
        for name in rule.get("resourceNames", ("",))
    }


def name_of(resource: str, group: str, name: str) -> str:
    """Return the resource as `granted` names it: with the name of the object where the right is to some alone."""
    return _text(resource, group, name if (resource, group) in _of_some_alone() else "")


@functools.cache
def _of_some_alone() -> set[tuple[str, str]]:
    rules = [rule for one in documents() for rule in one.get("rules", ()) if "resourceNames" in rule]
    return {(resource, group) for rule in rules for resource in rule["resources"] for group in rule["apiGroups"]}


def _text(resource: str, group: str, name: str) -> str:
    return f"{resource}.{group}".rstrip(".") + (f"[{name}]" if name else "")


def of_exec() -> set[Right]:
    """Return the rights to run a command in a pod. It is a WebSocket, which no recorded transport sees:
    tests/e2e/kubernetes/test_pods.py uses one of them, and API servers differ in which one they ask for.
    """
    return {one for one in granted() if one[2] == "pods/exec"}


def of_itself() -> set[Right]:
    """Return the rights to the server's own pod."""
    return {one for one in granted() if one[0] == NAMESPACE}


def of_slices() -> set[Right]:
    """Return the rights for profiles with claims of devices."""
    return {one for one in granted() if one[2].endswith(".resource.k8s.io")}


def of_objects() -> set[Right]:
    """Return the rights to OarlockJobs and OarlockPools, but for their Events, which the backend writes, too."""
    return {one for one in granted() if "oarlock.dev" in one[2] or one[2].startswith("namespaces[")}


def of_backend() -> set[Right]:
    """Return all others."""
    return granted() - of_exec() - of_itself() - of_slices() - of_objects()


async def grant(api: client.Client, namespace: str, of: str = JOBS) -> None:
    """Give the server its rights in the whole cluster, and those of a namespace of `deploy/` in this namespace."""
    for one in documents():
        if one["kind"] not in _PLURALS or one["metadata"].get("namespace", of) != of:
            continue
        scope = f"/namespaces/{namespace}" if "namespace" in one["metadata"] else ""
        metadata = {name: namespace if name == "namespace" else value for name, value in one["metadata"].items()}
        with contextlib.suppress(errors.Conflict):  # the rights in the whole cluster are there already
            await api.create(f"{_API}{scope}/{_PLURALS[one['kind']]}", {**one, "metadata": metadata}, objects.Bare)
