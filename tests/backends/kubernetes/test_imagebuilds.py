"""The builders of `deploy/images`: Debian's packages come from the base's sources, or all of them from one snapshot."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
from tests.backends.kubernetes.testcluster import rights

IMAGES = rights.DEPLOY / "images"
DOCKERFILES = (rights.DEPLOY.parent / "Dockerfile", IMAGES / "frameworks" / "Dockerfile")
SNAPSHOT = "20261101T000000Z"
INSTALL = "install --yes --no-install-recommends python3 openssl"
LISTS = """
deb [check-valid-until=no signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] \
http://snapshot.debian.org/archive/debian/20261101T000000Z bookworm main
deb [check-valid-until=no signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] \
http://snapshot.debian.org/archive/debian/20261101T000000Z bookworm-updates main
deb [check-valid-until=no signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] \
http://snapshot.debian.org/archive/debian-security/20261101T000000Z bookworm-security main
"""
APT = """#!/bin/sh
echo "$@" >>{said}
for word; do
    case $word in Dir::Etc::SourceList=*) cat "${{word#*=}}" >>{lists} ;; esac
done
"""


class Builder:
    """A shell in which the programs of a build are stand-ins that note how they were called."""

    def __init__(self, folder: Path) -> None:
        self.said, self.lists, self.bin = folder / "said", folder / "lists", folder / "bin"
        self.bin.mkdir()
        for file in (self.said, self.lists):
            file.touch()
        self._stand_in("apt-get", APT.format(said=self.said, lists=self.lists))
        self._stand_in("buildah", f'#!/bin/sh\nprintf "%s\\n" "$@" >{self.said}\n')

    def _stand_in(self, name: str, text: str) -> None:
        (self.bin / name).write_text(text)
        (self.bin / name).chmod(0o755)

    def run(self, *command: str, **env: str) -> subprocess.CompletedProcess[str]:
        there = {**os.environ, "PATH": f"{self.bin}{os.pathsep}{os.environ['PATH']}", **env}
        return subprocess.run(command, env=there, capture_output=True, text=True, check=False)

    def installs(self, snapshot: str) -> subprocess.CompletedProcess[str]:
        return self.run("sh", str(IMAGES / "packages.sh"), snapshot, "python3", "openssl")


@pytest.fixture
def builder(tmp_path: Path) -> Builder:
    return Builder(tmp_path)


def test_the_packages_of_a_snapshot_have_no_other_source(builder: Builder) -> None:
    """Twice the same text, whatever the base has as its own sources."""
    for _ in range(2):
        done = builder.installs(SNAPSHOT)
        assert done.returncode == 0, done.stderr
    calls = builder.said.read_text().splitlines()
    assert [re.sub(r"SourceList=\S+", "SourceList=FILE", call) for call in calls] == [
        f"-o Dir::Etc::SourceList=FILE -o Dir::Etc::SourceParts=- {verb}" for verb in ("update", INSTALL)
    ] * 2
    assert builder.lists.read_text() == LISTS.lstrip() * 4


def test_without_a_snapshot_the_sources_are_those_of_the_base(builder: Builder) -> None:
    assert builder.installs("").returncode == 0
    assert builder.said.read_text().splitlines() == ["update", INSTALL]
    assert builder.lists.read_text() == ""


@pytest.mark.parametrize("snapshot", ["20261101", "2026-11-01", "today", f"{SNAPSHOT}/../x", f"{SNAPSHOT} x"])
def test_a_time_that_no_snapshot_can_have_installs_nothing(builder: Builder, snapshot: str) -> None:
    done = builder.installs(snapshot)
    assert (done.returncode, builder.said.read_text()) == (2, "")
    assert f"SNAPSHOT={snapshot} is not a time of snapshot.debian.org. Write it as" in done.stderr


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=["server", "frameworks"])
def test_every_stage_that_installs_packages_takes_the_snapshot(dockerfile: Path) -> None:
    """An argument is unknown in a stage that does not declare it, and its value is empty there."""
    _, *stages = re.split(r"^FROM ", dockerfile.read_text(), flags=re.MULTILINE)
    assert len(stages) == 2
    for stage in stages:
        declared, found, then = stage.partition("\nARG SNAPSHOT\n")
        assert found
        assert "packages.sh" not in declared
        assert 'RUN sh /tmp/packages.sh "$SNAPSHOT" ' in then
        assert not re.search(r"\bapt(-get)? ", stage)


@pytest.mark.parametrize("image", ["server", *sorted(file.stem for file in (IMAGES / "frameworks").glob("*.txt"))])
@pytest.mark.parametrize("snapshot", ["", SNAPSHOT])
def test_the_builder_of_each_image_hands_the_snapshot_on(builder: Builder, image: str, snapshot: str) -> None:
    env = {"SNAPSHOT": snapshot} if snapshot else {}
    done = builder.run(str(IMAGES / "build"), image, "registry.example/it:1", "--quiet", **env)
    assert done.returncode == 0, done.stderr
    words = builder.said.read_text().splitlines()
    assert words[: words.index("--timestamp") + 2] == ["bud", "--timestamp", "0"]
    assert f"SNAPSHOT={snapshot}" in words
    assert words[-4:] == ["-t", "registry.example/it:1", "--quiet", "."]
    assert [word for word in words if word.endswith("Dockerfile")] == [
        "Dockerfile" if image == "server" else "deploy/images/frameworks/Dockerfile"
    ]


def test_only_the_image_of_tensorboards_has_a_user_of_its_own(builder: Builder) -> None:
    """Images are made over those for jobs, with more packages: that takes root."""
    given = {}
    for image in sorted(file.stem for file in (IMAGES / "frameworks").glob("*.txt")):
        assert builder.run(str(IMAGES / "build"), image, "registry.example/it:1").returncode == 0
        given[image] = [word for word in builder.said.read_text().splitlines() if word.startswith("RUN_AS=")]
    assert {image: users for image, users in given.items() if users} == {"tensorboard": ["RUN_AS=10001:10001"]}
    assert DOCKERFILES[1].read_text().endswith("\nARG RUN_AS=0\nUSER $RUN_AS\n")
