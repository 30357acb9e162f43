"""A file that only grows: after a sync that failed, no byte of that write is there, and the next write repairs it."""

from __future__ import annotations

import errno
import os
import threading
import time
from pathlib import Path

import pytest

from oarlock.data import appending, durable


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> dict[str, bool]:
    """Whether the disk fails each sync, and each cut of a file."""
    fails = {"sync": False, "cut": False}
    sync, truncate = durable.sync, os.ftruncate

    def tried(what: str) -> None:
        if fails[what]:
            raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(durable, "sync", lambda fd: (tried("sync"), sync(fd)))
    monkeypatch.setattr(os, "ftruncate", lambda fd, length: (tried("cut"), truncate(fd, length)))
    return fails


def append(file: appending.AppendOnly, data: bytes) -> int:
    """Append as a server does: it looks first at what others have appended."""
    with file.locked(create=True, wait_s=0.0):
        file.settle()
        return file.append(data)


def test_appended_lines_are_there_and_a_later_reader_goes_on(tmp_path: Path) -> None:
    file = appending.AppendOnly(tmp_path / "new" / "file")
    assert (file.length, file.size()) == (0, 0)
    with file.locked():
        file.settle()
    assert not file.path.exists(), "nothing was appended"
    assert (append(file, b"one"), append(file, b"two")) == (3, 6)
    assert file.path.read_bytes() == b"onetwo"
    assert append(appending.AppendOnly(file.path), b"") == 6


def test_two_servers_append_in_turns(tmp_path: Path) -> None:
    """Each of them goes on behind what the other one has written, and neither overwrites it."""
    one, other = (appending.AppendOnly(tmp_path / "file") for _ in range(2))
    assert [append(file, b"%d" % number) for number, file in enumerate((one, other, other, one))] == [1, 2, 3, 4]
    assert one.path.read_bytes() == b"0123"


def test_a_server_that_writes_keeps_others_out(tmp_path: Path) -> None:
    one, other = (appending.AppendOnly(tmp_path / "file") for _ in range(2))
    with one.locked(create=True):
        one.append(b"one")
        with pytest.raises(BlockingIOError, match="another server has not finished"):
            append(other, b"two")
    assert append(other, b"two") == 6


def test_a_file_that_is_deleted_under_the_lock_is_made_anew(tmp_path: Path) -> None:
    """A server that waits for the lock of a job's file, while another one deletes the job."""
    one, other = (appending.AppendOnly(tmp_path / "file") for _ in range(2))
    append(one, b"one")
    waits = threading.Thread(target=lambda: _append_later(other))
    with one.locked():
        waits.start()
        while not _waits_for(other):
            time.sleep(0.001)
        one.path.unlink()
    waits.join()
    assert one.path.read_bytes() == b"two"


def _waits_for(file: appending.AppendOnly) -> bool:
    """Return whether this process has the file open twice: one of them has the lock, the other one waits for it."""
    opened = [place.readlink() for place in Path("/proc/self/fd").iterdir() if place.exists()]
    return opened.count(file.path) == 2


def _append_later(file: appending.AppendOnly) -> None:
    with file.locked(create=True, wait_s=60.0):
        file.settle()
        file.append(b"two")


@pytest.mark.parametrize("cut", [False, True])
def test_no_byte_of_a_write_that_failed_is_stored(tmp_path: Path, disk: dict[str, bool], cut: bool) -> None:
    """Where the disk does not even cut the file now, the next write cuts it first. No other server sees these bytes."""
    file, other = (appending.AppendOnly(tmp_path / "file") for _ in range(2))
    append(file, b"one")
    disk.update(sync=True, cut=cut)
    with pytest.raises(OSError, match="Input/output error"):
        append(file, b"a long text")
    assert file.length == 3
    assert file.path.read_bytes() == (b"onea long text" if cut else b"one")
    disk.update(sync=False, cut=False)
    with pytest.raises(BlockingIOError):
        append(other, b"not now")
    assert append(file, b"two") == 6
    assert file.path.read_bytes() == b"onetwo"
    assert append(other, b"three") == 11


def test_the_bytes_of_a_server_that_has_died_count(tmp_path: Path, disk: dict[str, bool]) -> None:
    """It could not cut them back: after its end the file's length counts, once that is on the disk."""
    file, other = (appending.AppendOnly(tmp_path / "file") for _ in range(2))
    append(file, b"one")
    disk.update(sync=True, cut=True)
    with pytest.raises(OSError, match="Input/output error"):
        append(file, b"two")
    del file
    with pytest.raises(OSError, match="Input/output error"):
        append(other, b"three")
    disk.update(sync=False, cut=False)
    assert append(other, b"three") == 11


def test_nothing_is_written_behind_a_gap(tmp_path: Path) -> None:
    file = appending.AppendOnly(tmp_path / "file")
    append(file, b"one")
    file.path.write_bytes(b"o")
    assert file.size() == 1
    with file.locked(), pytest.raises(OSError, match="shorter than its stored length"):
        file.append(b"two")
    file.path.unlink()
    assert file.size() == 0
