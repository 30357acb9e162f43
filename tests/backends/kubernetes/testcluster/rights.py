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


def granted() -> set[tuple[str, str, str]]:
    """Return what the server may do: (scope, verb, resource). The scope is `cluster`, or a namespace."""
    roles = {(one["kind"], one["metadata"]["name"]): one["rules"] for one in documents() if "rules" in one}
    return {
        (one["metadata"].get("namespace", "cluster"), verb, f"{resource}.{group}".rstrip("."))
        for one in documents()
        if "roleRef" in one
        for rule in roles[one["roleRef"]["kind"], one["roleRef"]["name"]]
        for verb in rule["verbs"]
        for resource in rule["resources"]
        for group in rule["apiGroups"]
    }


async def grant(api: client.Client, namespace: str, of: str = JOBS) -> None:
    """Give the server its rights in the whole cluster, and those of a namespace of `deploy/` in this namespace."""
    for one in documents():
        if one["kind"] not in _PLURALS or one["metadata"].get("namespace", of) != of:
            continue
        scope = f"/namespaces/{namespace}" if "namespace" in one["metadata"] else ""
        metadata = {name: namespace if name == "namespace" else value for name, value in one["metadata"].items()}
        with contextlib.suppress(errors.Conflict):  # the rights in the whole cluster are there already
            await api.create(f"{_API}{scope}/{_PLURALS[one['kind']]}", {**one, "metadata": metadata}, objects.Bare)
