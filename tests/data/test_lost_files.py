"""Files that are deleted or cut under a running server: acknowledged lines are asked for again, or named as lost.

Never are there NUL bytes where lines were.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.data.metrics import test_metricfiles as rows

from oarlock.data import storage
from oarlock.data.logs import logfiles, streams
from oarlock.data.metrics import metricfiles
from oarlock.spec import attempts, errors

W0 = attempts.TaskKey("j-1", 1, "worker", 0, 1)
ALL = storage.LogQuery(job="j-1")
TEXT = b"one\ntwo\nthree\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "logs"


@pytest.fixture
def store(root: Path) -> Iterator[logfiles.DirectoryLogs]:
    made = logfiles.DirectoryLogs(root)
    yield made
    made.close()


def delete(root: Path) -> int:
    for path in root.rglob("stdout.0.log"):
        path.unlink()
    return 0


def delete_all(root: Path) -> int:
    shutil.rmtree(root)
    return 0


def cut(root: Path) -> int:
    for path in root.rglob("stdout.0.log"):
        os.truncate(path, 6)
    return 6


HARMS = (delete, delete_all, cut)


async def shown(store: storage.Logs) -> list[str]:
    return [line.text async for line in store.read(ALL)]


async def refused_at(store: storage.Logs, offset: int) -> int:
    with pytest.raises(errors.OffsetMismatch) as caught:
        await store.append(W0, "stdout.0", offset, b"four\n", at=2)
    return caught.value.length


@pytest.mark.parametrize("harm", HARMS)
async def test_the_next_append_is_told_where_to_go_on(store: logfiles.DirectoryLogs, root: Path, harm) -> None:
    length = await store.append(W0, "stdout.0", 0, TEXT, at=1)
    left = harm(root)
    assert await refused_at(store, length) == left
    assert store.shortages(W0) == {"stdout.0": storage.Shortage(left, length - left)}
    assert await store.append(W0, "stdout.0", left, TEXT[left:], at=3) == length
    assert store.shortages(W0) == {}
    assert await store.append(W0, "stdout.0", length, b"four\n", at=4) == length + 5
    assert await shown(store) == ["one", "two", "three", "four"]
    (path,) = root.rglob("stdout.0.log")
    assert path.read_bytes() == TEXT + b"four\n"
    assert not list(root.rglob("*.lost"))


@pytest.mark.parametrize("harm", HARMS)
async def test_a_reader_is_told_of_the_missing_lines(store: logfiles.DirectoryLogs, root: Path, harm) -> None:
    await store.append(W0, "stdout.0", 0, TEXT, at=1)
    left = harm(root)
    *before, last = await shown(store)
    assert "\n".join(before).encode() == TEXT[:left].rstrip(b"\n")
    assert last == streams.MISSING.format(len(TEXT) - left)
    assert store.shortages(W0) == {"stdout.0": storage.Shortage(left, len(TEXT) - left)}, "its agent is asked again"


async def test_a_follower_sees_the_lines_once_and_in_the_end_the_gap(store: logfiles.DirectoryLogs, root: Path) -> None:
    await store.append(W0, "stdout.0", 0, TEXT, at=1)
    until, found = asyncio.Event(), asyncio.Queue[str]()

    async def follow() -> None:
        async for line in store.follow(ALL, until=until):
            await found.put(line.text)

    following = asyncio.create_task(follow())
    assert [await found.get() for _ in range(3)] == ["one", "two", "three"]
    delete(root)
    assert await refused_at(store, len(TEXT)) == 0
    await store.append(W0, "stdout.0", 0, TEXT + b"four\n", at=2)
    assert await found.get() == "four"
    cut(root)
    until.set()
    await following
    assert [found.get_nowait() for _ in range(found.qsize())] == [streams.MISSING.format(len(TEXT) + 5 - 6)]


async def test_the_next_server_knows_the_missing_bytes(store: logfiles.DirectoryLogs, root: Path) -> None:
    await store.append(W0, "stdout.0", 0, TEXT, at=1)
    delete(root)
    assert await store.length(W0, "stdout.0") == 0
    store.close()
    later = logfiles.DirectoryLogs(root)
    assert await shown(later) == [streams.MISSING.format(len(TEXT))]
    assert later.shortages(W0) == {"stdout.0": storage.Shortage(0, len(TEXT))}
    await later.append(W0, "stdout.0", 0, TEXT, at=2)
    assert await shown(later) == ["one", "two", "three"]
    later.close()


async def test_logs_that_were_forgotten_are_not_missed(store: logfiles.DirectoryLogs, root: Path) -> None:
    await store.append(W0, "stdout.0", 0, TEXT, at=1)
    job = store._jobs.get("j-1")
    stream = job.stream(W0, "stdout.0")
    await store.forget("j-1")
    assert stream.length() == 0, "a reader that was on its way"
    assert store.shortages(W0) == {}
    assert not list(root.rglob("*"))


@pytest.mark.parametrize("which", ["raw-*", "chunks", "*"])
async def test_metrics_go_on_where_they_are_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, which: str) -> None:
    monkeypatch.setattr(metricfiles, "CHUNK_BYTES", 2000)
    store = metricfiles.DirectoryMetrics(tmp_path)
    text = rows.walk(range(200))
    at = 0
    for place in range(0, len(text), 1500):
        at = await store.append(W0, 0, at, text[place : place + 1500])
    for path in tmp_path.rglob(f"process-0/{which}"):
        path.unlink()
    more = rows.walk(range(210))
    with pytest.raises(errors.OffsetMismatch) as caught:
        await store.append(W0, 0, at, more[at:])
    assert caught.value.length < at
    await store.append(W0, 0, caught.value.length, more[caught.value.length :])
    (series,) = await store.series("j-1", points=1000)
    store.close()
    assert [point.step for point in series.points] == list(range(210))
