"""A checkpoint is read as a whole, once for each state of its files, and never on the event loop."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.data.checkpoints.test_checkpoints import flip, save

from oarlock.data.checkpoints import checkpoints, verification
from oarlock.spec import errors


@pytest.fixture
def verifier() -> Iterator[verification.Verifier]:
    one = verification.Verifier()
    yield one
    one.close()


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the shards that were read, in order."""
    found: list[str] = []
    digest = verification.Verifier._digest

    def counted(self: verification.Verifier, path: Path) -> str:
        found.append(path.name)
        return digest(self, path)

    monkeypatch.setattr(verification.Verifier, "_digest", counted)
    return found


def aged(path: Path) -> Path:
    """As if its files had been written an hour ago."""
    for file in path.iterdir():
        os.utime(file, (file.stat().st_mtime - 3600,) * 2)
    return path


async def test_a_good_one_is_read_once(verifier: verification.Verifier, reads: list[str], tmp_path: Path) -> None:
    path = aged(save(tmp_path, 7))
    assert not verifier.knows(path)
    assert (await verifier.verify(path)).manifest.step == 7
    await verifier.verify(path)
    assert (reads, verifier.knows(path)) == (["rank-0.pt", "rank-1.pt"], True)
    await verifier.verify(path, fresh=True)
    assert len(reads) == 4


async def test_hard_links_to_files_that_were_read_are_not_read(
    verifier: verification.Verifier, reads: list[str], tmp_path: Path
) -> None:
    path = aged(save(tmp_path, 7))
    await verifier.verify(path)
    checkpoints.duplicate(path, tmp_path / "linked")
    await verifier.verify(tmp_path / "linked")
    assert len(reads) == 2


async def test_a_flipped_byte_is_found(verifier: verification.Verifier, tmp_path: Path) -> None:
    path = aged(save(tmp_path, 7))
    await verifier.verify(path)
    flip(path / "rank-1.pt")
    assert not verifier.knows(path)
    for _ in range(2):
        with pytest.raises(errors.InvalidInput, match=r"rank-1\.pt does not have the digest"):
            await verifier.verify(path)


async def test_where_time_and_size_do_not_tell_a_fresh_reading_does(
    verifier: verification.Verifier, tmp_path: Path
) -> None:
    path = aged(save(tmp_path, 7))
    await verifier.verify(path)
    before = (path / "rank-1.pt").stat()
    flip(path / "rank-1.pt")
    os.utime(path / "rank-1.pt", ns=(before.st_atime_ns, before.st_mtime_ns))
    assert verifier.knows(path)
    with pytest.raises(errors.InvalidInput, match=r"rank-1\.pt does not have the digest"):
        await verifier.verify(path, fresh=True)
    assert not verifier.knows(path)


async def test_one_that_was_written_just_now_is_not_remembered(verifier: verification.Verifier, tmp_path: Path) -> None:
    """It could be written once more in the same tick of the file system's clock."""
    path = save(tmp_path, 7)
    os.utime(path / "rank-0.pt", (time.time() + 3600,) * 2)
    await verifier.verify(path)
    assert not verifier.knows(path)


async def test_a_missing_file_does_not_hold(verifier: verification.Verifier, tmp_path: Path) -> None:
    path = save(tmp_path, 7)
    with pytest.raises(errors.NotFound):
        await verifier.verify(tmp_path / "missing" / "attempt-1-round-1-step-1")
    with pytest.raises(errors.InvalidInput, match="not the one that was reported"):
        await verifier.verify(path, "0" * 64)
    (tmp_path / "link").symlink_to(path)
    with pytest.raises(errors.InvalidInput, match="link"):
        await verifier.verify(tmp_path / "link")


async def test_two_that_ask_at_once_wait_for_one_reading(
    verifier: verification.Verifier, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = save(tmp_path, 7, ranks=1)
    go, begun, count = threading.Event(), threading.Event(), []
    digest = verification.Verifier._digest

    def held(self: verification.Verifier, path: Path) -> Any:
        count.append(path)
        begun.set()
        assert go.wait(60)
        return digest(self, path)

    monkeypatch.setattr(verification.Verifier, "_digest", held)
    first = asyncio.create_task(verifier.verify(path))
    await asyncio.to_thread(begun.wait, 60)
    second = asyncio.create_task(verifier.verify(path))
    first.cancel()  # an agent that lost its connection asks again, and the reading goes on
    await asyncio.sleep(0)
    go.set()
    assert (await second).manifest.step == 7
    assert len(count) == 1


async def test_the_end_of_the_server_cuts_a_reading_short(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    verifier = verification.Verifier()
    path = save(tmp_path, 7, ranks=1)
    monkeypatch.setattr(verification.checkpoints, "BLOCK_BYTES", 1)
    verifier._closing.set()
    with pytest.raises(errors.Unavailable):
        verifier._digest(path / "rank-0.pt")
    verifier.close()
    with pytest.raises(errors.Unavailable):
        await verifier.verify(path)


async def test_a_shard_that_the_disk_does_not_give_is_named(
    verifier: verification.Verifier, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = aged(save(tmp_path, 7))

    def digest(self: verification.Verifier, shard: Path) -> str:
        raise OSError(errno.EIO, "Input/output error", str(shard))

    monkeypatch.setattr(verification.Verifier, "_digest", digest)
    with pytest.raises(errors.InvalidInput) as caught:
        await verifier.verify(path)
    assert caught.value.message == (
        f"the checkpoint {path} is not valid: {path}/rank-0.pt cannot be read: Input/output error"
    )
    assert not verifier.knows(path)
