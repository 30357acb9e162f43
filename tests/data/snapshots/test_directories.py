"""The identity of a directory: the one that is meant, and not another one under the same path."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from oarlock.data.snapshots import directories
from oarlock.spec import errors


def test_the_identity_is_that_of_the_directory_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "boot").write_text("one-boot\n")
    monkeypatch.setattr(directories, "BOOT_ID", tmp_path / "boot")
    (tmp_path / "code").mkdir()
    (tmp_path / "link").symlink_to("code")
    found = directories.identity(tmp_path / "link")
    info = (tmp_path / "code").stat()
    assert (found.directory, found.machine, found.user) == (str(tmp_path / "code"), "one-boot", os.getuid())
    assert (found.device, found.inode) == (info.st_dev, info.st_ino)
    monkeypatch.setattr(directories, "BOOT_ID", tmp_path / "none")
    assert directories.identity(tmp_path).machine == ""


def test_a_path_that_is_not_a_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(errors.InvalidInput) as caught:
        directories.identity(tmp_path / "file")
    assert caught.value.message == f"{tmp_path}/file is not a directory"
    assert (caught.value.path, caught.value.hint) == ("--dir", "Name the code's directory.")
    with pytest.raises(errors.InvalidInput, match="is not a directory: No such file"):
        directories.identity(tmp_path / "none")
