"""docs/images.md lists every image that deploy/images/build makes, with the versions that constraints.txt names."""

from __future__ import annotations

import re

import pytest
from tests.documentation import blocks

from oarlock.spec import roles

FRAMEWORKS = blocks.ROOT / "deploy" / "images" / "frameworks"
PAGE = (blocks.ROOT / "docs" / "images.md").read_text()


def normal(package: str) -> str:
    return re.sub(r"[-_.]+", "-", package).lower()


def pinned() -> dict[str, str]:
    text = (blocks.ROOT / "constraints.txt").read_text()
    return {normal(name): version for name, version in re.findall(r"^([\w.-]+)==(\S+)", text, re.MULTILINE)}


def row(image: str) -> dict[str, str]:
    """Return the packages of the image's row, with their versions."""
    found = re.search(rf"^\| `{image}` \| ([^|]*) \| \d+ MB \| \d+ MB \|$", PAGE, re.MULTILINE)
    assert found, f"docs/images.md has no row of {image}"
    packages = (one.split(" ") for one in found[1].split(", "))
    return {normal(name): version for name, version in packages}


@pytest.mark.parametrize("image", sorted(file.stem for file in FRAMEWORKS.glob("*.txt")))
def test_an_image_is_listed_with_the_versions_of_a_build(image: str) -> None:
    listed, versions = row(image), pinned()
    wanted = {normal(re.split("[=<>]", line)[0]) for line in (FRAMEWORKS / f"{image}.txt").read_text().split()}
    assert wanted <= listed.keys()
    other = {name: told for name, told in listed.items() if told.partition("+")[0] != versions.get(name)}
    assert not other, "constraints.txt has other versions: build the image again, and mend its row"


@pytest.mark.parametrize("framework", roles.Framework)
def test_every_framework_has_its_line_in_the_table_of_images(framework: roles.Framework) -> None:
    lines = re.findall(rf"^\| [^|]*`{framework}`[^|]* \| (.*) \|$", PAGE.partition("## Which job")[2], re.MULTILINE)
    assert len(lines) == 1
    for image in re.findall(r"`([a-z-]+)`", lines[0]):
        assert (FRAMEWORKS / f"{image}.txt").exists(), image
