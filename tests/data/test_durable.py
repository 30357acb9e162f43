"""The file with which the server tries its disk: it is whole, and it does not stay."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from oarlock.data import durable
from oarlock.spec import errors


def test_a_disk_is_tried_with_a_whole_file_that_does_not_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[tuple[Path, int]] = []
    really = os.fsync

    def fsync(fd: int) -> None:
        path = Path(f"/proc/self/fd/{fd}").readlink()
        if path.is_file() and tmp_path in path.parents:
            synced.append((path.parent, path.stat().st_size))
        really(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    durable.probe(tmp_path / "home")
    assert synced == [(tmp_path / "home", durable.PROBED_BYTES)]
    assert list((tmp_path / "home").iterdir()) == []


def test_a_place_that_takes_no_file_is_said(tmp_path: Path) -> None:
    (tmp_path / "home").touch()
    with pytest.raises(errors.Unavailable, match="a test file could not be stored"):
        durable.probe(tmp_path / "home" / "below")
