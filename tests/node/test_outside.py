"""A server outside the cluster makes the same pods as the one inside. Only the server's address tells them apart.

It has the rights of the service account of `deploy/`, as the one inside.
"""

from __future__ import annotations

import base64
import contextlib
import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests import needs
from tests.e2e import shell as shells
from tests.node import conftest
from tests.node import outside as outsides
from tests.node.conftest import Site

pytestmark = pytest.mark.node

OF_THE_SERVER = {"server", "ca_file"}
"""The fields of an assignment that may differ."""


def address(site: Site) -> str:
    """Return an address of this machine that pods reach."""
    mine = outsides.address(site.env["KUBECONFIG"])
    return mine or needs.skip("a node of the cluster", "no node has an address of this machine")


@pytest.fixture
def outside(site: Site, tmp_path: Path) -> Iterator[shells.Shell]:
    with opened(
        site, tmp_path / "outside", next(one.text for one in conftest.page() if one.file == "config.toml")
    ) as one:
        yield one


def opened(site: Site, folder: Path, settings: str) -> contextlib.AbstractContextManager[shells.Shell]:
    """Open the shell of a user whose server runs on this machine, with TLS and these settings of the page."""
    kubeconfig = folder.with_suffix(".kubeconfig")
    kubeconfig.write_text(json.dumps(as_the_server(site)))
    return outsides.opened(str(kubeconfig), address(site), folder, settings)


def as_the_server(site: Site) -> dict[str, Any]:
    """Return a kubeconfig with the rights of the server in the cluster."""
    found: dict[str, Any] = json.loads(site.kubectl("config", "view", "--raw", "--minify", "--flatten", "-o", "json"))
    accounts = f"/api/v1/namespaces/{conftest.SERVER}/serviceaccounts"
    asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 86_400}}
    command = ["kubectl", "create", "--raw", f"{accounts}/{conftest.SERVER}/token", "--filename", "-"]
    answer = subprocess.run(
        command, env=site.env, input=json.dumps(asked), capture_output=True, text=True, check=True
    ).stdout
    found["users"] = [
        {"name": one["name"], "user": {"token": json.loads(answer)["status"]["token"]}} for one in found["users"]
    ]
    return found


def manifests(site: Site, shell: shells.Shell) -> tuple[list[Any], list[dict[str, Any]]]:
    """Run a gang of two through this server; return its pods and its assignments, without what no two jobs share."""
    shell.write(
        "same.yaml",
        """
        name: same
        framework: plain
        image: registry.example/plain:1
        command: sleep 600
        roles: {worker: {count: 2, cpus: 0.5, memory: 64Mi}}
        checkpoint: {every: 1m}
        grace: 1s
        """,
    )
    shell.do("submit", "same.yaml")
    job = shell.wait_phase("same", "PROCESSING", timeout_s=conftest.PATIENCE_S)["id"].lower()
    pods = [pod for pod in site.pods() if pod["metadata"]["name"].startswith(job)]
    secrets = site.objects("secrets", "--namespace", conftest.JOBS)
    data = [one["data"] for one in secrets if one["metadata"]["name"].startswith(job)]
    shell.do("cancel", "same")
    shell.wait_phase("same", "CANCELED", timeout_s=conftest.PATIENCE_S)
    told = [json.loads(base64.b64decode(text)) for one in data for name, text in one.items() if name.endswith("json")]
    of_pods = [{"labels": pod["metadata"]["labels"], "spec": pod["spec"]} for pod in pods]
    return alike(of_pods, job), sorted(alike(told, job), key=lambda one: str(one["key"]))


def alike(found: Any, job: str) -> Any:
    """Return the objects with the job's id, the digests in names, the tokens and the snapshot replaced.

    Other tests leave files in the directory of one of the two users.
    """
    text = json.dumps(found)
    text = re.sub(rf"(?i){job}-1-[0-9a-f]{{10}}", "SECRET", text)
    text = re.sub(rf"(?i){job}", "JOB", text)
    text = re.sub(r'("oarlock.dev/installation": )"[0-9a-f]+"', r'\1"INSTALLATION"', text)
    text = re.sub(r'("snapshot": )"[^"]+"', r'\1"SNAPSHOT"', text)
    return json.loads(re.sub(r'("token": )"[^"]+"', r'\1"TOKEN"', text))


def test_the_pods_are_the_same_but_for_the_address_of_the_server(site: Site, outside: shells.Shell) -> None:
    pods, assignments = manifests(site, site)
    others, told = manifests(site, outside)
    assert len(pods) == len(assignments) == 2
    assert others == pods
    differing = {
        name for one, other in zip(assignments, told, strict=True) for name in one if one[name] != other.get(name)
    }
    assert "server" in differing
    assert differing <= OF_THE_SERVER, [
        {name: (one[name], other.get(name)) for name in differing} for one, other in zip(assignments, told, strict=True)
    ]
