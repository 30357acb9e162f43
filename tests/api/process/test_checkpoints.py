"""Paths of checkpoints come from tasks: a missing one is not good, and not an error of ours."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.data.checkpoints.test_checkpoints import flip, save
from tests.data.checkpoints.test_verification import aged

from oarlock.api.process import checkpoints
from oarlock.spec import errors, jobs


@pytest.fixture
def directories(tmp_path: Path) -> Iterator[checkpoints.CheckpointDirectories]:
    found = checkpoints.CheckpointDirectories(tmp_path)
    yield found
    found.close()


def at(path: str) -> jobs.Checkpoint:
    return jobs.Checkpoint(job="j", step=1, attempt=1, round=1, path=path, manifest_sha256="", bytes=1, at=1.0)


@pytest.mark.parametrize(
    "path",
    ["s3://bucket/attempt-1-round-1-step-1", "relative", "/none/here", f"/{'x' * 300}/y", "/a\0b/c", "/proc/self/mem"],
)
async def test_a_checkpoint_that_does_not_lie_here_is_not_good(
    directories: checkpoints.CheckpointDirectories, path: str
) -> None:
    assert not await directories.good(at(path))
    assert await directories.known([at(path)]) == set()
    with pytest.raises((errors.NotFound, errors.InvalidInput)):
        await directories.verify(path, "")
    await directories.delete(at(path))


async def test_a_checkpoint_without_a_manifest_is_gone_and_not_good(
    directories: checkpoints.CheckpointDirectories, tmp_path: Path
) -> None:
    one = at(str(tmp_path / "attempt-1-round-1-step-1"))
    assert not await directories.good(one)
    assert await directories.gone([one]) == {one.path}
    unmounted = at(str(tmp_path / "j" / "attempt-1-round-1-step-1"))
    assert await directories.gone([unmounted]) == set(), "its place may come back"


async def test_a_good_one_is_known_until_a_byte_of_it_is_flipped(
    directories: checkpoints.CheckpointDirectories, tmp_path: Path
) -> None:
    one = at(str(aged(save(tmp_path / "j", 7))))
    assert await directories.good(one)
    assert (await directories.known([one]), await directories.gone([one])) == ({one.path}, set())
    flip(Path(one.path) / "rank-1.pt")
    assert await directories.known([one]) == set()
    assert not await directories.good(one)
