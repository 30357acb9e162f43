"""Blobs are there as a whole or not at all."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from oarlock.data import storage
from oarlock.data.snapshots import blobs
from oarlock.spec import errors


def digest(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


async def sent(*chunks: bytes) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk


async def cut_off(*chunks: bytes) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk
    raise ConnectionResetError("the client went away")


def files(root: Path) -> list[Path]:
    return [path for path in root.rglob("*") if path.is_file()]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "blobs"


@pytest.fixture
def store(root: Path) -> storage.Blobs:
    return blobs.DirectoryBlobs(root)


async def test_a_blob_that_was_put_is_there(store: storage.Blobs) -> None:
    data = os.urandom(3 << 20)
    assert not await store.has(digest(data))
    assert await store.put(digest(data), sent(data[: 1 << 20], b"", data[1 << 20 :]), limit_bytes=1 << 30) == len(data)
    assert await store.has(digest(data))
    assert store.path(digest(data)).read_bytes() == data
    assert await store.put(digest(data), sent(data), limit_bytes=1 << 30) == len(data)


async def test_nothing_is_a_blob_too(store: storage.Blobs) -> None:
    assert await store.put(digest(b""), sent(), limit_bytes=10) == 0
    assert store.path(digest(b"")).read_bytes() == b""


async def test_a_wrong_digest_leaves_nothing(store: storage.Blobs, root: Path) -> None:
    with pytest.raises(errors.InvalidInput, match="digest"):
        await store.put(digest(b"hello"), sent(b"hell"), limit_bytes=10)
    assert not await store.has(digest(b"hello"))
    assert files(root) == []


async def test_a_cut_upload_leaves_nothing(store: storage.Blobs, root: Path) -> None:
    with pytest.raises((ConnectionResetError, errors.Unavailable)):
        await store.put(digest(b"hello"), cut_off(b"hell"), limit_bytes=10)
    assert files(root) == []


async def test_over_the_limit(store: storage.Blobs, root: Path) -> None:
    with pytest.raises(errors.TooLarge):
        await store.put(digest(b"hello"), sent(b"hel", b"lo"), limit_bytes=4)
    assert files(root) == []


@pytest.mark.parametrize(
    "name",
    ["", "sha256:", "sha256:" + "A" * 64, "sha256:../" + "a" * 61, "md5:" + "a" * 64, "sha256:" + "a" * 64 + "\n"],
)
async def test_a_digest_is_never_a_path(store: storage.Blobs, name: str) -> None:
    with pytest.raises(errors.InvalidInput) as caught:
        store.path(name)
    assert caught.value.path == "digest"
    with pytest.raises(errors.InvalidInput):
        await store.has(name)
    with pytest.raises(errors.InvalidInput):
        await store.put(name, sent(b""), limit_bytes=1)


async def test_a_missing_blob(store: storage.Blobs) -> None:
    with pytest.raises(errors.NotFound):
        store.path(digest(b"?"))


async def test_a_sweep_spares_blobs_that_are_kept_young_or_asked_for(store: storage.Blobs, root: Path) -> None:
    assert await store.sweep(set(), time.time()) == 0
    names = [digest(str(number).encode()) for number in range(4)]
    for number, name in enumerate(names):
        await store.put(name, sent(str(number).encode()), limit_bytes=10)
    kept, old, asked, young = names
    for name in (kept, old, asked):
        os.utime(store.path(name), (1, 1))
    abandoned = root / "drafts" / ".x.tmp"
    abandoned.write_bytes(b"half")
    os.utime(abandoned, (1, 1))
    assert await store.has(asked)
    assert await store.sweep({kept}, time.time() - 60) == 1
    assert [await store.has(name) for name in (kept, old, asked, young)] == [True, False, True, True]
    assert not abandoned.exists()
