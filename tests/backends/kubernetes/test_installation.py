"""The objects of `deploy/`: an API server takes them, and the server's pod keeps the restricted profile."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.backends.kubernetes.testcluster import apiserver, restricted, rights

from oarlock import configuration
from oarlock.api.process import homefolder
from oarlock.api.security import authentication
from oarlock.backends.kubernetes import ownimage
from oarlock.backends.kubernetes.apiserver import client, objects
from oarlock.spec import errors
from oarlock.spec.protocol import tasktokens

KUBECTL = apiserver.ASSETS / "kubectl"
OVERLAYS = rights.DEPLOY / "overlays"
SERVERS = ("sqlite", "postgresql", "replicas")
"""The overlays with a server."""


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
    assert container["name"] == ownimage.SERVER_CONTAINER
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


def kubectl(*words: str) -> str:
    """Return the output of a command that needs no cluster."""
    done = subprocess.run([str(KUBECTL), *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def rendered(overlay: str) -> dict[str, dict[str, Any]]:
    """Return the objects of an overlay by kind: the last one, where there are several."""
    return {one["kind"]: one for one in yaml.safe_load_all(kubectl("kustomize", str(OVERLAYS / overlay)))}


def variables(overlay: str) -> dict[str, dict[str, Any]]:
    """Return by name Oarlock's variables of all containers of the server's pod."""
    pod = rendered(overlay)["Deployment"]["spec"]["template"]["spec"]
    every = [one for part in (*pod["initContainers"], *pod["containers"]) for one in part.get("env", ())]
    return {one["name"]: one for one in every if one["name"].startswith("OARLOCK_")}


@apiserver.needed
@pytest.mark.parametrize("overlay", SERVERS)
def test_every_variable_and_the_file_of_an_overlay_are_settings_of_the_server(overlay: str, tmp_path: Path) -> None:
    """The server leaves out a variable that it does not know, and would run without what it says."""
    said = {"OARLOCK_BACKEND": "kubernetes", "OARLOCK_HOME": str(tmp_path)}
    for name, one in variables(overlay).items():
        said[name] = one.get("value", "postgresql://ann:word@db.example/oarlock")
        said[name] = said[name].replace("$(OARLOCK_SERVICE_HOST)", "10.96.0.7")
        if said[name].endswith(".pem"):
            said[name] = str(tmp_path / Path(said[name]).name)
            Path(said[name]).touch()
    known = {f"OARLOCK_{name.upper()}": name for name in (*configuration.FLAGS, "home")}
    assert said.keys() <= known.keys()
    (tmp_path / configuration.CONFIG_FILE).write_text(rendered(overlay)["ConfigMap"]["data"]["config.toml"])
    told = configuration.read(said)
    assert {name: str(getattr(told, known[name])) for name in said} == said
    assert told.kubernetes.namespace == "oarlock-jobs"


@apiserver.needed
@pytest.mark.parametrize("overlay", ["postgresql", "replicas"])
def test_the_secret_of_the_database_is_the_one_that_the_page_tells_to_make(overlay: str) -> None:
    page = (rights.DEPLOY.parent / "docs" / "kubernetes.md").read_text()
    (command,) = re.findall(r"`kubectl ([^`]*create secret generic oarlock-[^`]*)`", page)
    assert command in (OVERLAYS / "postgresql" / "kustomization.yaml").read_text()
    made = json.loads(kubectl(*command.split(), "--dry-run=client", "--output=json"))
    deployment = rendered(overlay)["Deployment"]
    assert made["metadata"]["namespace"] == deployment["metadata"]["namespace"]
    wanted = variables(overlay)["OARLOCK_DATABASE"]["valueFrom"]["secretKeyRef"]
    assert wanted == {"name": made["metadata"]["name"], "key": next(iter(made["data"]))}
    assert base64.b64decode(made["data"][wanted["key"]]).startswith(b"postgresql://")


@apiserver.needed
@pytest.mark.parametrize("overlay", SERVERS)
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


def test_servers_that_start_together_share_secrets_certificate_and_data(tmp_path: Path) -> None:
    """Each has a home of its own. A server after them, and a new start, find the same."""
    shared = tmp_path / "shared"
    shared.mkdir()
    scripts = tmp_path / "scripts"  # as in the ConfigMap
    scripts.mkdir()
    for place in (OVERLAYS / "replicas" / "share.sh", rights.DEPLOY / "base" / "certificate.sh"):
        (scripts / place.name).write_text(place.read_text())

    def begun(name: str) -> subprocess.Popen[bytes]:
        (tmp_path / name).mkdir(exist_ok=True)
        words = [str(tmp_path / name), str(shared), "https://10.96.0.7", "localhost"]
        return subprocess.Popen(["sh", str(scripts / "share.sh"), *words], stderr=subprocess.PIPE)

    for names in (("a", "b", "c"), ("d", "a")):
        for one in [begun(name) for name in names]:
            said = one.communicate(timeout=240)[1]
            assert one.returncode == 0, said
    homes = [tmp_path / name for name in "abcd"]
    for file in ("token", "task-secret", "tls/server.pem", "tls/key.pem"):
        assert len({(home / file).read_bytes() for home in homes}) == 1, file
    home = homefolder.Home(homes[0])
    token, secret = home.token(lambda _: b""), home.task_secret(lambda _: b"")
    assert token.startswith(authentication.TOKEN_PREFIX)
    assert (len(token), len(secret)) == (len(authentication.fresh_token(os.urandom)), tasktokens.SECRET_BYTES)
    assert (homes[0] / "token").stat().st_mode & 0o077 == 0
    (homes[0] / "logs" / "x").write_text("a line")
    assert (homes[3] / "logs" / "x").read_text() == "a line"
    (homes[1] / "archive.jsonl").write_text("{}")
    assert (shared / "archive.jsonl").read_text() == "{}"


def test_the_page_names_all_that_servers_share() -> None:
    page = (rights.DEPLOY.parent / "docs" / "kubernetes.md").read_text()
    (said,) = re.findall(r"^.*Two servers see the same pods if they share ([^.]*\.jsonl`)", page, re.MULTILINE)
    script = (OVERLAYS / "replicas" / "share.sh").read_text()
    (folders,) = re.findall(r"^for folder in (.*); do", script, re.MULTILINE)
    files = re.findall(r"\$shared/([a-z][-a-z]+(?:\.jsonl)?)\"", script)
    certificate = {"tls"}  # of servers behind one URL, as the deployment has them
    assert set(re.findall("`(.*?)`", said)) == {*folders.split(), *files} - certificate


@apiserver.needed
def test_two_servers_have_homes_of_their_own_and_one_volume() -> None:
    by_kind = rendered("replicas")
    spec = by_kind["Deployment"]["spec"]
    pod = spec["template"]["spec"]
    assert spec["replicas"] == 2
    volumes = {one["name"]: one for one in pod["volumes"]}
    assert "emptyDir" in volumes["home"]
    assert volumes["shared"]["persistentVolumeClaim"] == {"claimName": "oarlock"}
    assert by_kind["PersistentVolumeClaim"]["spec"]["accessModes"] == ["ReadWriteMany"]
    for container in (*pod["initContainers"], *pod["containers"]):
        assert {one["name"] for one in container["volumeMounts"]} >= {"home", "shared", "settings"}
    assert restricted.violations(spec["template"]) == []


def test_the_budget_protects_the_server() -> None:
    (budget,) = yaml.safe_load_all((OVERLAYS / "disruption-budget" / "budget.yaml").read_text())
    labels = server()["metadata"]["labels"]
    assert budget["apiVersion"] == "policy/v1"
    assert budget["spec"]["selector"]["matchLabels"].items() <= labels.items()
