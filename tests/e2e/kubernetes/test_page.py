"""The parts of docs/kubernetes.md after the first trained model: their commands are run as printed.

`tests/node` reads them and the first part with the server inside a cluster that runs pods. Here the API server is a
real one, its administrator types the `kubectl` of the page, and the server of Oarlock runs beside it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.backends.kubernetes.testcluster import apiserver
from tests.documentation import blocks, readers
from tests.e2e.kubernetes import pods, test_projection

pytestmark = apiserver.needed

TEXT = (blocks.ROOT / "docs" / "kubernetes.md").read_text(encoding="utf-8")
BEGIN, END = "## For several users", "## A server outside the cluster"
FIRST, REST = TEXT[: TEXT.index(BEGIN)], TEXT[TEXT.index(BEGIN) : TEXT.index(END)]
SECRETS = TEXT[TEXT.index("## Secrets of the cluster") : TEXT.index("## Profiles")]
KUBECTL = """#!/bin/sh
# The server runs beside the cluster: where the page gives new settings to the one inside, it starts with them. Its pods
# are in a namespace of the test's own.
for word; do
    shift
    [ "$word" = oarlock-jobs ] && word={namespace}
    set -- "$@" "$word"
done
case "$*" in
    "apply --kustomize .")
        cat {base} config.toml > {home}/config.toml
        export KUBECONFIG={server}
        oarlock down && exec oarlock up --backend kubernetes --detach ;;
    *"rollout status deployment/oarlock"*) exit 0 ;;
esac
exec {kubectl} "$@"
"""


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[pods.PodShell]:
    with apiserver.running(tmp_path / "api") as server:
        test_projection.define(server)
        one = pods.PodShell(tmp_path / "user", server)
        try:
            one.open()
            yield one
        finally:
            one.close()


def test_the_page_is_read_on(shell: pods.PodShell, tmp_path: Path) -> None:
    """Jobs and pools by `kubectl`, and secrets of the cluster."""
    reader = readers.Reader(tmp_path / "reader")
    reader.env |= {"OARLOCK_HOME": str(shell.home), "KUBECONFIG": str(shell.api_server.kubeconfig())}
    base = shutil.copy(shell.home / "config.toml", tmp_path / "base.toml")
    kubectl = {"kubectl": apiserver.ASSETS / "kubectl", "home": shell.home, "server": shell.env["KUBECONFIG"]}
    reader.stand_in("kubectl", KUBECTL.format(base=base, namespace=shell.namespace, **kubectl))
    read = [one for one in blocks.of(REST) if one.language != "text"]
    read += [one for one in blocks.of(SECRETS) if one.language == "sh"]
    reader.reads(read, reader.clone / "examples" / "01-digits", {})
    said = reader.said.read_text()
    assert re.search(r"^ranks +COMPLETED ", said, re.MULTILINE), said
    assert re.search(r"^research .* 16 ", said, re.MULTILINE), said
    (output,) = [one.text for one in blocks.of(SECRETS) if one.language == "text"]
    assert output in said
    (job,) = [one for one in shell.json("ps", "--all")["items"] if one["name"] == "ranks"]
    assert (job["name"], job["owner"], job["pool"]) == ("ranks", "ann", "default")
    (pool,) = [one["pool"] for one in shell.json("pools")["items"] if one["pool"]["name"] == "research"]
    assert (pool["reserve"]["gpus"], pool["limit"]["gpus"]) == (8, 16)


def test_every_command_of_the_page_is_run() -> None:
    run = [one.text for part in (FIRST, REST, SECRETS) for one in blocks.of(part) if one.language == "sh"]
    assert [one.text for one in blocks.of(TEXT) if one.language == "sh"] == run


def test_the_server_is_stopped_and_started_as_the_page_says(tmp_path: Path) -> None:
    """In its text, not in a block: a reader may not want it now."""
    (stop,) = re.findall(r"`(kubectl [^`]* scale deployment/oarlock --replicas 0)`", TEXT)
    assert "With `--replicas 1` it starts again." in TEXT

    def kubectl(*words: str) -> str:
        command = [str(apiserver.ASSETS / "kubectl"), *words]
        env = {**os.environ, "KUBECONFIG": str(server.kubeconfig())}
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    replicas = ("--namespace", "oarlock", "get", "deployment", "oarlock", "--output", "jsonpath={.spec.replicas}")
    with apiserver.running(tmp_path / "api") as server:
        kubectl("apply", "--kustomize", str(blocks.ROOT / "deploy" / "overlays" / "sqlite"))
        for count in ("0", "1"):
            kubectl(*stop.split()[1:-1], count)
            assert kubectl(*replicas) == count


def test_only_output_and_fragments_of_files_are_not_run() -> None:
    shown = [one for one in blocks.of(TEXT) if one.language == "text"]
    commands = [
        line for one in shown for line in one.text.splitlines() if re.match(r"(\$ )?(kubectl|oarlock|cd) ", line)
    ]
    assert not commands


PATCHES = [one for one in blocks.of(TEXT) if one.language == "text" and one.text.startswith("patches:")]


@pytest.mark.parametrize("patch", PATCHES, ids=[f"line {one.line}" for one in PATCHES])
def test_a_patch_of_the_page_changes_the_server(patch: blocks.Block, tmp_path: Path) -> None:
    """It is added to the file of the page that `kubectl` renders."""
    clone = readers.Reader(tmp_path).clone
    for one in blocks.of(FIRST):
        if one.file:
            (clone / one.file).write_text(one.text)
    rendered = []
    for more in ("", patch.text):
        with (clone / "kustomization.yaml").open("a") as file:
            file.write(more)
        done = subprocess.run(
            [str(apiserver.ASSETS / "kubectl"), "kustomize", str(clone)], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        rendered.append(done.stdout)
    added = set(rendered[1].splitlines()) - set(rendered[0].splitlines())
    assert any(line.strip() in ("value: '::'", "name: object-store") for line in added), added
