"""The objects of `deploy/`: an API server takes them, and the server's pod keeps the restricted profile."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
from typing import Any

import pytest
import yaml
from tests.backends.kubernetes.testcluster import apiserver, restricted, rights

from oarlock.backends.kubernetes import backend
from oarlock.backends.kubernetes.apiserver import client, objects
from oarlock.spec import errors

KUBECTL = apiserver.ASSETS / "kubectl"
OVERLAYS = rights.DEPLOY / "overlays"


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((rights.DEPLOY / "base" / name).read_text()))


def server() -> dict[str, Any]:
    (deployment,) = documents("server.yaml")
    pod: dict[str, Any] = deployment["spec"]["template"]
    return pod


def test_the_pod_of_the_server_keeps_the_restricted_profile() -> None:
    assert restricted.violations(server()) == []


def test_the_server_has_probes_and_requests_and_its_container_is_found_by_name() -> None:
    (container,) = server()["spec"]["containers"]
    assert container["name"] == backend.SERVER_CONTAINER
    assert {"startupProbe", "livenessProbe", "readinessProbe"} <= container.keys()
    assert container["resources"]["requests"].keys() == {"cpu", "memory"}


def test_the_port_of_the_service_does_not_become_the_servers_setting() -> None:
    """Kubernetes gives each pod OARLOCK_PORT=tcp://... for a Service of that name."""
    (service,) = documents("service.yaml")
    (container,) = server()["spec"]["containers"]
    said = {one["name"]: one["value"] for one in container["env"]}
    (port,) = container["ports"]
    assert service["metadata"]["name"] == "oarlock"
    assert said["OARLOCK_PORT"] == str(port["containerPort"])
    assert said["OARLOCK_URL"] == "https://$(OARLOCK_SERVICE_HOST)"


@apiserver.needed
@pytest.mark.parametrize("overlay", ["sqlite", "postgresql"])
async def test_an_api_server_takes_the_objects(
    overlay: str, api_server: apiserver.ApiServer, api: client.Client
) -> None:
    for namespace in documents("namespaces.yaml"):
        with contextlib.suppress(errors.Conflict):
            await api.create("/api/v1/namespaces", namespace, objects.Bare)
    command = [str(KUBECTL), "apply", "--dry-run=server", "--kustomize", str(OVERLAYS / overlay), "--output=name"]
    env = {**os.environ, "KUBECONFIG": str(api_server.kubeconfig())}
    done = await asyncio.to_thread(subprocess.run, command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    made = {line.split(".")[0].split("/")[0] for line in done.stdout.splitlines()}
    assert made >= {
        "namespace",
        "serviceaccount",
        "role",
        "clusterrole",
        "service",
        "deployment",
        "persistentvolumeclaim",
    }


def test_the_budget_protects_the_server() -> None:
    (budget,) = yaml.safe_load_all((OVERLAYS / "disruption-budget" / "budget.yaml").read_text())
    labels = server()["metadata"]["labels"]
    assert budget["apiVersion"] == "policy/v1"
    assert budget["spec"]["selector"]["matchLabels"].items() <= labels.items()
