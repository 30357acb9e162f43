"""The contract of Metrics: frames in at byte offsets, thinned series out, nothing lost in between."""

from __future__ import annotations

import itertools
import json
import math
import random
import struct
from array import array
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oarlock.data import storage
from oarlock.data.metrics import arrivals, chunks, columns, frames, lives, metricfiles, thinning
from oarlock.spec import attempts, errors

W0 = attempts.TaskKey("j-1", 1, "worker", 0, 1)
W0_AGAIN = attempts.TaskKey("j-1", 1, "worker", 0, 2)
LATER = attempts.TaskKey("j-1", 2, "worker", 0, 1)
W1 = attempts.TaskKey("j-1", 1, "worker", 1, 1)


def schema(number: int, *names: str) -> bytes:
    payload = json.dumps({"id": number, "names": names}).encode()
    return struct.pack("<BI", 1, len(payload)) + payload


def row(number: int, step: int, *values: float, at: float | None = None) -> bytes:
    payload = struct.pack(f"<HQd{len(values)}d", number, step, 1000.0 + step if at is None else at, *values)
    return struct.pack("<BI", 2, len(payload)) + payload


def walk(steps: range, *, number: int = 1) -> bytes:
    return schema(number, "loss") + b"".join(row(number, step, float(step)) for step in steps)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "metrics"


@pytest.fixture
def store(root: Path) -> Iterator[metricfiles.DirectoryMetrics]:
    made = metricfiles.DirectoryMetrics(root)
    yield made
    made.close()


def plain(series: list[storage.Series]) -> dict[str, list[tuple[int, float]]]:
    return {
        f"{one.task}/{one.process}/{one.name}": [(point.step, point.value) for point in one.points] for one in series
    }


async def test_rows_come_back_as_series(store: storage.Metrics) -> None:
    data = schema(1, "loss", "lr") + row(1, 1, 0.5, 1e-3) + row(1, 2, 0.25, 1e-3)
    assert await store.append(W0, 0, 0, data) == len(data)
    more = schema(2, "accuracy") + row(2, 2, 0.9)
    assert await store.append(W0, 0, len(data), more) == len(data) + len(more)
    await store.append(W1, 3, 0, walk(range(1)))
    assert await store.names("j-1") == ["accuracy", "loss", "lr"]
    assert plain(await store.series("j-1")) == {
        "worker-0/0/accuracy": [(2, 0.9)],
        "worker-0/0/loss": [(1, 0.5), (2, 0.25)],
        "worker-0/0/lr": [(1, 1e-3), (2, 1e-3)],
        "worker-1/3/loss": [(0, 0.0)],
    }
    assert plain(await store.series("j-1", ["lr", "unknown"])) == {"worker-0/0/lr": [(1, 1e-3), (2, 1e-3)]}
    assert [point.at for point in (await store.series("j-1", ["lr"]))[0].points] == [1001.0, 1002.0]
    assert await store.names("j-2") == []
    assert await store.series("j-2") == []


async def test_bytes_go_on_at_the_stored_length(store: storage.Metrics) -> None:
    data = walk(range(3))
    assert await store.append(W0, 0, 0, data[:10]) == 10
    for wrong in (0, 9, 11):
        with pytest.raises(errors.OffsetMismatch) as caught:
            await store.append(W0, 0, wrong, data[10:])
        assert caught.value.length == 10
    assert await store.append(W0, 0, 10, data[10:]) == len(data)


@pytest.mark.parametrize("step", [1, 3, 7, 64])
async def test_frames_may_be_cut_anywhere(root: Path, step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where chunks are made and the server starts anew between any two pieces."""
    monkeypatch.setattr(metricfiles, "CHUNK_BYTES", 100)
    data = walk(range(20)) + schema(1, "loss", "x") + row(1, 20, 20.0, 0.0) + schema(7, "y") + row(7, 20, 1.0)
    store = metricfiles.DirectoryMetrics(root, writers=1, readers=1)
    for at in range(0, len(data), step):
        await store.append(W0, 0, at, data[at : at + step])
        if at % 5 == 0:
            store.close()
            store = metricfiles.DirectoryMetrics(root, writers=1, readers=1)
    found = plain(await store.series("j-1"))
    store.close()
    assert found["worker-0/0/loss"] == [(number, float(number)) for number in range(21)]
    assert found["worker-0/0/x"] == [(20, 0.0)]
    assert found["worker-0/0/y"] == [(20, 1.0)]


BAD = [
    b"\x07",
    b"\x00" * 30,
    struct.pack("<BI", 1, 0),
    struct.pack("<BI", 1, 1 << 31),
    struct.pack("<BI", 2, 1 << 31),
    struct.pack("<BI", 1, 4) + b"nope",
    struct.pack("<BI", 1, 2) + b"\xff\xfe",
    schema(1),
    schema(1, "a", "a"),
    schema(1, ""),
    schema(1, "x" * 1000),
    schema(1 << 16, "a"),
    schema(-1, "a"),
    row(9, 1, 1.0),
    row(1, 1, 1.0, 2.0),
    row(1, 1),
    b'{"id": 1, "names": "a"}',
]


class TestBadFrames:
    """Refused, what came before them kept, and the stream goes on with right ones."""

    @pytest.mark.parametrize("bad", BAD, ids=lambda bad: repr(bad[:20]))
    async def test_it_is_refused(self, store: storage.Metrics, bad: bytes) -> None:
        good = walk(range(3))
        with pytest.raises(errors.InvalidInput) as caught:
            await store.append(W0, 0, 0, good + bad)
        assert caught.value.detail == {"length": len(good)}
        with pytest.raises(errors.InvalidInput):
            await store.append(W0, 0, len(good), bad)
        assert await store.append(W0, 0, len(good), row(1, 3, 3.0)) == len(good) + len(row(1, 3, 3.0))
        assert plain(await store.series("j-1")) == {"worker-0/0/loss": [(step, float(step)) for step in range(4)]}

    async def test_it_begins_in_the_acknowledged_bytes(self, store: storage.Metrics) -> None:
        start = walk(range(1))
        await store.append(W0, 0, 0, start + b"\x02\x1a")
        with pytest.raises(errors.InvalidInput) as caught:
            await store.append(W0, 0, len(start) + 2, b"\xff" * 20)
        assert caught.value.detail == {"length": len(start) + 2}
        await store.append(W0, 0, len(start) + 2, row(1, 1, 1.0)[2:])
        assert plain(await store.series("j-1")) == {"worker-0/0/loss": [(0, 0.0), (1, 1.0)]}

    @given(st.binary(max_size=80))
    def test_any_bytes_are_parsed(self, data: bytes) -> None:
        for known in ({}, {0: ("a",)}):
            parsed = frames.parse(data, known)
            assert 0 <= parsed.end <= len(data)
            assert frames.parse(data[: parsed.end], known).end == parsed.end


async def test_a_restart_continues_by_step(store: storage.Metrics) -> None:
    await store.append(W0, 0, 0, walk(range(10)))
    again = schema(1, "loss") + b"".join(row(1, step, 100.0 + step) for step in range(6, 12))
    await store.append(W0_AGAIN, 0, 0, again)
    later = schema(1, "loss") + b"".join(row(1, step, 200.0 + step) for step in range(8, 10))
    await store.append(LATER, 0, 0, later)
    assert plain(await store.series("j-1"))["worker-0/0/loss"] == [
        *((step, float(step)) for step in range(6)), (6, 106.0), (7, 107.0), (8, 208.0), (9, 209.0),
    ]  # fmt: skip


class Reader:
    """Follows the points of a job as they arrive. `read` returns those that are new, by series."""

    def __init__(self, store: storage.Metrics, points: int = 10_000) -> None:
        self.store, self.points, self.after = store, points, ""

    async def read(self) -> dict[str, list[tuple[int, float]]]:
        found = await self.store.news("j-1", self.after, points=self.points)
        self.after = found.after
        return plain(found.series)


async def test_what_is_new_comes_once_whatever_rests_or_begins_late(store: storage.Metrics) -> None:
    """A value that was logged once, or a worker that has left, brings nothing again; one that counts epochs is not
    left out because others count steps.
    """
    reader = Reader(store)
    assert await reader.read() == {}
    first = schema(1, "loss") + schema(2, "params") + row(2, 0, 7.0) + row(1, 1, 0.5)
    await store.append(W0, 0, 0, first)
    await store.append(W1, 0, 0, walk(range(2)))
    assert await reader.read() == {
        "worker-0/0/loss": [(1, 0.5)],
        "worker-0/0/params": [(0, 7.0)],
        "worker-1/0/loss": [(0, 0.0), (1, 1.0)],
    }
    assert await reader.read() == {}
    more = row(1, 2, 0.4) + schema(3, "accuracy") + row(3, 0, 0.9) + row(1, 3, 0.3)
    await store.append(W0, 0, len(first), more + row(1, 4, 0.2)[:9])
    assert await reader.read() == {"worker-0/0/loss": [(2, 0.4), (3, 0.3)], "worker-0/0/accuracy": [(0, 0.9)]}
    await store.append(W0, 0, len(first + more) + 9, row(1, 4, 0.2)[9:])
    assert await reader.read() == {"worker-0/0/loss": [(4, 0.2)]}
    assert await reader.read() == {}


async def test_news_of_a_process_that_began_anew(store: storage.Metrics) -> None:
    """A reader that begins late gets what `series` gives; one that was there gets the later life from its begin."""
    reader = Reader(store)
    await store.append(W0, 0, 0, walk(range(4)))
    assert await reader.read() == {"worker-0/0/loss": [(step, float(step)) for step in range(4)]}
    again = schema(1, "loss") + b"".join(row(1, step, 100.0 + step) for step in range(2, 5))
    await store.append(W0_AGAIN, 0, 0, again)
    await store.append(LATER, 0, 0, schema(1, "loss") + row(1, 4, 204.0))
    assert await reader.read() == {"worker-0/0/loss": [(2, 102.0), (3, 103.0), (4, 204.0)]}
    assert await reader.read() == {}
    assert await Reader(store).read() == plain(await store.series("j-1"))


@pytest.mark.parametrize("points", [1, 300, 10_000])
async def test_news_come_in_parts_and_none_is_left_out(
    store: storage.Metrics, monkeypatch: pytest.MonkeyPatch, points: int
) -> None:
    """Also across the chunks that bytes become meanwhile: their points may come twice."""
    monkeypatch.setattr(metricfiles, "CHUNK_BYTES", 4000)
    reader, got, sent = Reader(store, points), dict[str, dict[int, float]](), {W0: 0, W1: 0}
    most = 0
    for begin in range(0, 1000, 100):
        for key, stride in ((W0, 1), (W1, 7)):
            data = walk(range(begin, begin + 100, stride))
            sent[key] = await store.append(key, 0, sent[key], data)
        for _ in range(begin % 3):
            found = await reader.read()
            most = max(most, sum(map(len, found.values())))
            for name, its in found.items():
                got.setdefault(name, {}).update(its)
    while found := await reader.read():
        for name, its in found.items():
            got.setdefault(name, {}).update(its)
    whole = plain(await store.series("j-1", points=10_000))
    assert {name: sorted(its.items()) for name, its in got.items()} == whole
    assert most <= points + 4000 // 31 + 100


async def test_a_reader_after_a_restart_of_the_server_goes_on(
    store: metricfiles.DirectoryMetrics, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metricfiles, "CHUNK_BYTES", 4000)
    reader = Reader(store)
    at = await store.append(W0, 0, 0, walk(range(50)))
    await reader.read()
    store.close()
    again = metricfiles.DirectoryMetrics(root)
    reader.store = again
    assert await reader.read() == {}
    await again.append(W0, 0, at, row(1, 50, 50.0))
    assert await reader.read() == {"worker-0/0/loss": [(50, 50.0)]}
    again.close()


async def test_the_groups_of_a_job_together_have_all_its_processes(
    store: storage.Metrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The points of those behind the first thousand never came. One that begins late moves another one on: it comes
    there from its beginning, so that none of its points is lost.
    """
    monkeypatch.setattr(arrivals, "MOST_PROCESSES", 2)
    for index in (1, 2, 3):
        await store.append(attempts.TaskKey("j-1", 1, "worker", index, 1), 0, 0, walk(range(2)))

    async def told(after: list[str]) -> tuple[list[dict[str, int]], list[str]]:
        found = [await store.news("j-1", after[group], group=group) for group in range(2)]
        assert {one.groups for one in found} == {2}
        counted = [{one.task: len(one.points) for one in its.series} for its in found]
        return counted, [one.after for one in found]

    counted, after = await told(["", ""])
    assert counted == [{"worker-1": 2, "worker-2": 2}, {"worker-3": 2}]
    counted, after = await told(after)
    assert counted == [{}, {}]
    await store.append(W0, 0, 0, walk(range(5)))
    counted, after = await told(after)
    assert counted == [{"worker-0": 5}, {"worker-2": 2}]
    assert (await told(after))[0] == [{}, {}]
    assert (await store.news("j-1", group=7)).series == []


@pytest.mark.parametrize(
    "after", ["x", "worker/0/0", "worker/0/0:1.1.-3", "../0/0:1.1.1", "worker/0/0:1.1.1,", "a" * 99]
)
async def test_a_text_that_is_not_a_cursor_is_refused(store: storage.Metrics, after: str) -> None:
    with pytest.raises(errors.InvalidInput, match="cursor"):
        await store.news("j-1", after)


async def test_a_name_in_two_schemas_is_one_series(store: storage.Metrics) -> None:
    data = schema(1, "loss") + schema(2, "loss", "accuracy")
    data += b"".join(
        row(2, step, float(step), 0.5) if step % 4 == 0 else row(1, step, float(step)) for step in range(12)
    )
    await store.append(W0, 0, 0, data)
    found = plain(await store.series("j-1"))
    assert found["worker-0/0/loss"] == [(step, float(step)) for step in range(12)]
    assert [step for step, _ in found["worker-0/0/accuracy"]] == [0, 4, 8]


async def test_nan_and_infinities_are_kept(store: storage.Metrics, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metricfiles, "CHUNK_BYTES", 1)
    values = [1.0, math.nan, math.inf, -math.inf, -0.0, 5e-324]
    data = schema(1, "loss") + b"".join(row(1, step, value) for step, value in enumerate(values))
    await store.append(W0, 0, 0, data)
    (found,) = await store.series("j-1")
    assert array("d", [point.value for point in found.points]).tobytes() == array("d", values).tobytes()
    (thin,) = await store.series("j-1", points=2)
    assert (thin.low, thin.high) == ((1.0, -math.inf), (math.inf, 5e-324))


async def test_many_points_become_few(store: storage.Metrics, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metricfiles, "CHUNK_BYTES", 5000)
    chance = random.Random(3)
    values = [chance.gauss(0, 1) for _ in range(5000)]
    data = schema(1, "loss") + b"".join(row(1, step, value) for step, value in enumerate(values))
    for at in range(0, len(data), 999):
        await store.append(W0, 0, at, data[at : at + 999])
    (found,) = await store.series("j-1", points=100)
    assert (found.count, len(found.points)) == (5000, 100)
    assert [point.step for point in found.points] == list(range(49, 5000, 50))
    assert [point.value for point in found.points] == values[49::50]
    assert found.low == tuple(min(values[at : at + 50]) for at in range(0, 5000, 50))
    assert found.high == tuple(max(values[at : at + 50]) for at in range(0, 5000, 50))
    (whole,) = await store.series("j-1", points=5000)
    assert [point.value for point in whole.points] == values
    assert whole.low == ()


async def test_a_quota(root: Path) -> None:
    store = metricfiles.DirectoryMetrics(root, quota_bytes=1000)
    data = walk(range(20))
    await store.append(W0, 0, 0, data)
    with pytest.raises(errors.TooLarge):
        await store.append(W1, 0, 0, data)
    assert plain(await store.series("j-1")) == {"worker-0/0/loss": [(step, float(step)) for step in range(20)]}
    store.close()
    again = metricfiles.DirectoryMetrics(root, quota_bytes=1000)
    with pytest.raises(errors.TooLarge):
        await again.append(W0, 0, len(data), data)
    assert await again.append(W0, 0, len(data), row(1, 20, 20.0)) > len(data)
    again.close()


async def test_forgetting(store: storage.Metrics, root: Path) -> None:
    await store.append(W0, 0, 0, walk(range(3)))
    await store.forget("j-1")
    assert await store.names("j-1") == []
    assert list(root.iterdir()) == []
    await store.append(W0, 0, 0, walk(range(3)))


async def test_metrics_that_are_deleted_under_a_reader_are_not_found(
    store: storage.Metrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    def deleted(*_: object) -> list[storage.Series]:
        raise FileNotFoundError("raw-0")

    await store.append(W0, 0, 0, walk(range(3)))
    monkeypatch.setattr(lives, "series", deleted)
    with pytest.raises(errors.NotFound, match="deleted while they were read") as caught:
        await store.series("j-1")
    assert caught.value.hint == "ask again"


class TestKilledBetween:
    """Each state of the disk in which a kill can leave a compaction."""

    async def stored(self, root: Path) -> Path:
        store = metricfiles.DirectoryMetrics(root)
        await store.append(W0, 0, 0, walk(range(10)))
        store.close()
        return next(root.rglob("raw-0")).parent

    async def check(self, root: Path) -> None:
        store = metricfiles.DirectoryMetrics(root)
        at = len(walk(range(10)))
        assert await store.append(W0, 0, at, row(1, 10, 10.0)) > at
        assert plain(await store.series("j-1"))["worker-0/0/loss"] == [(step, float(step)) for step in range(11)]
        store.close()

    def record(self, folder: Path, rows: int) -> bytes:
        raw = (folder / "raw-0").read_bytes()[: len(walk(range(rows)))]
        return chunks.encoded(raw, frames.parse(raw, {}), 0)

    async def test_a_torn_chunk(self, root: Path) -> None:
        folder = await self.stored(root)
        for size in (1, 20, 40, len(self.record(folder, 6)) - 1):
            (folder / "chunks").write_bytes(self.record(folder, 6)[:size])
            store = metricfiles.DirectoryMetrics(root)
            assert len(plain(await store.series("j-1"))["worker-0/0/loss"]) == 10
            store.close()
        await self.check(root)

    async def test_a_chunk_of_the_right_length_and_wrong_bytes(self, root: Path) -> None:
        folder = await self.stored(root)
        record = bytearray(self.record(folder, 6))
        record[-1] ^= 1
        (folder / "chunks").write_bytes(record)
        await self.check(root)

    async def test_a_chunk_and_the_old_raw_file(self, root: Path) -> None:
        folder = await self.stored(root)
        (folder / "chunks").write_bytes(self.record(folder, 6))
        await self.check(root)

    async def test_a_chunk_and_both_raw_files(self, root: Path) -> None:
        folder = await self.stored(root)
        record = self.record(folder, 6)
        (folder / "chunks").write_bytes(record)
        end = len(walk(range(6)))
        (folder / f"raw-{end}").write_bytes((folder / "raw-0").read_bytes()[end:])
        await self.check(root)
        assert [path.name for path in folder.glob("raw-*")] == [f"raw-{end}"]


@given(st.lists(st.floats(width=64, allow_nan=True), min_size=1, max_size=50))
def test_values_come_back_bit_for_bit(values: list[float]) -> None:
    column = array("d", values)
    assert columns.unpack_values(columns.pack_values(columns.planes_of(column))).tobytes() == column.tobytes()


@given(st.lists(st.integers(0, (1 << 64) - 1), min_size=1, max_size=50))
def test_steps_come_back(steps: list[int]) -> None:
    assert columns.unpack_steps(columns.pack_steps(array("Q", steps))).tolist() == steps


@given(st.lists(st.floats(width=64, allow_nan=True) | st.floats(0, 4e9), min_size=1, max_size=50))
def test_times_come_back_to_the_microsecond(times: list[float]) -> None:
    for before, after in zip(times, columns.unpack_times(columns.pack_times(array("d", times))), strict=True):
        assert before == after or abs(before - after) <= 1e-6 or (math.isnan(before) and math.isnan(after))


@given(
    st.lists(st.floats(-10, 10) | st.sampled_from((math.nan, math.inf, 1.7e308)), max_size=60),
    st.integers(1, 20),
    st.integers(1, 7),
)
def test_thinning_has_a_plain_answer(values: list[float], points: int, size: int) -> None:
    """The oracle cuts a list into buckets."""
    thinner = thinning.Thinner(len(values), points)
    for at in range(0, len(values), size):
        part = values[at : at + size]
        thinner.add(range(at, at + len(part)), [0.0] * len(part), array("d", part))
    found = thinner.series("worker-0", 0, "x")
    if len(values) <= points:
        assert [point.step for point in found.points] == list(range(len(values)))
        assert found.gaps == (), "each point shows it"
        return
    edges = [number * len(values) // points for number in range(points + 1)]
    for (start, stop), point, low, high in zip(
        itertools.pairwise(edges), found.points, found.low, found.high, strict=True
    ):
        known = [value for value in values[start:stop] if not math.isnan(value)] or [math.nan]
        assert point.step == stop - 1
        assert (low == min(known) and high == max(known)) or (math.isnan(low) and math.isnan(known[0]))
    firsts = [
        next((step for step in range(*edge) if not math.isfinite(values[step])), None)
        for edge in itertools.pairwise(edges)
    ]
    assert found.gaps == tuple(step for step in firsts if step is not None)


@pytest.mark.parametrize("compacted", [False, True])
async def test_a_part_of_the_steps_has_finer_points(
    store: metricfiles.DirectoryMetrics, monkeypatch: pytest.MonkeyPatch, compacted: bool
) -> None:
    monkeypatch.setattr(metricfiles, "CHUNK_BYTES", 500 if compacted else 1 << 30)
    data, sent = walk(range(1000)), 0
    for size in range(0, len(data), 1000):
        sent = await store.append(W0, 0, sent, data[size : size + 1000])
    await store.append(W0_AGAIN, 0, 0, walk(range(600, 900)))
    whole = (await store.series("j-1", points=10))[0]
    assert (whole.count, len(whole.points)) == (900, 10)
    part = (await store.series("j-1", points=10, steps=(595, 604)))[0]
    assert [point.step for point in part.points] == list(range(595, 605))
    assert [point.step for point in (await store.series("j-1", steps=(898, 5000)))[0].points] == [898, 899]
    assert await store.series("j-1", steps=(900, 5000)) == []


async def test_the_series_of_the_first_ranks_alone_are_read(
    store: metricfiles.DirectoryMetrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first task reports no loss, so that it counts as none of the ranks."""
    await store.append(attempts.TaskKey("j-1", 1, "chief", 0, 1), 0, 0, schema(1, "accuracy") + row(1, 0, 0.5))
    for index in range(20):
        await store.append(attempts.TaskKey("j-1", 1, "worker", index, 1), 0, 0, walk(range(3)))
    read: list[str] = []
    view = metricfiles.Stream.view

    def counted(stream: metricfiles.Stream) -> object:
        read.append(f"{stream.key.role}-{stream.key.index}")
        return view(stream)

    monkeypatch.setattr(metricfiles.Stream, "view", counted)
    assert list(plain(await store.series("j-1", ["loss"], ranks=2))) == ["worker-0/0/loss", "worker-1/0/loss"]
    assert read == ["chief-0", "worker-0", "worker-1"]
    found = plain(await store.series("j-1", ranks=1))
    assert list(found) == ["chief-0/0/accuracy", "worker-0/0/loss"], "each name has its own first rank"
    assert len(await store.series("j-1", ["loss"])) == 20
