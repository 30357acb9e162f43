"""The files of checkpoints in the installation's object store, beside those of the server's home."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests import objectstores

from oarlock.data import jobfiles, storage
from oarlock.data.checkpoints import signing, storedfiles
from oarlock.spec import errors

JOB, NAME = "j-1", "attempt-1-round-1-step-10"
LISTED = [f"oarlock:checkpoints/{JOB}/{NAME}"]


@pytest.fixture
def files(tmp_path: Path, bucket: objectstores.Bucket, monkeypatch: pytest.MonkeyPatch) -> Iterator[storage.JobFiles]:
    for name, value in bucket.env.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "results" / JOB).mkdir(parents=True)
    (tmp_path / "results" / JOB / "model.pt").write_bytes(b"model")
    bucket.put(f"kept/{JOB}/{NAME}/a b%.pt", b"0123456789")
    bucket.put(f"kept/{JOB}/attempt-1-round-1-step-20/rank-0.pt", b"not whole yet")
    bucket.put(f"kept/j-2/{NAME}/rank-0.pt", b"of another job")
    with contextlib.closing(signing.SignedObjects(f"{bucket.url}/kept")) as objects:
        yield storedfiles.StoredJobFiles(jobfiles.DirectoryJobFiles(tmp_path), objects)


async def test_checkpoints_in_the_store_are_part_of_the_tree(files: storage.JobFiles) -> None:
    found = {one.path: one for one in await files.listing(JOB, LISTED)}
    assert list(found) == [f"checkpoints/{NAME}/a b%25.pt", "results/model.pt"]
    one = found[f"checkpoints/{NAME}/a b%25.pt"]
    assert one.bytes == 10
    assert one.version
    assert one.modified_at > 1.7e9
    assert [one.path for one in await files.listing(JOB)] == ["results/model.pt"]


async def test_an_object_is_read_in_parts(files: storage.JobFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storedfiles, "BLOCK_BYTES", 4)
    file = await files.open(JOB, f"checkpoints/{NAME}/a b%25.pt", LISTED)
    assert file.size_bytes == 10
    assert [await file.read(start, size) for start, size in ((0, 2), (2, 2), (4, 6), (1, 3))] == [
        b"01",
        b"23",
        b"456789",
        b"123",
    ]
    file.close()


async def test_an_object_that_has_changed_is_not_read_on(files: storage.JobFiles, bucket: objectstores.Bucket) -> None:
    file = await files.open(JOB, f"checkpoints/{NAME}/a b%25.pt", LISTED)
    bucket.put(f"kept/{JOB}/{NAME}/a b%.pt", b"9876543210")
    with pytest.raises(errors.Conflict):
        await file.read(0, 10)


@pytest.mark.parametrize(
    "key",
    [
        "checkpoints/attempt-1-round-1-step-20/rank-0.pt",
        f"checkpoints/{NAME}/absent.pt",
        f"checkpoints/{NAME}/%FF.pt",
        f"checkpoints/{NAME}",
        f"checkpoints/{NAME}/a b%25.pt/x",
    ],
)
async def test_only_objects_of_listed_checkpoints_are_opened(files: storage.JobFiles, key: str) -> None:
    with pytest.raises(errors.NotFound):
        await files.open(JOB, key, LISTED)


async def test_the_checkpoint_of_another_job_is_not_opened(files: storage.JobFiles) -> None:
    with pytest.raises(errors.NotFound):
        await files.open(JOB, f"checkpoints/{NAME}/rank-0.pt", [f"oarlock:checkpoints/j-2/{NAME}"])


async def test_files_of_the_home_are_opened_there(files: storage.JobFiles) -> None:
    file = await files.open(JOB, "results/model.pt", LISTED)
    assert await file.read(0, 5) == b"model"
    file.close()
