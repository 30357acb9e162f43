"""`make test` leaves tests out, and continuous integration runs all of them but measurements and endless runs."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

from tests.backends.kubernetes.testcluster import apiserver as kubernetes

ROOT = Path(__file__).parent.parent
NOT_IN_CI = {"soak", "bench"}


def test_ci_runs_the_tests_that_make_test_leaves_out() -> None:
    options = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]["addopts"]
    left_out = set(re.findall(r"not (\w+)", options[options.index("-m") + 1]))
    makefile, ci = (ROOT / "Makefile").read_text(), (ROOT / ".ci" / "run").read_text()
    found = re.findall(r"^(\S+):.*(?:\n\t.*)*?pytest -m \"?\(?(\w+)", makefile, re.MULTILINE)
    targets = {mark: target for target, mark in reversed(found)}
    assert "\nstage test\n" in ci
    missing = {mark for mark in left_out if not re.search(rf"^\s*stage {targets.get(mark)}$", ci, re.MULTILINE)}
    assert missing == NOT_IN_CI


def test_all_examples_of_property_tests_run_in_ci() -> None:
    """`make test` takes a quarter of them (tests/examples.py)."""
    makefile = (ROOT / "Makefile").read_text()
    assert re.search(
        r'^test-long:.*\n\tHYPOTHESIS_PROFILE=full .* pytest -m "\(long or hypothesis\) and not \(node or soak\)" ',
        makefile,
        re.MULTILINE,
    )


def test_each_test_that_needs_an_api_server_lies_in_a_folder_of_make_test_kube() -> None:
    """`make test` skips those that are marked, and `make test-kube` takes them alone."""
    (recipe,) = re.findall(r"^test-kube: setup-dev.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    folders = [ROOT / one for one in re.findall(r" (tests/\S+)(?=.*\$\(ARGS\))", recipe)]
    need = kubernetes.needed.kwargs["need"]
    assert f"""-m "needs(need='{need}')" """ in recipe
    marked = [path for path in (ROOT / "tests").rglob("test_*.py") if "apiserver.needed" in path.read_text()]
    marked.remove(Path(__file__))
    assert marked
    assert not [path for path in marked if not any(path.is_relative_to(folder) for folder in folders)]


def test_make_test_kube_lets_a_program_build_its_api_server(tmp_path: Path) -> None:
    """Where no folder is named. The tests may then be skipped for nothing that the build has."""
    script = Path("tests", "backends", "kubernetes", "testcluster", "assets.sh")
    built = tmp_path / "cache" / "oarlock-kube" / "bin"
    for folder in (script.parent, ".venv/bin", built):
        (tmp_path / folder).mkdir(parents=True)
    for name in ("Makefile", script):
        shutil.copy(ROOT / name, tmp_path / name)
    programs = {
        "cluster": f'test "$*" = assets && echo {built}',
        ".venv/bin/python": 'echo "$KUBEBUILDER_ASSETS: $TEST_NEEDS_MET"',
        **{str(built / name): "exit 1" for name in ("kube-apiserver", "kubelet")},
    }
    for name, body in programs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)
    ids = {"root": tmp_path / "root", "ann": tmp_path / "ann"}  # folders with a program `id`
    for folder, number in zip(ids.values(), (0, 1000), strict=True):
        folder.mkdir()
        (folder / "id").write_text(f"#!/bin/sh\necho {number}\n")
        (folder / "id").chmod(0o755)
    for name in ("pyproject.toml", "constraints.txt", ".venv/.setup-dev"):
        (tmp_path / name).touch()

    def make(user: str = "root", **env: str) -> subprocess.CompletedProcess[str]:
        path = f"{ids[user]}:{os.environ['PATH']}"
        names = ("KUBE", "TEST_", "MAKE", "MFLAGS")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(names)}
        return subprocess.run(
            ["make", "--silent", "test-kube", "envtest=/none"],
            cwd=tmp_path,
            env={**kept, "PATH": path, "XDG_CACHE_HOME": str(tmp_path / "cache"), **env},
            capture_output=True,
            text=True,
            check=False,
        )

    said = f"{built}: Kubernetes API server,custom objects,kube-scheduler,garbage collector\n"
    assert make(TEST_CLUSTER="./cluster").stdout == said
    assert make(KUBEBUILDER_ASSETS=str(built), TEST_CLUSTER="./cluster").stdout == said
    assert make(KUBEBUILDER_ASSETS="/none", TEST_CLUSTER="./cluster").returncode
    assert "There is no kube-apiserver" in make().stderr
    typo = make(TEST_CLUSTER="./clustre")
    assert (typo.returncode, "TEST_CLUSTER names no program: ./clustre" in typo.stderr) == (2, True)
    others = make(user="ann", TEST_CLUSTER="./cluster")  # the build installs packages
    assert (others.returncode, others.stdout, "Only root builds one" in others.stderr) == (2, "", True)
    assert make(user="ann", TEST_CLUSTER="./cluster", KUBEBUILDER_ASSETS=str(built)).stdout == said
