"""Acknowledged bytes survive a killed server, a disk that lies and a disk that is full."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import random
import signal
import stat
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from tests import needs
from tests.data.metrics import test_metricfiles as rows

from oarlock.data import durable, storage
from oarlock.data.logs import logfiles
from oarlock.data.metrics import metricfiles
from oarlock.data.snapshots import blobs, snapshots
from oarlock.spec import attempts, errors

W0 = attempts.TaskKey("j-1", 1, "worker", 0, 1)

PREAMBLE = """
import asyncio, itertools, sys
from pathlib import Path
from oarlock.data.logs import logfiles
from oarlock.data.metrics import metricfiles
from oarlock.data import storage
from oarlock.spec import attempts, errors
from tests.data.metrics import test_metricfiles as rows
root, W0 = Path(sys.argv[1]), attempts.TaskKey("j-1", 1, "worker", 0, 1)
def say(*words):
    print(*words, flush=True)
"""

LOG_WRITER = """
async def main():
    store = logfiles.DirectoryLogs(root)
    at = await store.length(W0, "stdout.0")
    for number in itertools.count():
        # Pieces of any size of one endless text. Its bytes follow from their offset.
        size = 1 + (number * 7919 + at) % 5000
        text = b"".join(b"%015d\\n" % line for line in range(at // 16, (at + size) // 16 + 1))
        piece = text[at % 16 : at % 16 + size]
        at = await store.append(W0, "stdout.0", at, piece, at=float(number))
        say(at)
asyncio.run(main())
"""

METRIC_WRITER = """
async def main():
    metricfiles.CHUNK_BYTES = 3000
    store = metricfiles.DirectoryMetrics(root)
    try:
        at = await store.append(W0, 0, 0, b"")
    except errors.OffsetMismatch as error:
        at = error.length
    head = len(rows.schema(1, "loss"))
    size = len(rows.row(1, 0, 0.0))
    for number in itertools.count():
        last = max(0, at - head) // size + number % 40 + 1
        text = rows.walk(range(last + 1))
        at = await store.append(W0, 0, at, text[at:])
        say(at)
asyncio.run(main())
"""


def child(program: str, *arguments: object, prefix: tuple[str, ...] = ()) -> subprocess.Popen[str]:
    path = [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path))}
    return subprocess.Popen(
        [*prefix, sys.executable, "-c", PREAMBLE + program, *map(str, arguments)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
    )  # fmt: skip


def killed_after(program: str, root: Path, acknowledgements: int) -> int:
    """Run a writer, kill -9 it some time after so many acknowledgements; the last length that it told."""
    with child(program, root) as writer:
        assert writer.stdout is not None
        told = [int(writer.stdout.readline()) for _ in range(acknowledgements)]
        writer.send_signal(signal.SIGKILL)
        told += map(int, writer.stdout.read().split())
    return told[-1]


@pytest.mark.long
async def test_killed_while_logs_are_appended(tmp_path: Path) -> None:
    chance = random.Random(11)
    for _ in range(8):
        told = killed_after(LOG_WRITER, tmp_path, chance.randrange(1, 60))
        store = logfiles.DirectoryLogs(tmp_path)
        length = await store.length(W0, "stdout.0")
        assert length >= told
        found = b"".join(
            [line.text.encode() + b"\n" * (not line.partial) async for line in store.read(storage.LogQuery(job="j-1"))]
        )
        store.close()
        assert found == b"".join(b"%015d\n" % line for line in range(length // 16 + 1))[:length]


async def test_killed_while_metrics_are_appended(tmp_path: Path) -> None:
    chance = random.Random(12)
    head, size = len(rows.schema(1, "loss")), len(rows.row(1, 0, 0.0))
    for _ in range(6):
        told = killed_after(METRIC_WRITER, tmp_path, chance.randrange(1, 40))
        store = metricfiles.DirectoryMetrics(tmp_path)
        (found,) = await store.series("j-1", points=1_000_000)
        store.close()
        assert len(found.points) >= (told - head) // size
        assert [(point.step, point.value) for point in found.points] == [(n, float(n)) for n in range(found.count)]
    assert any(path.stat().st_size for path in tmp_path.rglob("chunks"))


FAILING_SYNC = """
async def main():
    store = logfiles.DirectoryLogs(root, writers=1)
    say(await store.append(W0, "stdout.0", 0, b"one\\n", at=1))
    try:
        await store.append(W0, "stdout.0", 4, b"lost\\n", at=2)
    except errors.Unavailable as error:
        say("refused:", error.message)
    say(await store.length(W0, "stdout.0"), (next(root.rglob("*.log"))).stat().st_size)
    say(await store.append(W0, "stdout.0", 4, b"two\\n", at=3))
    say([line.text async for line in store.read(storage.LogQuery(job="j-1"))])
asyncio.run(main())
"""


def test_a_sync_that_fails_is_no_acknowledgement(tmp_path: Path) -> None:
    trace = (
        "strace",
        "-f",
        "-qq",
        "-o",
        "/dev/null",
        "-e",
        "trace=fdatasync",
        "-e",
        "inject=fdatasync:error=EIO:when=2",
    )
    with child(FAILING_SYNC, tmp_path, prefix=trace) as writer:
        out, err = writer.communicate(timeout=280)
    if "ptrace" in err:
        needs.skip("tracing", err.strip())
    assert out.splitlines() == [
        "4",
        "refused: the log could not be stored: Input/output error",
        "4 4",
        "8",
        "['one', 'two']",
    ], err


async def test_bytes_that_could_not_be_cut_back_are_cut_before_anything_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sync fails, and so does the cut that should undo it: the next append, though shorter, leaves no old bytes."""

    def failing(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    store = logfiles.DirectoryLogs(tmp_path)
    await store.append(W0, "stdout.0", 0, b"one\n", at=1)
    with monkeypatch.context() as broken:
        broken.setattr(durable, "sync", failing)
        broken.setattr(os, "ftruncate", failing)
        with pytest.raises(errors.Unavailable):
            await store.append(W0, "stdout.0", 4, b"lost and long\n", at=2)
    await store.append(W0, "stdout.0", 4, b"two\n", at=3)
    store.close()
    again = logfiles.DirectoryLogs(tmp_path)
    assert [line.text async for line in again.read(storage.LogQuery(job="j-1"))] == ["one", "two"]
    again.close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one megabyte."""
    with needs.small_disk(tmp_path / "disk", "1m") as place:
        yield place


async def test_a_full_disk_and_logs(small_disk: Path) -> None:
    store = logfiles.DirectoryLogs(small_disk)
    await store.append(W0, "stdout.0", 0, b"kept\n", at=1)
    with pytest.raises(errors.Unavailable, match="No space left") as caught:
        await store.append(W0, "stdout.0", 5, b"x" * (2 << 20), at=2)
    assert "free some space" in caught.value.hint
    assert await store.length(W0, "stdout.0") == 5
    assert await store.append(W0, "stdout.0", 5, b"goes on\n", at=3) == 13
    assert [line.text async for line in store.read(storage.LogQuery(job="j-1"))] == ["kept", "goes on"]
    store.close()


@pytest.mark.parametrize("restart", [False, True])
async def test_a_full_disk_and_metrics(small_disk: Path, restart: bool) -> None:
    """Full at every page around a compaction: while the raw bytes, the chunk or the next raw file are written."""
    text = rows.walk(range(40_000))
    stages = set()
    for free in range(240, 284, 4):
        store = metricfiles.DirectoryMetrics(small_disk)
        (small_disk / "filler").write_bytes(b"x" * ((1024 - 16 - free) << 10))
        at = await sent_until_full(store, text, stages)
        (small_disk / "filler").unlink()
        if restart:
            store.close()
            store = metricfiles.DirectoryMetrics(small_disk)
        while at < 600_000:
            at = await store.append(W0, 0, at, text[at : at + 7_000])
        (found,) = await store.series("j-1", points=100_000)
        assert [point.step for point in found.points] == list(range(found.count))
        assert found.count == (at - len(rows.schema(1, "loss"))) // 31
        await store.forget("j-1")
        store.close()
    assert stages == {True, False}  # full before a chunk was made, and after


async def sent_until_full(store: metricfiles.DirectoryMetrics, text: bytes, stages: set[bool]) -> int:
    at = 0
    while at < 400_000:
        try:
            at = await store.append(W0, 0, at, text[at : at + 7_000])
        except errors.Unavailable:
            stages.add(at > metricfiles.CHUNK_BYTES)
            break
    return at


async def test_a_full_disk_and_blobs(small_disk: Path) -> None:
    async def large() -> AsyncIterator[bytes]:
        for _ in range(4):
            yield b"x" * (1 << 20)

    store = blobs.DirectoryBlobs(small_disk)
    digest = "sha256:" + hashlib.sha256(b"x" * (4 << 20)).hexdigest()
    with pytest.raises(errors.Unavailable, match="No space left"):
        await store.put(digest, large(), limit_bytes=1 << 30)
    assert not [path for path in small_disk.rglob("*") if path.is_file()]


def test_a_full_disk_and_snapshots(small_disk: Path, tmp_path: Path) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (code / "noise").write_bytes(os.urandom(2 << 20))
    with pytest.raises(errors.Unavailable, match="No space left"):
        snapshots.pack(code, small_disk / "cache")
    assert not [path for path in small_disk.rglob("*") if path.is_file()]


async def test_an_upload_is_not_there_before_it_is_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The order of the protocol: bytes synced, renamed, folder synced, acknowledged."""
    store = blobs.DirectoryBlobs(tmp_path)
    digest = "sha256:" + hashlib.sha256(b"x").hexdigest()
    seen = []
    sync, replace = os.fsync, Path.replace

    def noted_sync(fd: int) -> None:
        seen.append("sync folder" if stat.S_ISDIR(os.fstat(fd).st_mode) else "sync file")
        sync(fd)

    def noted_replace(path: Path, target: Path) -> Path:
        seen.append("rename")
        return replace(path, target)

    async def one() -> AsyncIterator[bytes]:
        await asyncio.sleep(0)
        seen.clear()
        yield b"x"

    monkeypatch.setattr(os, "fsync", noted_sync)
    monkeypatch.setattr(Path, "replace", noted_replace)
    await store.put(digest, one(), limit_bytes=10)
    assert seen == ["sync file", "rename", "sync folder"]
