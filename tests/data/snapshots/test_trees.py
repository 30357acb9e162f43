"""Links within the tree of a snapshot: those that stay in it are followed, and the others are refused with advice."""

from __future__ import annotations

from pathlib import Path

import pytest

from oarlock.data.snapshots import snapshots, trees
from oarlock.spec import errors


@pytest.mark.parametrize("name", ["code", "code ", "code\t"])
def test_a_link_to_a_file_inside_is_packed(tmp_path: Path, name: str) -> None:
    root = tmp_path / name
    root.mkdir()
    (root / "file").write_text("x")
    (root / "link").symlink_to(root / "file")
    assert [entry.path for entry in trees.walk(root).entries] == [b"file", b"link"]


def test_every_file_is_inside_the_root_of_the_file_system() -> None:
    trees.Walker(b"/", None)._check_inside(b"x", b"/etc")


@pytest.mark.parametrize("target", ["codes", "."])
def test_a_link_that_leaves_the_directory_is_refused_with_advice(tmp_path: Path, target: str) -> None:
    """A folder with a name that only begins alike is outside too."""
    for name in ("code", "codes"):
        (tmp_path / name).mkdir()
    outside = tmp_path / target
    (tmp_path / "code" / "link").symlink_to(outside)
    with pytest.raises(errors.InvalidInput) as caught:
        trees.walk(tmp_path / "code")
    assert caught.value.message == f"link is a link to {outside}, outside of the packed directory"
    assert caught.value.hint == (
        "copy the target here, name it under `data:` in the job file, or add /link to .oarlockignore"
    )
    assert caught.value.path == "link"


def test_a_cache_that_takes_no_archive_is_said(tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "cache").touch()
    with pytest.raises(errors.Unavailable, match="the snapshot could not be stored"):
        snapshots.pack(tmp_path / "code", tmp_path / "cache")
