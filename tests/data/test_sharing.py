"""Several servers over one folder of logs and metrics: each stores and shows what agents have sent to the others."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import itertools
import random
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.data import test_durability as writers
from tests.data.metrics import test_metricfiles as rows

from oarlock.data import appending, durable, storage
from oarlock.data.logs import joblogs, logfiles, streams
from oarlock.data.metrics import metricfiles
from oarlock.spec import attempts, errors, tasklogs

W0 = attempts.TaskKey("j-1", 1, "worker", 0, 1)
W1 = attempts.TaskKey("j-1", 1, "worker", 1, 1)
ALL = storage.LogQuery(job="j-1")
PATIENCE_S = 60.0

LogPair = tuple[logfiles.DirectoryLogs, logfiles.DirectoryLogs]
MetricPair = tuple[metricfiles.DirectoryMetrics, metricfiles.DirectoryMetrics]


@pytest.fixture
def logs(tmp_path: Path) -> Iterator[LogPair]:
    made = tuple(logfiles.DirectoryLogs(tmp_path, shared=True) for _ in range(2))
    yield made  # type: ignore[misc]
    for one in made:
        one.close()


@pytest.fixture
def metrics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MetricPair]:
    monkeypatch.setattr(metricfiles, "CHUNK_BYTES", 2000)
    made = tuple(metricfiles.DirectoryMetrics(tmp_path, shared=True) for _ in range(2))
    yield made  # type: ignore[misc]
    for one in made:
        one.close()


async def texts(store: storage.Logs) -> list[str]:
    return [line.text async for line in store.read(ALL)]


class Follower:
    """A reader that follows the job at one server."""

    def __init__(self, store: storage.Logs) -> None:
        self.until = asyncio.Event()
        self.lines = asyncio.Queue[str]()
        self._store = store
        self._task = asyncio.create_task(self._follow())

    async def _follow(self) -> None:
        async for line in self._store.follow(ALL, until=self.until):
            self.lines.put_nowait(line.text)

    async def next(self) -> str:
        return await asyncio.wait_for(self.lines.get(), PATIENCE_S)

    async def rest(self) -> list[str]:
        """End it, and return the lines that were not taken yet."""
        self.until.set()
        await asyncio.wait_for(self._task, PATIENCE_S)
        return [self.lines.get_nowait() for _ in range(self.lines.qsize())]


class TestLogs:
    async def test_an_agent_alternates(self, logs: LogPair) -> None:
        """Its next request may reach either server, and neither sends it back to an older length."""
        text = [f"line {number}" for number in range(40)]
        at = 0
        for store, line in zip(itertools.cycle(logs), text, strict=False):
            at = await store.append(W0, "stdout.0", at, f"{line}\n".encode(), at=1.0)
        for store in logs:
            assert await store.length(W0, "stdout.0") == at
            assert await texts(store) == text
            assert (await store.page(ALL, "end", before=1, after=0)).lines[0].text == "line 39"
            assert (await store.search(ALL, "start", tasklogs.LogSearch(text="line 3"), limit=1)).hits == 11
            assert store.shortages(W0) == {}

    async def test_a_doubled_request_is_stored_once(self, logs: LogPair) -> None:
        """The agent had no answer from the first server, and sends the bytes to the other one."""
        one, other = logs
        await one.append(W0, "stdout.0", 0, b"one\n", at=1.0)
        with pytest.raises(errors.OffsetMismatch) as caught:
            await other.append(W0, "stdout.0", 0, b"one\n", at=1.0)
        assert caught.value.length == 4

    async def test_a_follower_at_the_other_server(self, logs: LogPair) -> None:
        """It sees the lines of a stream that it knows, and those of one that begins later."""
        one, other = logs
        await one.append(W0, "stdout.0", 0, b"one\n", at=1.0)
        follower = Follower(other)
        assert await follower.next() == "one"
        await one.append(W0, "stdout.0", 4, b"two\n", at=2.0)
        assert await follower.next() == "two"
        await one.append(W1, "stderr.0", 0, b"three\n", at=3.0)
        assert await follower.next() == "three"
        await other.append(W0, "stdout.0", 8, b"four\n", at=4.0)
        await one.append(W1, "stderr.0", 6, b"five\n", at=5.0)
        assert await follower.rest() == ["four", "five"]

    async def test_what_arrived_before_the_end(self, logs: LogPair, monkeypatch: pytest.MonkeyPatch) -> None:
        """The follower does not wait for its next look when the job ends."""
        monkeypatch.setattr(logfiles, "LOOK_S", 3600.0)
        one, other = logs
        await one.append(W0, "stdout.0", 0, b"one\n", at=1.0)
        follower = Follower(other)
        assert await follower.next() == "one"
        await one.append(W0, "stdout.0", 4, b"two\n", at=2.0)
        await one.append(W1, "stdout.0", 0, b"three\n", at=3.0)
        assert await follower.rest() == ["two", "three"]

    async def test_times_do_not_go_back(self, logs: LogPair) -> None:
        """The clock of the second server is late: `--since` needs times that grow."""
        one, other = logs
        at = 0
        for number in range(6):
            store, clock = (one, 100.0) if number % 2 else (other, 50.0)
            at = await store.append(W0, "stdout.0", at, b"%d\n" % number, at=clock + number)
        lines = [line async for line in one.read(ALL)]
        assert [line.text for line in lines] == list("012345")
        assert [line.at for line in lines] == sorted(line.at for line in lines)
        assert [line.at for line in lines if int(line.text) % 2] == [101.0, 103.0, 105.0]

    async def test_a_cut_file_is_noticed_by_each_server(self, logs: LogPair, tmp_path: Path) -> None:
        one, other = logs
        text = b"one\ntwo\nthree\n"
        await one.append(W0, "stdout.0", 0, text, at=1.0)
        await other.length(W0, "stdout.0")
        (path,) = tmp_path.rglob("stdout.0.log")
        path.write_bytes(text[:4])
        for store in logs:
            assert await texts(store) == ["one", streams.MISSING.format(len(text) - 4)]
        assert await other.append(W0, "stdout.0", 4, text[4:], at=2.0) == len(text)
        for store in logs:
            assert await texts(store) == ["one", "two", "three"]
            assert store.shortages(W0) == {}
        assert not list(tmp_path.rglob("*.lost"))

    async def test_a_job_that_another_server_deletes(self, logs: LogPair, tmp_path: Path) -> None:
        """A follower that is on its way sees no gap, and brings no folder back."""
        one, other = logs
        await one.append(W0, "stdout.0", 0, b"one\n", at=1.0)
        follower = Follower(other)
        assert await follower.next() == "one"
        await one.forget("j-1")
        assert await follower.rest() == []
        assert list(tmp_path.iterdir()) == []

    async def test_a_server_that_hangs_in_a_write(self, logs: LogPair, monkeypatch: pytest.MonkeyPatch) -> None:
        """The agent is asked to try again, readers go on with the other streams, and nothing of the write is shown."""
        one, other = logs
        await one.append(W0, "stdout.0", 0, b"one\n", at=1.0)
        await one.append(W1, "stdout.0", 0, b"other\n", at=1.0)
        assert await texts(other) == ["one", "other"]
        hangs, goes_on, plain = threading.Event(), threading.Event(), appending.write_at

        def write_at(fd: int, data: bytes, offset: int) -> None:
            plain(fd, data, offset)
            hangs.set()
            assert goes_on.wait(PATIENCE_S)

        with monkeypatch.context() as slow:
            slow.setattr(appending, "write_at", write_at)
            writing = asyncio.create_task(one.append(W0, "stdout.0", 4, b"two\n", at=2.0))
            assert await asyncio.to_thread(hangs.wait, PATIENCE_S)
        with pytest.raises(errors.Unavailable, match="another server has not finished") as caught:
            await other.append(W0, "stdout.0", 4, b"two\n", at=2.0)
        assert "try again" in caught.value.hint
        await other.append(W1, "stdout.0", 6, b"goes on\n", at=2.0)
        assert await texts(other) == ["one", "other", "goes on"]
        goes_on.set()
        assert await writing == 8
        assert await texts(other) == ["one", "other", "two", "goes on"]

    async def test_readers_at_the_same_time(
        self, logs: LogPair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Each sees all that the other server has stored, whichever of them looks: at first, and at the end."""
        one, other = logs
        at = await one.append(W0, "stdout.0", 0, b"one\ntwo\n", at=1.0)
        plain = durable.sync

        def sync(fd: int) -> None:
            time.sleep(0.05)
            plain(fd)

        monkeypatch.setattr(durable, "sync", sync)
        assert await asyncio.gather(*(texts(other) for _ in range(3))) == [["one", "two"]] * 3
        followers = [Follower(other) for _ in range(3)]
        for follower in followers:
            assert [await follower.next(), await follower.next()] == ["one", "two"]
        monkeypatch.setattr(logfiles, "LOOK_S", 3600.0)
        await one.append(W0, "stdout.0", at, b"three\n", at=2.0)
        assert await asyncio.gather(*(follower.rest() for follower in followers)) == [["three"]] * 3
        with contextlib.closing(logfiles.DirectoryLogs(tmp_path)) as started:
            page, found = await asyncio.gather(
                started.page(ALL, "end", before=9, after=0),
                started.search(ALL, "start", tasklogs.LogSearch(text="t"), limit=1),
            )
        assert (len(page.lines), found.hits) == (3, 2)

    async def test_a_server_that_starts_while_another_one_hangs(self, logs: LogPair, tmp_path: Path) -> None:
        """It does not know yet what is stored, and must not say that nothing is."""
        one, other = logs
        await one.append(W0, "stdout.0", 0, b"one\n", at=1.0)
        (path,) = tmp_path.rglob("stdout.0.log")
        with path.open("r+b") as locked:
            fcntl.flock(locked, fcntl.LOCK_EX)
            for asked in (texts(other), other.length(W0, "stdout.0"), other.page(ALL, "end", before=1, after=0)):
                with pytest.raises(errors.Unavailable, match="log could not be read: another server"):
                    await asked
        assert await texts(other) == ["one"]

    async def test_a_quota_counts_all_servers(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(joblogs, "RECOUNT_S", 0.0)
        with contextlib.ExitStack() as stack:
            made = [logfiles.DirectoryLogs(tmp_path, quota_bytes=10, shared=True) for _ in range(2)]
            for one in made:
                stack.callback(one.close)
            await made[0].append(W0, "stdout.0", 0, b"12345", at=1.0)
            await made[1].append(W1, "stdout.0", 0, b"12345", at=1.0)
            with pytest.raises(errors.TooLarge):
                await made[0].append(W0, "stdout.0", 5, b"6", at=1.0)


class TestMetrics:
    async def test_an_agent_alternates(self, metrics: MetricPair) -> None:
        """Also where one server makes a chunk of the bytes, and the other one does not know of it yet."""
        text = rows.walk(range(300))
        at, chance = 0, random.Random(5)
        while at < len(text):
            piece = text[at : at + chance.randrange(1, 700)]
            at = await chance.choice(metrics).append(W0, 0, at, piece)
            (found,) = rows.plain(await chance.choice(metrics).series("j-1", points=1000)).values() or ([],)
            assert found == [(step, float(step)) for step in range(len(found))]
        for store in metrics:
            assert rows.plain(await store.series("j-1", points=1000)) == {
                "worker-0/0/loss": [(step, float(step)) for step in range(300)]
            }
            assert await store.names("j-1") == ["loss"]

    async def test_news_of_what_the_other_server_stores(self, metrics: MetricPair) -> None:
        one, other = metrics
        reader = rows.Reader(other)
        assert await reader.read() == {}
        at = await one.append(W0, 0, 0, rows.walk(range(2)))
        assert await reader.read() == {"worker-0/0/loss": [(0, 0.0), (1, 1.0)]}
        assert await reader.read() == {}
        await one.append(W0, 0, at, rows.row(1, 2, 2.0))
        assert await reader.read() == {"worker-0/0/loss": [(2, 2.0)]}
        await one.append(W1, 3, 0, rows.walk(range(1)))
        assert await reader.read() == {"worker-1/3/loss": [(0, 0.0)]}

    async def test_a_server_that_hangs_while_it_makes_a_chunk(
        self, metrics: MetricPair, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The bytes of the other server would go into the file that the chunk replaces."""
        one, other = metrics
        at = await one.append(W0, 0, 0, rows.walk(range(50)))
        hangs, goes_on, plain = threading.Event(), threading.Event(), durable.write

        def write(path: Path, data: bytes) -> None:
            hangs.set()
            assert goes_on.wait(PATIENCE_S)
            plain(path, data)

        more = b"".join(rows.row(1, step, float(step)) for step in range(50, 90))
        with monkeypatch.context() as slow:
            slow.setattr(durable, "write", write)
            writing = asyncio.create_task(one.append(W0, 0, at, more))
            assert await asyncio.to_thread(hangs.wait, PATIENCE_S)
        with pytest.raises(errors.Unavailable, match="another server has not finished"):
            await other.append(W0, 0, at + len(more), rows.row(1, 90, 90.0))
        with pytest.raises(errors.Unavailable, match="metrics could not be read: another server"):
            await other.series("j-1")
        goes_on.set()
        at = await writing
        await other.append(W0, 0, at, rows.row(1, 90, 90.0))
        assert rows.plain(await one.series("j-1")) == {"worker-0/0/loss": [(step, float(step)) for step in range(91)]}

    async def test_a_quota_counts_all_servers(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Also where each has opened all streams, and then the other one stores more."""
        monkeypatch.setattr(metricfiles, "RECOUNT_S", 0.0)
        text = rows.walk(range(10))
        with contextlib.ExitStack() as stack:
            made = [metricfiles.DirectoryMetrics(tmp_path, quota_bytes=2 * len(text), shared=True) for _ in range(2)]
            for one in made:
                stack.callback(one.close)
            await made[0].append(W0, 0, 0, text)
            await made[1].append(W1, 0, 0, text[:40])
            assert len(await made[0].series("j-1")) == len(await made[1].series("j-1"))
            await made[1].append(W1, 0, 40, text[40:])
            with pytest.raises(errors.TooLarge):
                await made[0].append(W0, 0, len(text), rows.row(1, 10, 1.0))

    async def test_a_job_that_another_server_deletes(self, metrics: MetricPair, tmp_path: Path) -> None:
        one, other = metrics
        await one.append(W0, 0, 0, rows.walk(range(2)))
        assert await other.names("j-1") == ["loss"]
        await one.forget("j-1")
        assert await other.series("j-1") == []
        assert list(tmp_path.iterdir()) == []


TWO_LOG_WRITERS = """
async def main():
    store = logfiles.DirectoryLogs(root, shared=True)
    at = 0
    while True:
        size = 1 + at * 7919 % 500
        text = b"".join(b"%015d\\n" % line for line in range(at // 16, (at + size) // 16 + 1))
        piece = text[at % 16 : at % 16 + size]
        try:
            at = await store.append(W0, "stdout.0", at, piece, at=float(at))
            say(at)
        except errors.OffsetMismatch as error:
            at = error.length
asyncio.run(main())
"""

TWO_METRIC_WRITERS = """
async def main():
    metricfiles.CHUNK_BYTES = 3000
    store = metricfiles.DirectoryMetrics(root, shared=True)
    at, head, size = 0, len(rows.schema(1, "loss")), len(rows.row(1, 0, 0.0))
    while True:
        text = rows.walk(range(max(0, at - head) // size + 3))
        try:
            at = await store.append(W0, 0, at, text[at:])
            say(at)
        except errors.OffsetMismatch as error:
            at = error.length
asyncio.run(main())
"""


def race(program: str, root: Path, chance: random.Random) -> int:
    """Let two processes append to one stream; kill one of them, then the other. Return the last acknowledged length."""
    told = [0]
    with writers.child(program, root) as one, writers.child(program, root) as other:
        for process, count in ((one, chance.randrange(20, 60)), (other, chance.randrange(20, 60))):
            assert process.stdout is not None
            for _ in range(count):
                told.append(int(process.stdout.readline()))
            process.send_signal(signal.SIGKILL)
            told += map(int, process.stdout.read().split())
    return max(told)


async def test_two_processes_append_to_a_log_and_are_killed(tmp_path: Path) -> None:
    """A follower in a third process sees each line once."""
    reader = logfiles.DirectoryLogs(tmp_path, shared=True)
    chance = random.Random(3)
    (tmp_path / "j-1").mkdir()
    follower = Follower(reader)
    told = 0
    for _ in range(3):
        told = max(told, await asyncio.to_thread(race, TWO_LOG_WRITERS, tmp_path, chance))
    seen = "".join(await follower.rest())
    length = await reader.length(W0, "stdout.0")
    whole = b"".join(b"%015d\n" % line for line in range(length // 16 + 1))[:length]
    assert length >= told > 0
    assert (await reader_bytes(tmp_path)) == whole
    assert seen == whole.decode().replace("\n", "")
    reader.close()


async def reader_bytes(root: Path) -> bytes:
    (path,) = root.rglob("stdout.0.log")
    return await asyncio.to_thread(path.read_bytes)


async def test_two_processes_append_to_metrics_and_are_killed(tmp_path: Path) -> None:
    chance = random.Random(4)
    head, size = len(rows.schema(1, "loss")), len(rows.row(1, 0, 0.0))
    reader = metricfiles.DirectoryMetrics(tmp_path, shared=True)
    for _ in range(3):
        told = await asyncio.to_thread(race, TWO_METRIC_WRITERS, tmp_path, chance)
        (found,) = await reader.series("j-1", points=1_000_000)
        assert len(found.points) >= (told - head) // size
        assert [(point.step, point.value) for point in found.points] == [(n, float(n)) for n in range(found.count)]
    reader.close()
    assert any(path.stat().st_size for path in tmp_path.rglob("chunks"))
