"""A file that only grows: after a sync that failed, no byte of that write is there, and the next write repairs it."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from oarlock.data import appending, durable


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> dict[str, bool]:
    """Whether the disk fails each sync, and each cut of a file."""
    fails = {"sync": False, "cut": False}
    sync, truncate = durable.sync, os.truncate

    def tried(what: str) -> None:
        if fails[what]:
            raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(durable, "sync", lambda fd: (tried("sync"), sync(fd)))
    monkeypatch.setattr(os, "truncate", lambda path, length: (tried("cut"), truncate(path, length)))
    return fails


def test_appended_lines_are_there_and_a_later_reader_goes_on(tmp_path: Path) -> None:
    file = appending.AppendOnly(tmp_path / "new" / "file")
    assert (file.length, file.append(b"")) == (0, 0)
    assert (file.append(b"one"), file.append(b"two")) == (3, 6)
    assert file.path.read_bytes() == b"onetwo"
    assert appending.AppendOnly(file.path).length == 6


@pytest.mark.parametrize("cut", [False, True])
def test_no_byte_of_a_write_that_failed_is_stored(tmp_path: Path, disk: dict[str, bool], cut: bool) -> None:
    """Where the disk does not even cut the file now, the next write cuts it first."""
    file = appending.AppendOnly(tmp_path / "file")
    file.append(b"one")
    disk.update(sync=True, cut=cut)
    with pytest.raises(OSError, match="Input/output error"):
        file.append(b"a long text")
    assert file.length == 3
    assert file.path.read_bytes() == (b"onea long text" if cut else b"one")
    disk.update(sync=False, cut=False)
    assert file.append(b"two") == 6
    assert file.path.read_bytes() == b"onetwo"


def test_nothing_is_written_behind_a_gap(tmp_path: Path) -> None:
    file = appending.AppendOnly(tmp_path / "file")
    file.append(b"one")
    file.path.write_bytes(b"o")
    assert file.remaining() == 1
    with pytest.raises(OSError, match="shorter than its stored length"):
        file.append(b"two")
    file.path.unlink()
    assert file.remaining() == 0
