"""An installation on a cluster that runs pods: a reader of docs/kubernetes.md has made it, command by command.

KUBECONFIG names the cluster. Its nodes have the images that the page names, and those of `tests/node` (`images.sh`). A
cluster without a storage class gets its volumes as folders of this machine, which must be its only node.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.documentation import blocks, readers
from tests.e2e import shell as shells

from oarlock.spec import errors

PAGE = blocks.ROOT / "docs" / "kubernetes.md"
KUBECONFIG = os.environ.get("KUBECONFIG", "")
CLUSTER = os.environ.get("TEST_CLUSTER", "")
"""The program that made the cluster (`cluster.sh`), if images may be loaded with it."""
KEPT = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "oarlock-images"
"""The folder of `images.sh`."""
IMAGES = {f"registry.example/{name}:1" for name in ("oarlock", "torch-cpu", "tensorboard", "plain", "static", "mpi")}
SERVER, JOBS = "oarlock", "oarlock-jobs"
URL = "https://localhost:7443"
PATIENCE_S = 1200
BUILDAH = """#!/bin/sh
# The images are built before the tests, by the same script; here no registry is asked.
case "$*" in
    *registry.example/oarlock:1* | *registry.example/torch-cpu:1* | *registry.example/tensorboard:1*) exit 0 ;;
esac
echo "buildah $*" >&2
exit 1
"""
VOLUMES = {"oarlock": (SERVER, "ReadWriteOnce"), "checkpoints": (JOBS, "ReadWriteMany")}
"""The claims of the page: their namespace and access mode."""


class Site(shells.Shell):
    """The shell of the page's reader, logged in to the server in the cluster, and `kubectl` as an administrator."""

    def __init__(self, folder: Path, reader: readers.Reader) -> None:
        super().__init__(folder)
        self.reader = reader
        self.home = Path(reader.env["HOME"]) / ".oarlock"
        self.env = {**reader.env, "OARLOCK_HOME": str(self.home)}
        self._forward: subprocess.Popen[bytes] | None = None

    def kubectl(self, *words: str, check: bool = True) -> str:
        done = subprocess.run(["kubectl", *words], env=self.env, capture_output=True, text=True, check=False)
        assert not check or done.returncode == 0, f"kubectl {' '.join(words)}: {done.stdout}{done.stderr}"
        return done.stdout

    def objects(self, kind: str, *words: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self.kubectl("get", kind, *words, "--output", "json"))["items"]
        return found

    def do(
        self, *arguments: str, code: int | None = 0, timeout_s: float = PATIENCE_S
    ) -> subprocess.CompletedProcess[str]:
        """Run the command; run it again where it did not reach the server, which answers late on a busy machine."""
        deadline = time.monotonic() + timeout_s
        while True:
            done = super().do(*arguments, code=None, timeout_s=timeout_s)
            if "no server answers" not in done.stderr or time.monotonic() > deadline:
                said = f"oarlock {' '.join(arguments)} ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
                assert code is None or done.returncode == code, said
                return done

    def job(self, name: str) -> dict[str, Any]:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                return super().job(name)
            except errors.Unavailable:
                if time.monotonic() > deadline:
                    raise

    def reads(self, page: Sequence[blocks.Block], work: Path) -> str:
        """Run these blocks of a page in this directory; return what they say."""
        self.reader.reads(page, work, {}, PATIENCE_S)
        return self.reader.said.read_text(errors="replace")

    def pods(self) -> list[dict[str, Any]]:
        return self.objects("pods", "--namespace", JOBS)

    def until(self, holds: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not holds():
            assert time.monotonic() < deadline, f"waited for: {what}"
            time.sleep(0.5)

    def forward(self) -> None:
        """Forward the port again: kubectl's end with the pod that it leads to."""
        self.close()
        self.kubectl("--namespace", SERVER, "rollout", "status", "deployment/oarlock", "--timeout", f"{PATIENCE_S}s")
        command = ["kubectl", "--namespace", SERVER, "port-forward", "service/oarlock", "7443:443"]
        self._forward = subprocess.Popen(command, env=self.env, stdout=subprocess.DEVNULL)
        self.until(lambda: self.do("version", code=None).stdout.count("at https") == 1, "the server answers again")

    def close(self) -> None:
        """End the forwarding of the port, by the page's reader or by this user."""
        if self._forward is not None:
            self._forward.kill()
            self._forward.wait()
            self._forward = None
        end_those_of(Path(self.env["HOME"]), "port-forward")


def end_those_of(home: Path, word: str) -> None:
    """End the processes that have this HOME and this word in their command."""
    for place in Path("/proc").glob("[0-9]*"):
        try:
            mine = f"HOME={home}".encode() in (place / "environ").read_bytes().split(b"\0")
            if mine and word.encode() in (place / "cmdline").read_bytes().split(b"\0"):
                os.kill(int(place.name), signal.SIGKILL)
        except OSError:
            continue


def page() -> list[blocks.Block]:
    """Return the blocks of the page up to the first trained model. `test_page.py` reads on."""
    text = PAGE.read_text(encoding="utf-8")
    inside = text[: text.index("## For several users")]
    return [block for block in blocks.of(inside) if block.language != "text"]


@pytest.fixture(autouse=True)
def _images(_cluster_is_named: None) -> None:
    """Load the images again that a node of our own cluster has lost."""
    if CLUSTER and IMAGES - images():
        script = blocks.ROOT / "tests" / "node" / "images.sh"
        subprocess.run([str(script), CLUSTER, str(KEPT)], check=True)


def images() -> set[str]:
    """Return the images that the nodes have, as their kubelets told lately."""
    command = ["kubectl", "get", "nodes", "--output", "jsonpath={.items[*].status.images[*].names[*]}"]
    return set(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split())


@pytest.fixture(scope="session")
def _cluster_is_named() -> None:
    assert KUBECONFIG, "KUBECONFIG names the cluster"


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory, _cluster_is_named: None) -> Iterator[Site]:
    """An installation by the page, with the first model trained. It is taken away afterwards."""
    folder = tmp_path_factory.mktemp("site")
    reader = readers.Reader(folder / "reader")
    reader.env["KUBECONFIG"] = str(Path(KUBECONFIG).absolute())
    reader.stand_in("buildah", BUILDAH)
    shutil.copy(blocks.ROOT / "constraints.txt", reader.clone)
    one = Site(folder / "user", reader)
    _volumes(one, folder)
    try:
        one.reads(page(), reader.clone)
        yield one
    finally:
        one.close()
        one.kubectl("delete", "--ignore-not-found", "--kustomize", str(reader.clone), check=False)
        one.kubectl("delete", "--ignore-not-found", "persistentvolume", *VOLUMES, check=False)


def _volumes(site: Site, folder: Path) -> None:
    """Give the claims of the page a folder each, where the cluster makes no volumes itself."""
    if site.objects("storageclasses"):
        return
    for parent in (folder, *folder.parents):
        if parent.stat().st_uid == os.getuid() and parent != Path("/tmp"):  # the users of pods go through it
            parent.chmod(parent.stat().st_mode | 0o011)
    for claim, (namespace, mode) in VOLUMES.items():
        place = folder / "volumes" / claim
        place.mkdir(parents=True)
        os.chown(place, 10_001, 10_001)
        volume = {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": claim},
            "spec": {
                "capacity": {"storage": "100Gi"},
                "accessModes": [mode],
                "hostPath": {"path": str(place)},
                "claimRef": {"name": claim, "namespace": namespace},
            },
        }
        (folder / "volume.json").write_text(json.dumps(volume))
        site.kubectl("apply", "--filename", str(folder / "volume.json"))
