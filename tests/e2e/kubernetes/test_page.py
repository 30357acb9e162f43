"""The part of docs/kubernetes.md after the first trained model: its commands are run as printed.

`tests/node` reads the first part, on a cluster that runs pods. Here the API server is a real one, its administrator
types the `kubectl` of the page, and the server of Oarlock runs beside it.
"""

from __future__ import annotations

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
KUBECTL = """#!/bin/sh
# The server runs beside the cluster: where the page gives new settings to the one inside, it starts with them.
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
    """Jobs and pools by `kubectl`."""
    reader = readers.Reader(tmp_path / "reader")
    reader.env |= {"OARLOCK_HOME": str(shell.home), "KUBECONFIG": str(shell.api_server.kubeconfig())}
    base = shutil.copy(shell.home / "config.toml", tmp_path / "base.toml")
    kubectl = {"kubectl": apiserver.ASSETS / "kubectl", "home": shell.home, "server": shell.env["KUBECONFIG"]}
    reader.stand_in("kubectl", KUBECTL.format(base=base, **kubectl))
    part = TEXT[TEXT.index(BEGIN) : TEXT.index(END)]
    reader.reads(
        [one for one in blocks.of(part) if one.language != "text"], reader.clone / "examples" / "01-digits", {}
    )
    said = (tmp_path / "reader" / "said").read_text()
    assert re.search(r"^ranks +COMPLETED ", said, re.MULTILINE), said
    assert re.search(r"^research .* 16 ", said, re.MULTILINE), said
    (job,) = shell.json("ps", "--all")["items"]
    assert (job["name"], job["owner"], job["pool"]) == ("ranks", "ann", "default")
    (pool,) = [one["pool"] for one in shell.json("pools")["items"] if one["pool"]["name"] == "research"]
    assert (pool["reserve"]["gpus"], pool["limit"]["gpus"]) == (8, 16)


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
    for one in blocks.of(TEXT[: TEXT.index("## Train a model")]):
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
