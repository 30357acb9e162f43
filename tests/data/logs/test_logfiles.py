"""The contract of Logs: acknowledged lines are there, once and in order; and how they are read."""

from __future__ import annotations

import asyncio
import os
import random
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests import examples

from oarlock.data import storage
from oarlock.data.logs import cursors, logfiles, reading
from oarlock.spec import attempts, errors, tasklogs

W0 = attempts.TaskKey("j-1", 1, "worker", 0, 1)
W1 = attempts.TaskKey("j-1", 1, "worker", 1, 1)
LATER = attempts.TaskKey("j-1", 2, "worker", 0, 1)
ALL = storage.LogQuery(job="j-1")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "logs"


@pytest.fixture
def store(root: Path) -> Iterator[logfiles.DirectoryLogs]:
    made = logfiles.DirectoryLogs(root)
    yield made
    made.close()


async def add(
    store: storage.Logs, key: attempts.TaskKey, text: str | bytes, at: float, stream: str = "stdout.0"
) -> int:
    data = text.encode() if isinstance(text, str) else text
    return await store.append(key, stream, await store.length(key, stream), data, at=at)


async def texts(lines: AsyncIterator[tasklogs.Line]) -> list[str]:
    return [line.text async for line in lines]


async def test_bytes_go_on_at_the_stored_length(store: storage.Logs) -> None:
    assert await store.length(W0, "stdout.0") == 0
    assert await store.append(W0, "stdout.0", 0, b"one\ntw", at=1) == 6
    for wrong in (0, 5, 7):
        with pytest.raises(errors.OffsetMismatch) as caught:
            await store.append(W0, "stdout.0", wrong, b"x", at=2)
        assert caught.value.length == 6
    assert await store.append(W0, "stdout.0", 6, b"o\n", at=3) == 8
    assert await store.append(W0, "stdout.0", 8, b"", at=3) == 8
    lines = [line async for line in store.read(ALL)]
    told = [(line.text, line.offset, line.at, line.partial) for line in lines]
    assert told == [("one", 0, 1, False), ("two", 4, 3, False)]
    assert lines[0].task == "worker-0"
    assert (lines[0].attempt, lines[0].incarnation, lines[0].stream) == (1, 1, "stdout.0")


async def test_streams_are_merged_by_arrival(store: storage.Logs) -> None:
    await add(store, W0, "a1\na2\n", 1)
    await add(store, W1, "b1\n", 2)
    await add(store, W0, "e1\n", 3, "stderr.0")
    await add(store, W0, "a3\n", 4)
    await add(store, LATER, "c1\n", 5)
    assert await texts(store.read(ALL)) == ["a1", "a2", "b1", "e1", "a3", "c1"]
    assert [(one.key, one.stream, one.length) for one in await store.streams("j-1")] == [
        (W0, "stderr.0", 3),
        (W0, "stdout.0", 9),
        (W1, "stdout.0", 3),
        (LATER, "stdout.0", 3),
    ]


async def test_a_little_of_each_stream_is_read_at_a_time(store: storage.Logs, monkeypatch: pytest.MonkeyPatch) -> None:
    """A gang of a thousand is read line by line, not a block of each task's text at once; long lines come whole."""
    monkeypatch.setattr(cursors, "GATHERED_BYTES", 100_000)
    monkeypatch.setattr(reading, "BATCH_LINES", 100)
    expected = []
    for index in range(20):
        key = attempts.TaskKey("j-1", 1, "worker", index, 1)
        long = "x" * (20_000 + index)
        own = [f"{index} {number}" for number in range(5000)]
        text = [*own[:2500], long, *own[2500:]]
        await add(store, key, "\n".join(text) + "\n", index)
        expected += text
    counted = 0
    plain = cursors.read

    def read(path: Path, offset: int, size: int) -> bytes:
        nonlocal counted
        found = plain(path, offset, size)
        counted += len(found)
        return found

    monkeypatch.setattr(cursors, "read", read)
    lines = store.read(ALL)
    assert (await anext(lines)).text == expected[0]
    assert counted <= 20 * cursors.LEAST_BLOCK_BYTES, "of each stream the first block"
    assert await texts(lines) == expected[1:]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({"attempt": 2}, ["c1"]),
        ({"index": 1}, ["b1", "b2"]),
        ({"role": "ps"}, []),
        ({"role": "worker", "index": 0}, ["a1", "a2", "a3", "c1"]),
        ({"tail": 0}, []),
        ({"tail": 1}, ["c1"]),
        ({"tail": 3}, ["b2", "a3", "c1"]),
        ({"tail": 3, "index": 0}, ["a2", "a3", "c1"]),
        ({"tail": 100}, ["a1", "b1", "a2", "b2", "a3", "c1"]),
        ({"since": 0}, ["a1", "b1", "a2", "b2", "a3", "c1"]),
        ({"since": 3}, ["a2", "b2", "a3", "c1"]),
        ({"since": 3.5, "tail": 2}, ["a3", "c1"]),
        ({"since": 99}, []),
    ],
)
async def test_the_lines_that_are_asked_for(store: storage.Logs, query: dict[str, int], expected: list[str]) -> None:
    for at, (key, text) in enumerate(
        [(W0, "a1\n"), (W1, "b1\n"), (W0, "a2\n"), (W1, "b2\n"), (W0, "a3\n"), (LATER, "c1\n")], start=1
    ):
        await add(store, key, text, at)
    assert await texts(store.read(storage.LogQuery(job="j-1", **query))) == expected


async def test_since_begins_with_whole_lines(store: storage.Logs) -> None:
    await add(store, W0, "one\ntw", 1)
    await add(store, W0, "o\nthree\n", 5)
    assert await texts(store.read(storage.LogQuery(job="j-1", since=3))) == ["two", "three"]


async def test_control_characters_and_bad_utf8_are_kept_as_they_are(store: storage.Logs, root: Path) -> None:
    raw = b"\x1b[31mred\r\x00\xff\n"
    await add(store, W0, raw, 1)
    assert await texts(store.read(ALL)) == ["\x1b[31mred\r\x00\ufffd"]
    assert next(root.rglob("*.log")).read_bytes() == raw


async def test_a_line_without_end(store: storage.Logs) -> None:
    await add(store, W0, "x\nabc", 1)
    assert [(line.text, line.partial) async for line in store.read(ALL)] == [("x", False), ("abc", True)]
    await add(store, W0, "def\n", 2)
    assert [(line.text, line.partial) async for line in store.read(ALL)] == [("x", False), ("abcdef", False)]


async def test_long_lines_come_in_pieces(store: storage.Logs) -> None:
    text = "é" * 100_000 + "\nshort\n" + "y" * cursors.PIECE_BYTES + "\n"
    await add(store, W0, "x" + text, 1)
    lines = [line async for line in store.read(ALL)]
    assert [line.partial for line in lines] == [True, True, True, False, False, False]
    assert "".join(line.text for line in lines[:4]) == "x" + "é" * 100_000
    assert [line.offset for line in lines[:2]] == [0, cursors.PIECE_BYTES - 1]
    assert lines[-1].text == "y" * cursors.PIECE_BYTES
    assert len([line async for line in store.read(storage.LogQuery(job="j-1", tail=2))]) == 2


@given(st.lists(st.text("ab\n\n\u00e9", max_size=8).map(str.encode), max_size=12), st.integers(0, 6))
def test_tails_and_lines_whatever_the_cuts(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[bytes], count: int
) -> None:
    async def scenario() -> None:
        store = logfiles.DirectoryLogs(tmp_path_factory.mktemp("logs"), writers=1, readers=1)
        try:
            for at, piece in enumerate(pieces):
                await add(store, W0, piece, at)
            whole = b"".join(pieces).split(b"\n")
            expected = [line.decode(errors="replace") for line in (whole if whole[-1] else whole[:-1])]
            assert await texts(store.read(ALL)) == expected
            tail = await texts(store.read(storage.LogQuery(job="j-1", tail=count)))
            assert tail == (expected[-count:] if count else [])
        finally:
            store.close()

    asyncio.run(scenario())


def taken_apart(line: tasklogs.Line) -> list[tuple[object, ...]]:
    """Each line of a block, as it would have come alone."""
    if not isinstance(line, tasklogs.Lines):
        return [(line.task, line.stream, line.offset, line.at, line.text, line.partial)]
    found, offset = [], line.offset
    *lines, rest = line.data.split(b"\n")
    assert not rest
    for data in lines:
        found.append((line.task, line.stream, offset, line.at, data.decode(errors="replace"), False))
        offset += len(data) + 1
    assert line.last == found[-1][2]
    return found


@settings(max_examples=examples.at_most(50))
@given(
    st.lists(
        st.tuples(st.sampled_from([W0, W1]), st.text("ab\né", max_size=9), st.integers(1, 60), st.integers(0, 4)),
        max_size=12,
    )
)
def test_blocks_are_the_same_lines_at_the_same_times(tmp_path_factory, appends):
    """Whatever arrived when, in however long lines."""

    async def both() -> None:
        store = logfiles.DirectoryLogs(tmp_path_factory.mktemp("blocks"), writers=1, readers=1)
        at = 0.0
        for key, text, times, later in appends:
            at += later
            await add(store, key, text * times, at)
        alone = [one async for line in store.read(ALL) for one in taken_apart(line)]
        blocks = [line async for line in store.read(storage.LogQuery(job="j-1", blocks=True))]
        assert [one for line in blocks for one in taken_apart(line)] == alone
        ended = asyncio.Event()
        ended.set()
        followed = store.follow(storage.LogQuery(job="j-1", blocks=True), until=ended)
        assert sorted([one async for line in followed for one in taken_apart(line)]) == sorted(alone)
        store.close()

    before = cursors.PIECE_BYTES, cursors.BLOCK_BYTES
    cursors.PIECE_BYTES, cursors.BLOCK_BYTES = 40, 120
    try:
        asyncio.run(both())
    finally:
        cursors.PIECE_BYTES, cursors.BLOCK_BYTES = before


async def test_a_million_lines_are_a_few_blocks(store: storage.Logs) -> None:
    """One object for each would cost a reader more than the task that prints them."""
    await add(store, W0, "x" * 9 + "\n" + "".join(f"{number:09}\n" for number in range(999_999)), 1)
    found = [line async for line in store.read(storage.LogQuery(job="j-1", blocks=True))]
    assert len(found) < 100
    assert sum(len(taken_apart(line)) for line in found) == 1_000_000


@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), max_size=9),
    st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60), st.integers(0, 9)), max_size=9),
)
def test_a_reader_that_goes_on_finds_the_times_that_a_new_one_finds(tmp_path_factory, steps, searches):
    """Wherever it searched before, forward or back, and also after the file was cut."""
    path = tmp_path_factory.mktemp("index") / "stdout.idx"
    records = [(sum(a for a, _ in steps[:n]), sum(b for _, b in steps[:n])) for n in range(1, len(steps) + 1)]
    path.write_bytes(b"".join(cursors.RECORD.pack(offset, float(at)) for offset, at in records))
    going = cursors.Index(path, 0.5)
    for start, length, left in searches:
        if path.stat().st_size > left * cursors.RECORD.size:
            os.truncate(path, left * cursors.RECORD.size)
        expected = [(offset, at) for offset, at in records[: path.stat().st_size // 16] if offset < start + length]
        before = [record for record in expected if record[0] <= start]
        expected = (before[-1:] or [(start, 0.5)]) + [record for record in expected if record[0] > start]
        assert list(zip(*going.between(start, start + length), strict=True)) == expected


async def test_a_tail_does_not_read_the_file(store: storage.Logs, monkeypatch: pytest.MonkeyPatch) -> None:
    for start in range(0, 1_000_000, 250_000):
        await add(store, W0, "".join(f"line {number}\n" for number in range(start, start + 250_000)), start)
    taken = []
    real = cursors.read
    monkeypatch.setattr(cursors, "read", lambda path, at, size: taken.append(size) or real(path, at, size))
    assert await texts(store.read(storage.LogQuery(job="j-1", tail=3))) == ["line 999997", "line 999998", "line 999999"]
    assert sum(taken) < 100_000
    taken.clear()
    assert len(await texts(store.read(storage.LogQuery(job="j-1", since=750_000)))) == 250_000
    assert sum(taken) < 5_000_000


async def test_a_follower_hears_of_lines_and_of_new_streams(store: storage.Logs) -> None:
    await add(store, W0, "before\n", 1)
    heard = store.follow(ALL)
    assert (await asyncio.wait_for(anext(heard), 240)).text == "before"
    waiting = asyncio.ensure_future(anext(heard))
    await asyncio.sleep(0.05)
    await add(store, W1, "new stream\n", 2)
    assert (await asyncio.wait_for(waiting, 240)).text == "new stream"
    await add(store, W0, "again\n", 3)
    assert (await asyncio.wait_for(anext(heard), 240)).text == "again"
    await heard.aclose()


async def test_a_follower_starts_with_the_tail(store: storage.Logs) -> None:
    await add(store, W0, "1\n2\n3\n", 1)
    heard = store.follow(storage.LogQuery(job="j-1", tail=1))
    assert (await asyncio.wait_for(anext(heard), 240)).text == "3"
    await add(store, W0, "4\n", 2)
    assert (await asyncio.wait_for(anext(heard), 240)).text == "4"
    await heard.aclose()


async def test_a_follower_hears_appends_of_another_threads_loop(store: logfiles.DirectoryLogs) -> None:
    heard = store.follow(ALL)
    waiting = asyncio.ensure_future(anext(heard))
    await asyncio.sleep(0.05)
    thread = threading.Thread(target=lambda: asyncio.run(store.append(W0, "stdout.0", 0, b"hello\n", at=1)))
    thread.start()
    assert (await asyncio.wait_for(waiting, 240)).text == "hello"
    thread.join(10)
    await heard.aclose()


async def test_a_prompt_is_shown_without_its_end_and_goes_on(store: storage.Logs) -> None:
    heard = store.follow(ALL)
    waiting = asyncio.ensure_future(anext(heard))
    await asyncio.sleep(0.05)
    await add(store, W0, "password: ", 1)
    first = await asyncio.wait_for(waiting, 240)
    await add(store, W0, "secret\n", 2)
    second = await asyncio.wait_for(anext(heard), 240)
    assert [(line.text, line.offset, line.partial) for line in (first, second)] == [
        ("password: ", 0, True),
        ("secret", 10, False),
    ]
    await heard.aclose()


async def test_a_follower_ends_when_all_is_told(store: storage.Logs) -> None:
    until = asyncio.Event()
    await add(store, W0, "one\n", 1)
    heard = store.follow(ALL, until=until)
    assert (await anext(heard)).text == "one"
    rest = asyncio.ensure_future(texts(heard))
    await asyncio.sleep(0.05)
    await add(store, W0, "two\nno end", 2)
    until.set()
    assert await asyncio.wait_for(rest, 240) == ["two", "no end"]


async def test_a_restart_goes_on_where_the_file_ends(store: logfiles.DirectoryLogs, root: Path) -> None:
    await add(store, W0, "one\n", 10)
    await add(store, W0, "two\n", 20)
    file = next(root.rglob("*.log"))
    # Killed after the bytes and before the acknowledgement; the index lags or runs ahead, its last record is torn.
    with file.open("ab") as stream:
        stream.write(b"three\n")
    index = file.with_suffix(".idx")
    for damaged in (index.read_bytes()[:-3], index.read_bytes() + cursors.RECORD.pack(999, 30.0) + b"torn", b""):
        index.write_bytes(damaged)
        again = logfiles.DirectoryLogs(root)
        assert await again.length(W0, "stdout.0") == 14
        assert await texts(again.read(ALL)) == ["one", "two", "three"]
        assert await texts(again.read(storage.LogQuery(job="j-1", tail=1))) == ["three"]
        again.close()
    again = logfiles.DirectoryLogs(root)
    await add(again, W0, "four\n", 40)
    assert [line.at async for line in again.read(storage.LogQuery(job="j-1", since=40))] == [40]
    again.close()


async def test_an_index_that_ran_ahead_of_a_kill_is_cut(store: logfiles.DirectoryLogs, root: Path) -> None:
    await add(store, W0, "one\n", 10)
    index = next(root.rglob("*.idx"))
    index.write_bytes(index.read_bytes() + cursors.RECORD.pack(4, 20.0) + cursors.RECORD.pack(999, 30.0) + b"torn")
    again = logfiles.DirectoryLogs(root)
    for at, text in ((11, "two\n"), (12, "three\n"), (13, "four\n")):
        await add(again, W0, text, at)
    assert [line.at async for line in again.read(ALL)] == [10, 11, 12, 13]
    assert await texts(again.read(storage.LogQuery(job="j-1", since=12))) == ["three", "four"]
    again.close()


async def test_a_clock_that_jumps_back_keeps_the_order(store: storage.Logs) -> None:
    await add(store, W0, "one\n", 100)
    await add(store, W0, "two\n", 50)
    assert [(line.text, line.at) async for line in store.read(ALL)] == [("one", 100), ("two", 100)]


async def test_a_quota(root: Path) -> None:
    store = logfiles.DirectoryLogs(root, quota_bytes=10)
    await add(store, W0, "12345\n", 1)
    with pytest.raises(errors.TooLarge) as caught:
        await add(store, W1, "12345\n", 1)
    assert caught.value.detail == {"quota_bytes": 10}
    await add(store, W1, "123\n", 1)
    store.close()
    again = logfiles.DirectoryLogs(root, quota_bytes=10)
    with pytest.raises(errors.TooLarge):
        await add(again, W0, "1", 1)
    assert await texts(again.read(ALL)) == ["12345", "123"]
    again.close()


async def test_forgetting(store: storage.Logs, root: Path) -> None:
    other = attempts.TaskKey("j-2", 1, "worker", 0, 1)
    await add(store, W0, "one\n", 1)
    await add(store, other, "kept\n", 1)
    await store.forget("j-1")
    await store.forget("j-unknown")
    assert await store.streams("j-1") == []
    assert await texts(store.read(storage.LogQuery(job="j-2"))) == ["kept"]
    assert [path.name for path in root.iterdir()] == ["j-2"]


@pytest.mark.parametrize(
    ("key", "stream"),
    [
        (attempts.TaskKey("../x", 1, "worker", 0, 1), "stdout.0"),
        (attempts.TaskKey("j", 1, "../x", 0, 1), "stdout.0"),
        (attempts.TaskKey("j", -1, "worker", 0, 1), "stdout.0"),
        (attempts.TaskKey("", 1, "worker", 0, 1), "stdout.0"),
        (W0, "../../x"),
        (W0, ""),
        (W0, "x" * 1000),
    ],
)
async def test_a_key_is_never_a_path(store: storage.Logs, root: Path, key: attempts.TaskKey, stream: str) -> None:
    with pytest.raises(errors.InvalidInput):
        await store.append(key, stream, 0, b"x", at=1)
    assert not root.exists()


async def test_many_agents_at_once(store: storage.Logs) -> None:
    """Interleaved, retried and doubled appends: each stream holds each of its lines once, in order."""
    chance = random.Random(7)
    keys = [attempts.TaskKey("j-1", 1, "worker", index, 1) for index in range(12)]

    async def agent(key: attempts.TaskKey) -> None:
        text = b"".join(b"%d %d\n" % (key.index, number) for number in range(200))
        at = 0
        while at < len(text):
            sent = text[at : at + chance.randrange(1, 400)]
            sends = [store.append(key, "stdout.0", at, sent, at=1) for _ in range(chance.choice([1, 1, 3]))]
            answers = await asyncio.gather(*sends, return_exceptions=True)
            lengths = [answer for answer in answers if isinstance(answer, int)]
            assert len(lengths) == 1
            at = lengths[0]

    await asyncio.gather(*map(agent, keys))
    for key in keys:
        lines = await texts(store.read(storage.LogQuery(job="j-1", index=key.index)))
        assert lines == [f"{key.index} {number}" for number in range(200)]


def test_an_empty_directory_costs_nothing(root: Path) -> None:
    store = logfiles.DirectoryLogs(root)
    store.close()
    assert not root.exists()
