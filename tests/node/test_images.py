"""docs/images.md says what is in each image, and an image is the same wherever and whenever it is built."""

from __future__ import annotations

import json
import os
import re
import subprocess
from typing import Any

import pytest
from tests.documentation import blocks
from tests.node import conftest

pytestmark = pytest.mark.node

PAGE = blocks.ROOT / "docs" / "images.md"
FRAMEWORKS = blocks.ROOT / "deploy" / "images" / "frameworks"
IMAGES = {"server": "oarlock", "torch-cpu": "torch-cpu", "tensorboard": "tensorboard"}
"""By name in deploy/images, the image of the tests."""
TOLERANCE = 0.1
"""Debian mends its packages from day to day."""


def facts(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((conftest.KEPT / f"{IMAGES[name]}.json").read_text())
    return found


def megabytes(size: float) -> str:
    return f"{size / 1e6:.0f} MB"


def listed(name: str) -> tuple[str, str, str]:
    """Return the image's packages and sizes (compressed, unpacked) on the page."""
    row = re.search(rf"^\| `{name}` \| ([^|]*) \| (\d+ MB) \| (\d+ MB) \|$", PAGE.read_text(), re.MULTILINE)
    assert row, f"docs/images.md has no row of {name}"
    return row[1], row[2], row[3]


@pytest.mark.parametrize("name", IMAGES)
def test_the_page_has_the_contents_and_the_sizes_of_the_build(name: str) -> None:
    found = facts(name)
    packages = ", ".join(found["packages"])
    row = f"| `{name}` | {packages} | {megabytes(found['compressed'])} | {megabytes(found['unpacked'])} |"
    if os.environ.get("UPDATE_GOLDEN"):
        PAGE.write_text(re.sub(rf"^\| `{name}` \|.*$", row, PAGE.read_text(), flags=re.MULTILINE))
    said, *sizes = listed(name)
    assert said == packages, f"the row of the build is\n{row}"
    for size, built in zip(sizes, (found["compressed"], found["unpacked"]), strict=True):
        assert float(size.split()[0]) * 1e6 == pytest.approx(built, rel=TOLERANCE), f"the row of the build is\n{row}"


@pytest.mark.parametrize(
    ("name", "user"), [("server", "10001:10001"), ("torch-cpu", "0"), ("tensorboard", "10001:10001")]
)
def test_an_image_that_no_other_is_made_over_is_not_roots(name: str, user: str) -> None:
    """Pods name their user themselves. More is installed over the image of torch by root."""
    assert facts(name)["user"] == user


def built_again(name: str) -> str:
    """Build the image from a fresh copy of the tree; return its id."""
    script = str(blocks.ROOT / "tests" / "node" / "images.sh")
    again = subprocess.run([script, "again", name, str(conftest.KEPT)], capture_output=True, text=True, check=False)
    assert again.returncode == 0, again.stderr
    return again.stdout.strip().removeprefix("sha256:")


@pytest.mark.long
@pytest.mark.parametrize("name", ["server", *sorted(file.stem for file in FRAMEWORKS.glob("*.txt"))])
def test_two_builds_of_an_image_are_equal(name: str) -> None:
    """From another folder, at another time.

    Debian mends its packages from day to day: an image that was kept from an earlier run may have others. Then two
    builds of this run are compared, as they are for an image that no other test uses.
    """
    again = built_again(name)
    if name not in IMAGES or again != facts(name)["id"]:
        assert built_again(name) == again
