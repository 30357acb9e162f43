"""Secrets of the server that refer to Kubernetes Secrets: pods carry the reference, and the server never the value."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator

import pytest
from tests.backends.kubernetes.testcluster import apiserver
from tests.e2e.kubernetes import pods

from oarlock.backends.kubernetes.apiserver import objects

pytestmark = apiserver.needed

TOKEN, LOGIN = "hf_a-token-of-the-hub", "machine x password of-the-team"
JOB = """
name: reads
command: 'echo "$HUB_TOKEN and $(cat $netrc_FILE)"; ! env | grep -q OARLOCK_SECRET'
framework: plain
image: registry.example/plain:1
grace: 1s
secrets: [{name: hub-token}, {name: netrc, as: file}]
"""


@pytest.fixture
def shell(
    tmp_path_factory: pytest.TempPathFactory,
    api_server: apiserver.ApiServer,
) -> Iterator[pods.PodShell]:
    with pods.opened(tmp_path_factory.mktemp("user"), api_server) as one:
        yield one


def put(shell: pods.PodShell, name: str, **data: str) -> None:
    """Make a Secret, as its administrator does."""
    encoded = {key: base64.b64encode(value.encode()).decode() for key, value in data.items()}
    body = {"metadata": {"name": name}, "data": encoded}
    shell.on_cluster(shell.cluster.api.create(shell.cluster.path("secrets"), body, objects.Bare))


def test_the_kubelet_gives_the_values_and_the_server_has_none(shell: pods.PodShell) -> None:
    """`why` and `show` name what is missing: first the Secret, then a key. The job runs once both are there."""
    shell.do("secrets", "set", "hub-token", "--from-kubernetes", "hub/token")
    shell.do("secrets", "set", "netrc", "--from-kubernetes", "logins/netrc", "--everyone")
    listed = {one["name"]: one["kubernetes"] for one in shell.json("secrets", "list")["items"]}
    assert listed == {"hub-token": {"secret": "hub", "key": "token"}, "netrc": {"secret": "logins", "key": "netrc"}}
    assert "hub/token of Kubernetes" in shell.do("secrets", "list").stdout
    shell.write("reads.yaml", JOB)
    (_, planned) = shell.planned("reads.yaml")
    shell.do("submit", "reads.yaml", "--no-snapshot")
    missing = 'hub-token (the key token of the Secret hub): secret "hub" not found'
    for verb in ("why", "show"):
        shell.until(lambda verb=verb: missing in " ".join(shell.do(verb, "reads").stdout.split()), missing)  # type: ignore[misc]
    put(shell, "hub", token=TOKEN)
    put(shell, "logins", other="x")
    lacking = f"netrc (the key netrc of the Secret logins): couldn't find key netrc in Secret {shell.namespace}/logins"
    shell.until(lambda: lacking in " ".join(shell.do("why", "reads").stdout.split()), lacking)
    shell.on_cluster(shell.cluster.api.delete(f"{shell.cluster.path('secrets')}/logins"))
    put(shell, "logins", netrc=LOGIN)
    (made,) = shell.raw("pods")
    env = {one["name"]: one for one in made["spec"]["containers"][0]["env"]}
    assert env["OARLOCK_SECRET_HUB_TOKEN"]["valueFrom"] == {"secretKeyRef": {"name": "hub", "key": "token"}}
    assert env["OARLOCK_SECRET_HUB_TOKEN"] in planned["spec"]["containers"][0]["env"], "the plan shows the reference"
    assert shell.wait_phase("reads", "COMPLETED", "FAILED")["phase"] == "COMPLETED", "it inherits no variable of ours"
    lines = shell.do("logs", "reads").stdout
    assert f"{'*' * len(TOKEN)} and {'*' * len(LOGIN)}" in lines
    for value in (TOKEN, LOGIN):
        text = base64.b64encode(value.encode())
        told = [path for path in shell.home.rglob("*") if path.is_file() and value.encode() in path.read_bytes()]
        assert not told, "no file of the server has it"
        assert value not in json.dumps(made)
        assert text.decode() not in json.dumps(made)
