"""Pages of a log before and after a place, and the search through all of it."""

from __future__ import annotations

import asyncio
import random
import re
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from oarlock.data import storage
from oarlock.data.logs import cursors, cuts, logfiles, paging, searching
from oarlock.spec import attempts, errors, tasklogs

KEYS = [
    attempts.TaskKey("j-1", 1, "worker", 0, 1),
    attempts.TaskKey("j-1", 1, "worker", 1, 1),
    attempts.TaskKey("j-1", 1, "ps", 0, 1),
    attempts.TaskKey("j-1", 2, "worker", 0, 1),
]
ALL = storage.LogQuery(job="j-1")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[logfiles.DirectoryLogs]:
    made = logfiles.DirectoryLogs(tmp_path / "logs")
    yield made
    made.close()


async def add(store: storage.Logs, key: attempts.TaskKey, text: bytes, at: float, stream: str = "stdout.0") -> None:
    await store.append(key, stream, await store.length(key, stream), text, at=at)


async def filled(store: storage.Logs, count: int, seed: int = 1) -> list[tuple[str, str, int]]:
    """Lines of four tasks, some of them at one time, long, empty or without an end; and their order."""
    drawn = random.Random(seed)
    at = 10.0
    for number in range(count):
        at += drawn.choice((0.0, 0.01, 1.0))
        tail = drawn.choice((b"\n", b"\n", b"\n\n", b""))
        body = b"x" * drawn.choice((0, 3, 200, 70_000)) if number % 7 == 0 else b""
        await add(
            store, drawn.choice(KEYS), b"line %d " % number + body + tail, at, drawn.choice(("stdout.0", "stderr.1"))
        )
    return [told(line) async for line in store.read(ALL)]


def told(line: tasklogs.Line) -> tuple[str, str, int]:
    return f"{line.task}:{line.attempt}", line.stream, line.offset


def address(line: tasklogs.Line) -> str:
    return f"{line.task}:{line.attempt}:{line.incarnation}:{line.stream}:{line.offset}"


@pytest.mark.parametrize("seed", range(4))
async def test_pages_forward_have_every_line_once_and_in_order(store: logfiles.DirectoryLogs, seed: int) -> None:
    expected = await filled(store, 70, seed)
    place, found = "start", list[tasklogs.Line]()
    while True:
        page = await store.page(ALL, place, before=0, after=7)
        found += page.lines
        if not page.later_bytes:
            break
        place = page.after
    shown = [told(line) for line in found]
    unended = len([line for line in page.lines if line.partial])
    assert sorted(shown) == sorted(expected)
    assert shown[: -unended - 7] == [line for line in expected if line in shown[: -unended - 7]]


@pytest.mark.parametrize("seed", range(4))
async def test_pages_backward_have_every_byte_once_and_in_order(store: logfiles.DirectoryLogs, seed: int) -> None:
    await filled(store, 70, seed)
    page = await store.page(ALL, "end", before=7, after=0)
    found = list(page.lines)
    ends = [line for line in found if line.partial]  # they stand on the last page, however old they are
    while page.earlier_bytes:
        page = await store.page(ALL, page.before, before=7, after=0)
        found = [*page.lines, *found]
    ats = [line.at for line in found if line not in ends]
    assert ats == sorted(ats)
    for key in KEYS:
        for stream in ("stdout.0", "stderr.1"):
            theirs = [
                line
                for line in found
                if (line.task, line.attempt, line.stream) == (f"{key.role}-{key.index}", key.attempt, stream)
            ]
            text = "".join(line.text + "\n" * (not line.partial) for line in theirs)
            whole = [
                line
                async for line in store.read(ALL)
                if told(line)[:2] == (f"{key.role}-{key.index}:{key.attempt}", stream)
            ]
            assert text == "".join(line.text + "\n" * (not line.partial) for line in whole)


async def test_a_reader_who_goes_on_from_a_page_misses_no_late_line(store: logfiles.DirectoryLogs) -> None:
    """A line that was on its way to the disk for long lies, by its time, before lines that were shown already."""
    await add(store, KEYS[0], b"one\n", 10.0)
    await add(store, KEYS[1], b"three\n", 12.0)
    shown = await store.page(ALL, "end", before=10, after=0)
    assert [line.text for line in shown.lines] == ["one", "three"]
    await add(store, KEYS[0], b"two, late\n", 11.0)
    await add(store, KEYS[3], b"a new stream\n", 11.5)
    more = await store.page(ALL, shown.after, before=0, after=10)
    assert [line.text for line in more.lines] == ["two, late", "a new stream"]
    assert (await store.page(ALL, more.after, before=0, after=10)).lines == ()


async def test_a_line_without_an_end_is_shown_again_with_its_end(store: logfiles.DirectoryLogs) -> None:
    await add(store, KEYS[0], b"done\n 10%", 10.0)
    shown = await store.page(ALL, "end", before=10, after=0)
    assert [(line.text, line.partial) for line in shown.lines] == [("done", False), (" 10%", True)]
    assert (shown.later_bytes, shown.unended) == (0, (1,))
    await add(store, KEYS[0], b"\r 20%", 11.0)
    more = await store.page(ALL, shown.after, before=0, after=10)
    assert [(line.text, line.partial) for line in more.lines] == [(" 10%\r 20%", True)]
    await add(store, KEYS[0], b"\n", 12.0)
    more = await store.page(ALL, more.after, before=0, after=10)
    assert [(line.text, line.partial) for line in more.lines] == [(" 10%\r 20%", False)]
    assert (await store.page(ALL, more.after, before=0, after=10)).lines == ()


async def test_a_line_s_address_leads_to_it_and_its_neighbours(store: logfiles.DirectoryLogs) -> None:
    expected = await filled(store, 60)
    lines = [line async for line in store.read(ALL)]
    for number, line in enumerate(lines):
        page = await store.page(ALL, address(line), before=3, after=4)
        near = [told(one) for one in page.lines]
        assert told(line) in near
        if all(len(one.text) < 60_000 for one in lines):
            assert near == expected[max(0, number - 3) : number + 4]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({"stream": "stderr"}, ["e1", "e2"]),
        ({"stream": "stderr.1"}, ["e2"]),
        ({"until": 13.0}, ["a1", "b1", "e1"]),
        ({"since": 11.0, "until": 14.0}, ["b1", "e1", "e2"]),
        ({"index": 1}, ["b1"]),
        ({"attempt": 2}, ["c1"]),
        ({"role": "ps"}, []),
    ],
)
async def test_a_page_has_the_lines_that_were_chosen(
    store: logfiles.DirectoryLogs, query: dict[str, Any], expected: list[str]
) -> None:
    await add(store, KEYS[0], b"a1\n", 10.0)
    await add(store, KEYS[1], b"b1\n", 11.0)
    await add(store, KEYS[0], b"e1\n", 12.0, "stderr.0")
    await add(store, KEYS[0], b"e2\n", 13.0, "stderr.1")
    await add(store, KEYS[3], b"c1\n", 14.0)
    wanted = storage.LogQuery(job="j-1", **query)
    for place, before, after in (("start", 0, 9), ("end", 9, 0)):
        page = await store.page(wanted, place, before=before, after=after)
        assert [line.text for line in page.lines] == expected
        assert (page.earlier_bytes, page.later_bytes) == (0, 0)
    assert [line.text async for line in store.read(wanted)] == expected


@pytest.mark.parametrize(
    "place", ["", "x", ".", ".AAAA", "worker-0", "worker-0:1:1:stdout.0", "../../etc/passwd", "é", "." + "A" * 5000]
)
async def test_a_text_that_is_no_place_is_refused(store: logfiles.DirectoryLogs, place: str) -> None:
    with pytest.raises(errors.InvalidInput) as caught:
        await store.page(ALL, place, before=1, after=1)
    assert caught.value.hint
    assert caught.value.path == "at"


async def test_the_address_of_a_line_that_is_not_there_is_not_found(store: logfiles.DirectoryLogs) -> None:
    await add(store, KEYS[0], b"one\n", 10.0)
    for place in ("worker-0:1:1:stdout.0:4", "worker-9:1:1:stdout.0:0", "worker-0:2:1:stdout.0:0"):
        with pytest.raises(errors.NotFound):
            await store.page(ALL, place, before=1, after=1)


async def test_a_page_of_very_long_lines_is_short(
    store: logfiles.DirectoryLogs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paging, "MOST_BYTES", 100)
    for number in range(9):
        await add(store, KEYS[0], b"%d" % number * 60 + b"\n", 10.0 + number)
    assert len((await store.page(ALL, "end", before=9, after=0)).lines) == 2
    assert len((await store.page(ALL, "start", before=0, after=9)).lines) == 2


async def searched(
    store: logfiles.DirectoryLogs, text: str, place: str = "start", limit: int = 100, **more: bool
) -> tasklogs.LogHits:
    return await store.search(ALL, place, tasklogs.LogSearch(text=text, **more), limit=limit)


async def test_without_re2_plain_text_is_found_and_an_expression_says_how_to_install_it(
    store: logfiles.DirectoryLogs, monkeypatch: pytest.MonkeyPatch
) -> None:
    await add(store, KEYS[0], "Loss 1.5\nÉTÉ loss*\n300 \u212a\nother\n".encode(), 10.0)
    table = {"loss": [0, 9], "LOSS*": [9], "été": [9], "k": [21], "1.5": [0], "ß": [], "s": [0, 9], "O": [0, 9, 29]}
    for text, places in table.items():
        with_re2 = await searched(store, text, ignore_case=True)
        with monkeypatch.context() as without:
            without.setitem(sys.modules, "re2", None)
            found = await searched(store, text, ignore_case=True)
        assert [one.offset for one in found.lines] == [one.offset for one in with_re2.lines] == places
    monkeypatch.setitem(sys.modules, "re2", None)
    with pytest.raises(errors.Unsupported, match="searches for plain text only") as refused:
        await searched(store, "loss.*", regex=True)
    assert "[regex]'" in refused.value.hint


@pytest.mark.parametrize("block", [1, 7, 64, 4 << 20])
@pytest.mark.parametrize(
    ("text", "more", "expected"),
    [
        ("loss", {}, ["loss 1 loss", "a loss", "loss.*"]),
        ("Loss", {}, ["Loss"]),
        ("LOSS", {"ignore_case": True}, ["loss 1 loss", "Loss", "a loss", "loss.*"]),
        ("loss.*", {}, ["loss.*"]),
        ("LOSS.*", {"ignore_case": True}, ["loss.*"]),
        (r"^loss \d", {"regex": True}, ["loss 1 loss"]),
        (r"s$", {"regex": True}, ["loss 1 loss", "Loss", "a loss"]),
        (r"^$", {"regex": True}, [""]),
        (r"[^x]loss[^x]", {"regex": True}, []),
        ("É", {"ignore_case": True}, ["été"]),
        ("absent", {}, []),
    ],
)
async def test_a_search_finds_lines(
    store: logfiles.DirectoryLogs,
    monkeypatch: pytest.MonkeyPatch,
    block: int,
    text: str,
    more: dict[str, bool],
    expected: list[str],
) -> None:
    monkeypatch.setattr(searching, "BLOCK_BYTES", block)
    if block < 64 and text not in ("loss", "Loss"):
        return  # a line that is longer than a block is searched in pieces
    if block < 64:
        monkeypatch.setattr(searching, "BLOCK_BYTES", 16)
    await add(store, KEYS[0], b"loss 1 loss\nother\nLoss\n\n", 10.0)
    await add(store, KEYS[1], "a loss\nété\n\xff".encode(), 11.0)
    await add(store, KEYS[0], b"loss.*", 12.0)
    found = await searched(store, text, **more)
    assert [line.text for line in found.lines] == expected
    assert (found.hits, found.earlier, found.previous, found.whole) == (len(expected), 0, None, True)


async def test_hits_are_counted_and_found_from_every_place(store: logfiles.DirectoryLogs) -> None:
    await filled(store, 90)
    lines = [line async for line in store.read(ALL)]
    place, seen, heads = "start", list[str](), {(told(line)[:2], line.offset): line for line in lines}
    whole = await searched(store, "ine ", limit=1000)
    assert whole.hits == len(whole.lines) > 50
    ordered = [address(line) for line in whole.lines]
    assert all("ine " in heads[told(line)[:2], line.offset].text for line in whole.lines)
    while (found := await searched(store, "ine ", place, limit=9)).lines:
        assert found.earlier == len(seen)
        assert (address(found.previous) if found.previous else None) == (seen[-1] if seen else None)
        seen += [address(line) for line in found.lines]
        place = found.after
    assert seen == ordered
    middle = await searched(store, "ine ", ordered[20], limit=1)
    assert (address(middle.lines[0]), middle.earlier) == (ordered[20], 20)
    assert middle.previous is not None
    assert address(middle.previous) == ordered[19]


async def test_a_search_stops_counting_at_a_bound(
    store: logfiles.DirectoryLogs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(searching, "MOST_HITS", 5)
    await add(store, KEYS[0], b"x\n" * 9, 10.0)
    found = await searched(store, "x")
    assert (found.hits, found.whole) == (5, False)


@pytest.mark.parametrize("text", ["(", "a**", r"(a)\1", "(?=x)", "[", "\\", "a{1001}"])
async def test_an_expression_that_is_not_valid_is_refused_with_the_reason(
    store: logfiles.DirectoryLogs, text: str
) -> None:
    with pytest.raises(errors.InvalidInput) as caught:
        await searched(store, text, regex=True)
    assert caught.value.path == "text"
    with pytest.raises(errors.InvalidInput):
        await searched(store, "")


async def test_an_expression_that_others_never_finish_is_answered(store: logfiles.DirectoryLogs) -> None:
    await add(store, KEYS[0], b"a" * 50_000 + b"\n", 10.0)
    assert (await searched(store, "(a+)+$x", regex=True)).hits == 0


async def test_a_cut_of_512_tasks_fits_into_an_address(store: logfiles.DirectoryLogs) -> None:
    for index in range(512):
        key = attempts.TaskKey("j-1", 1, "worker", index, 1)
        await add(store, key, b"x" * (index * 37 % 4001) + b"\n", 10.0 + index)
    page = await store.page(ALL, "end", before=3, after=0)
    assert len(page.after) < 8192
    assert (await store.page(ALL, page.after, before=1, after=1)).lines[0].task == "worker-511"
    assert cuts.MOST_BYTES > 100_000


def test_a_cut_of_512_tasks_with_two_streams_and_three_attempts_fits_into_a_query() -> None:
    drawn = random.Random(1)
    cut: Any = {
        stream: drawn.randrange(10**5, 10**7)
        for attempt in (1, 2, 3)
        for index in range(512)
        for name in ("stderr.0", "stdout.0")
        if (stream := Named(attempts.TaskKey("j-1", attempt, "worker", index, 1), name))
    }
    place = cuts.text(cut)
    assert len(place) < 14_000
    span = cuts.Span(0, 10**8, 10**8)
    assert cuts.at(place, dict.fromkeys(cut, span)) == cut


@pytest.mark.parametrize("tasks", range(1, 7))
def test_a_cut_is_text_that_an_address_need_not_quote(tasks: int) -> None:
    keys = [attempts.TaskKey("j-1", 1, "worker" * index, index, 1) for index in range(1, tasks + 1)]
    cut: Any = {Named(key, "stdout.0"): 1000 + key.index for key in keys}
    assert re.fullmatch(r"\.[A-Za-z0-9_-]+", cuts.text(cut))


class Named(NamedTuple):
    """A stream as far as places know it."""

    key: attempts.TaskKey
    name: str


COSTLY = "|".join(f".{{{number}}}Q" for number in range(990, 999))


async def test_an_expression_that_takes_minutes_for_a_small_log_is_refused(store: logfiles.DirectoryLogs) -> None:
    await add(store, KEYS[0], b"line\n", 10.0)
    with pytest.raises(errors.InvalidInput, match="too large"):
        await searched(store, COSTLY, regex=True)


@pytest.mark.parametrize("more", [{"regex": True}, {"ignore_case": True}, {}])
async def test_a_search_ends_when_its_time_is_up(
    store: logfiles.DirectoryLogs, monkeypatch: pytest.MonkeyPatch, more: dict[str, bool]
) -> None:
    monkeypatch.setattr(searching, "SEARCH_S", -1.0)
    await add(store, KEYS[0], b"line\n" * 9000, 10.0)
    with pytest.raises(errors.TooLarge, match="took more than"):
        await searched(store, "absent", **more)


@pytest.mark.parametrize("closing", [True, False])
async def test_a_search_ends_when_no_reader_waits_for_it(
    store: logfiles.DirectoryLogs, monkeypatch: pytest.MonkeyPatch, closing: bool
) -> None:
    begun, go, ended = threading.Event(), threading.Event(), threading.Event()
    pieces = []

    def found(block: bytes, start: int) -> int:
        begun.set()
        go.wait(60)
        pieces.append(len(block))
        return -1

    def searched_to_the_end(*told: Any, **more: Any) -> tasklogs.LogHits:
        try:
            return whole(*told, **more)
        finally:
            ended.set()

    whole = searching.search
    monkeypatch.setattr(searching, "search", searched_to_the_end)
    monkeypatch.setattr(searching, "finder", lambda _: (found, 1024))
    await add(store, KEYS[0], b"line\n" * 9000, 10.0)
    search = asyncio.create_task(searched(store, "x", regex=True))
    await asyncio.to_thread(begun.wait)
    if closing:
        store.close()
    else:
        search.cancel()
        await asyncio.gather(search, return_exceptions=True)
    go.set()
    await asyncio.to_thread(ended.wait)
    await asyncio.gather(search, return_exceptions=True)
    assert len(pieces) == 1


async def test_an_expression_is_applied_to_small_pieces_of_whole_lines(store: logfiles.DirectoryLogs) -> None:
    text = (
        b"".join(b"%d %s\n" % (number, b"x" * (number * 37 % 3000)) for number in range(200)) + b"y" * 40_000 + b" 7\n"
    )
    await add(store, KEYS[0], text, 10.0)
    found = await searched(store, r"^\d+ |^y+ 7$", regex=True, limit=1000)
    assert [line.text.split(" ")[0] for line in found.lines[:-1]] == [str(number) for number in range(200)]
    assert found.hits == 201


async def test_a_page_reads_only_the_times_of_its_lines(
    store: logfiles.DirectoryLogs, monkeypatch: pytest.MonkeyPatch
) -> None:
    count, line = 20_000, b"step 000000 loss 0.5\n"
    await add(store, KEYS[0], line * count, 1.0)
    index = next(iter(store._jobs.get("j-1").listed())).index_path
    index.write_bytes(b"".join(cursors.RECORD.pack(number * len(line), number) for number in range(count)))
    read = []
    taken = cursors.Records.taken

    def counted(records: cursors.Records, first: int, stop: int) -> Iterator[tuple[int, float]]:
        for record in taken(records, first, stop):
            read.append(record)
            yield record

    monkeypatch.setattr(cursors.Records, "taken", counted)
    page = await store.page(ALL, "end", before=100, after=0)
    assert [line.at for line in page.lines] == list(range(count - 100, count))
    assert len(read) < 1000


async def test_a_page_reads_little_of_a_long_log(
    store: logfiles.DirectoryLogs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every line that is read costs time, and the lines beyond the page are read in vain."""
    for key in KEYS:
        await add(store, key, b"".join(b"a line with the number %d\n" % number for number in range(40_000)), 1.0)
    sizes: list[int] = []

    def counted(path: Path, offset: int, size: int) -> bytes:
        sizes.append(size)
        return read(path, offset, size)

    read = cursors.read
    monkeypatch.setattr(cursors, "read", counted)
    page = await store.page(ALL, f"worker-0:1:1:stdout.0:{520_000 // 26 * 26}", before=500, after=500)
    assert (len(page.lines), len(sizes) < 60, sum(sizes) < 600_000) == (1000, True, True)


async def test_long_lines_before_short_ones_are_read_back_a_few_at_a_time(
    store: logfiles.DirectoryLogs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Short lines are read back in growing groups. A group of long lines would take much memory in each stream."""
    for body in (b"x" * 60_000, b""):
        await add(store, KEYS[0], b"".join(b"%d %s\n" % (number, body) for number in range(300)), 1.0)
    groups: list[int] = []

    def counted(number: int, stream: Any, start: int, end: int, block: int) -> Iterator[paging.Place]:
        groups.append(end - start)
        return lines(number, stream, start, end, block)

    lines = paging.lines
    monkeypatch.setattr(paging, "lines", counted)
    page = await store.page(ALL, "end", before=1000, after=0)
    expected = [line async for line in store.read(ALL)][-len(page.lines) :]
    assert [told(line) for line in page.lines] == [told(line) for line in expected]
    assert len(page.lines) > 300
    assert max(groups) < 1_100_000


async def test_lines_that_were_too_long_for_a_group_are_not_searched_for_again_and_again(
    store: logfiles.DirectoryLogs, monkeypatch: pytest.MonkeyPatch
) -> None:
    await add(store, KEYS[0], b"".join(b"%d %s\n" % (number, b"x" * 10_000) for number in range(2000)), 1.0)
    counts: list[int] = []

    def counted(path: Path, end: int, count: int) -> int:
        counts.append(count)
        return tail_start(path, end, count)

    tail_start = cursors.tail_start
    monkeypatch.setattr(cursors, "tail_start", counted)
    page = await store.page(ALL, "end", before=300, after=0)
    assert [line.text.split(" ")[0] for line in page.lines] == [str(number) for number in range(1700, 2000)]
    assert sorted(set(counts)) == [paging.LEAST_LINES, 2 * paging.LEAST_LINES]
    assert counts.count(2 * paging.LEAST_LINES) == 1
