"""The tree of a job's files: their keys, and that only stored, regular files are in it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from oarlock.data import jobfiles
from oarlock.spec import errors

FILES = {
    "files/j-1/worker-0/attempt-1/old": "files of an earlier life",
    "files/j-1/worker-0/attempt-2/ckpt.pt": "kept",
    "files/j-1/worker-0/attempt-2/deep/er/x": "deep",
    "files/j-1/worker-0/attempt-2/.x.0123456789ab.tmp": "a draft",
    "files/j-1/worker-0/strange/x": "not a life",
    "files/j-1/Strange/attempt-1/x": "not a task",
    "files/j-2/worker-0/attempt-1/x": "another job's",
    "results/j-1/model.pt": "result",
    "checkpoints/j-1/step-50/shard-0.pt": "shard",
    "checkpoints/j-1/step-60/shard-0.pt": "not listed by its job",
    "logs/j-1/1/worker-3/1/stdout.0.log": "log",
    "logs/j-1/1/worker-3/2/stdout.0.log": "later",
}

KEYS = {
    "checkpoints/step-50/shard-0.pt": "shard",
    "earlier/attempt-1/worker-0/old": "files of an earlier life",
    "files/worker-0/ckpt.pt": "kept",
    "files/worker-0/deep/er/x": "deep",
    "logs/attempt-1-incarnation-2/worker-3/stdout.0": "later",
    "logs/attempt-1/worker-3/stdout.0": "log",
    "results/model.pt": "result",
}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "results/j-1/link").symlink_to(tmp_path / "files/j-2/worker-0/attempt-1/x")
    os.mkfifo(tmp_path / "results/j-1/pipe")
    return tmp_path


def saved(home: Path) -> list[str]:
    return [str(home / "checkpoints/j-1/step-50"), "/etc", str(home / "checkpoints/j-1/..")]


async def test_the_files_of_a_job_have_keys_by_their_kind(home: Path) -> None:
    found = await jobfiles.DirectoryJobFiles(home).listing("j-1", saved(home))
    assert {one.path: one.bytes for one in found} == {key: len(text) for key, text in KEYS.items()}
    assert [one.path for one in found] == sorted(KEYS)


@pytest.mark.parametrize("key", KEYS)
async def test_each_is_read_by_its_key(home: Path, key: str) -> None:
    files = jobfiles.DirectoryJobFiles(home)
    found = await files.open("j-1", key, saved(home))
    try:
        assert found.size_bytes == len(KEYS[key])
        assert await found.read(0, 100) == KEYS[key].encode()
        listed = {one.path: one.version for one in await files.listing("j-1", saved(home))}
        assert found.version == listed[key]
    finally:
        found.close()


@pytest.mark.parametrize(
    "key", ["results/link", "results/pipe", "results", "results/none", "checkpoints/step-60/shard-0.pt", "other/x"]
)
async def test_nothing_else_is_read(home: Path, key: str) -> None:
    with pytest.raises(errors.NotFound, match="there is no file"):
        await jobfiles.DirectoryJobFiles(home).open("j-1", key, saved(home))
