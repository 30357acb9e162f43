"""Files that tasks send: an impossible file is refused for good, and the disk keeps its reserve."""

from __future__ import annotations

import errno
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from oarlock.data import durable, receivedfiles
from oarlock.spec import attempts, errors

TASK = attempts.TaskKey("j-1", 1, "worker", 0, 0)
GIB = 1 << 30


async def of(*pieces: bytes) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


async def nothing() -> None:
    pass


def files_in(home: Path) -> dict[str, bytes]:
    return {path.relative_to(home).as_posix(): path.read_bytes() for path in home.rglob("*") if path.is_file()}


async def test_a_file_where_another_needs_a_folder_is_a_conflict(tmp_path: Path) -> None:
    received = receivedfiles.DirectoryReceivedFiles(tmp_path)
    assert await received.put(TASK, "results/j-1/a/b", of(b"1", b"2"), nothing) == 2
    for path in ("results/j-1/a/b/c", "results/j-1/a/b/c/d", "results/j-1/a"):
        with pytest.raises(errors.Conflict, match="cannot be stored"):
            await received.put(TASK, path, of(b"3"), nothing)
    assert files_in(tmp_path) == {"results/j-1/a/b": b"12"}


@pytest.mark.parametrize("path", ["n" * 300, f"{'n' * 300}/x"])
async def test_a_name_that_is_too_long_is_a_conflict(tmp_path: Path, path: str) -> None:
    received = receivedfiles.DirectoryReceivedFiles(tmp_path)
    with pytest.raises(errors.Conflict, match="cannot be stored"):
        await received.put(TASK, f"results/j-1/{path}", of(b"3"), nothing)
    assert files_in(tmp_path) == {}


@pytest.mark.parametrize("name", ["n" * 255, "\U0001d11e" * 63, os.fsdecode(b"\xff" * 255)])
def test_the_temporary_name_is_short_where_the_name_is_as_long_as_can_be(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    durable.write(path, b"1")
    assert files_in(tmp_path)[name] == b"1"
    assert len(os.fsencode(durable.temporary(path).name)) < 100


def test_a_failure_that_may_pass_stays_one_to_repeat(tmp_path: Path) -> None:
    full = durable.failure(OSError(errno.ENOSPC, "No space left on device"), "it", tmp_path)
    assert isinstance(full, errors.Unavailable)


async def test_the_reserve_of_the_disk_is_kept(tmp_path: Path) -> None:
    """On a large disk it is fixed, on a small one a part of it, and a file that begins above it may not go below."""
    total, free = 100 * GIB, GIB
    received = receivedfiles.DirectoryReceivedFiles(tmp_path, lambda _: (total, total - free, free))
    assert await received.put(TASK, "results/j-1/empty", of(), nothing) == 0
    with pytest.raises(errors.TooLarge, match="its disk has 1024 MiB free, and 1024 MiB of them are reserved"):
        await received.put(TASK, "results/j-1/x", of(b"1"), nothing)
    total = 10 * GIB
    assert await received.put(TASK, "results/j-1/x", of(b"1"), nothing) == 1
    assert files_in(tmp_path) == {"results/j-1/empty": b"", "results/j-1/x": b"1"}


async def test_a_disk_below_its_reserve_is_noticed_before_the_body(tmp_path: Path) -> None:
    received = receivedfiles.DirectoryReceivedFiles(tmp_path, lambda _: (100 * GIB, 100 * GIB, 0))
    asked = []

    async def body() -> AsyncIterator[bytes]:
        asked.append(1)
        yield b"1"

    with pytest.raises(errors.TooLarge):
        await received.put(TASK, "results/j-1/x", body(), nothing)
    assert not asked
    assert files_in(tmp_path) == {}


async def test_a_task_that_is_over_when_its_file_is_here_changes_nothing(tmp_path: Path) -> None:
    received = receivedfiles.DirectoryReceivedFiles(tmp_path)
    await received.put(TASK, "results/j-1/x", of(b"old"), nothing)

    async def over() -> None:
        raise errors.StaleTask("it is over")

    with pytest.raises(errors.StaleTask):
        await received.put(TASK, "results/j-1/x", of(b"new"), over)
    assert files_in(tmp_path) == {"results/j-1/x": b"old"}


async def test_a_file_that_would_reach_into_the_reserve_is_refused(tmp_path: Path) -> None:
    """The reserve of a disk of 10 GiB is 512 MiB, and only one byte above it is free."""
    free = (GIB >> 1) + 1
    received = receivedfiles.DirectoryReceivedFiles(tmp_path, lambda _: (10 * GIB, 0, free))
    assert await received.put(TASK, "results/j-1/x", of(b"1"), nothing) == 1
    with pytest.raises(errors.TooLarge):
        await received.put(TASK, "results/j-1/y", of(b"12"), nothing)
    assert files_in(tmp_path) == {"results/j-1/x": b"1"}


@pytest.mark.parametrize(
    "path",
    ["results/j-2/x", "results/j-1", "other/j-1/x", "files/j-1/worker-1/attempt-1/x", "files/j-1/worker-0/attempt-1"],
)
async def test_a_place_of_another_task_is_refused(tmp_path: Path, path: str) -> None:
    with pytest.raises(errors.InvalidInput, match="is not a place of this task's files") as caught:
        await receivedfiles.DirectoryReceivedFiles(tmp_path).put(TASK, path, of(b"1"), nothing)
    assert caught.value.path == "path"


async def test_earlier_lives_of_a_task_make_room(tmp_path: Path) -> None:
    """Those of the task alone, and not its present life."""
    received = receivedfiles.DirectoryReceivedFiles(tmp_path)
    tasks = [attempts.TaskKey("j-1", attempt, "worker", index, 1) for attempt, index in ((1, 0), (2, 0), (1, 1))]
    for task in tasks:
        await received.put(task, f"files/j-1/worker-{task.index}/{task.life}/x", of(b"12345"), nothing)
    assert await received.delete_older(tasks[1], 5, 1) == []
    assert await received.delete_older(tasks[1], 4, 1) == [tasks[0].life]
    assert files_in(tmp_path) == {
        f"files/j-1/worker-0/{tasks[1].life}/x": b"12345",
        f"files/j-1/worker-1/{tasks[2].life}/x": b"12345",
    }
