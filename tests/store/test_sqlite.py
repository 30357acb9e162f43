"""SQLite keeps the contract; and the dangers of a file: its disk fills, fails, or is somewhere else."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
import sqlalchemy as sa
from tests import needs
from tests.store import nouns, programs
from tests.store.contract.stores import StoreContract

from oarlock.spec import errors, jobs, phases
from oarlock.store import stores
from oarlock.store.sql import database, filesystems, reading, sqlite, writer


class TestSqlite(StoreContract):
    @pytest.fixture
    def store(self, sqlite_store: database.SqlStore) -> stores.Store:
        return sqlite_store


MOUNTS = r"""
22 1 254:1 / / rw,relatime shared:1 - ext4 /dev/vda rw
30 22 0:40 / /home rw - nfs4 server:/home rw
31 30 254:2 / /home/local rw shared:2 master:1 - xfs /dev/vdb rw
32 22 0:41 / /mnt/with\040blank rw - fuse.sshfs me@there: rw
33 22 0:42 / /mnt/fuse rw - fuse.bindfs /x rw
34 22 0:43 / /homework rw - cifs //server/x rw
"""


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("/var/lib/oarlock", None),
        ("/home/ann/.oarlock", "nfs4"),
        ("/home/local/ann", None),
        ("/mnt/with blank/x", "fuse.sshfs"),
        ("/mnt/fuse/x", None),
        ("/homework", "cifs"),
        ("/homeworks", None),
    ],
)
def test_network_file_systems_are_known_by_the_longest_mount_above(path: str, found: str | None) -> None:
    assert filesystems.networked(Path(path), MOUNTS) == found


def test_a_network_file_system_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(f"30 22 0:40 / {tmp_path} rw - nfs4 server:/home rw\n")
    monkeypatch.setattr(filesystems, "MOUNTS", mounts)
    with pytest.raises(errors.Unavailable, match=r"network file system \(nfs4\)") as refused:
        database.open_store(f"sqlite:///{tmp_path}/store.db")
    assert "local disk" in refused.value.hint
    assert not (tmp_path / "store.db").exists()


@pytest.mark.parametrize("url", ["mysql://x/y", "sqlite://", "sqlite:///", "store.db", ""])
def test_another_database_is_refused(url: str) -> None:
    with pytest.raises(errors.InvalidInput, match="no database"):
        database.open_store(url)


def test_a_directory_or_rubbish_in_its_place_is_said(tmp_path: Path) -> None:
    with pytest.raises(errors.Unavailable, match="cannot be opened for writing"):
        database.open_store(f"sqlite:///{tmp_path}")
    rubbish = tmp_path / "rubbish.db"
    rubbish.write_bytes(b"this is no database" * 100)
    with pytest.raises(errors.Unavailable, match="damaged, or no database"):
        database.open_store(f"sqlite:///{rubbish}")


async def test_only_its_owner_can_read_it(tmp_path: Path) -> None:
    store = database.open_store(f"sqlite:///{tmp_path}/store.db")
    await store.write(lambda t: t.add_job(nouns.job(), at=1.0))
    files = list(tmp_path.glob("store.db*"))
    assert len(files) == 3, "no write-ahead log"
    assert {path.stat().st_mode & 0o777 for path in files} == {0o600}
    await store.close()
    assert [path.name for path in tmp_path.glob("store.db*")] == ["store.db"], "closing folds the log into the file"


async def test_commits_are_flushed(sqlite_store: database.SqlStore) -> None:
    """`synchronous=FULL` (2): what is acknowledged survives a loss of power, as far as the disk keeps its word."""

    def look(t: stores.Transaction) -> list[object]:
        return [t._connection.exec_driver_sql(f"PRAGMA {name}").scalar() for name in ("synchronous", "foreign_keys")]

    assert await sqlite_store.write(look) == [2, 1]


async def test_readers_cannot_write(sqlite_store: database.SqlStore) -> None:
    with pytest.raises(errors.Unavailable, match="SQLITE_READONLY"):
        await sqlite_store.read(lambda v: v._connection.exec_driver_sql("UPDATE log SET last_seq = 9"))
    assert await sqlite_store.read(lambda v: v.last_seq()) == 0


async def test_a_reader_sees_one_state_while_others_write(sqlite_store: database.SqlStore) -> None:
    loop = asyncio.get_running_loop()

    def look(v: stores.View) -> tuple[int, int]:
        before = v.last_seq()
        write = sqlite_store.write(lambda t: t.add_job(nouns.job(), at=1.0))
        asyncio.run_coroutine_threadsafe(write, loop).result(30)
        return before, v.last_seq()

    assert await sqlite_store.read(look) == (0, 0)
    assert await sqlite_store.read(lambda v: v.last_seq()) == 1


async def fill(store: database.SqlStore) -> tuple[int, errors.Unavailable]:
    """Add jobs with much in them until there is no room; how many were acknowledged, and what then was said."""
    for number in range(10_000):
        job = nouns.job(f"j-{number}", shell={"X": "x" * 20_000}, at=float(number))
        try:
            await store.write(lambda t, job=job: t.add_job(job, at=1.0, idempotency_key=job.id))
        except errors.Unavailable as failure:
            return number, failure
    raise AssertionError("it never was full")


async def stays_whole(store: database.SqlStore, stored: int) -> None:
    assert await store.read(lambda v: v.count()) == {phases.Phase.QUEUED: stored}
    assert await store.read(lambda v: (v.last_seq(), len(v.records(0)))) == (stored, stored)
    assert await store.read(lambda v: v.submitted("ann", f"j-{stored}")) is None


async def test_a_full_database_says_so_and_goes_on_when_there_is_room(sqlite_store: database.SqlStore) -> None:
    """As a full disk, where none can be mounted: the writer's connection may have no more pages."""

    async def limit(pages: int) -> None:
        await sqlite_store.write(lambda t: t._connection.exec_driver_sql(f"PRAGMA max_page_count={pages}").scalar())

    await limit(200)
    stored, failure = await fill(sqlite_store)
    assert "is full; nothing was changed" in failure.message
    assert failure.hint.startswith("Free some space there")
    await stays_whole(sqlite_store, stored)
    with pytest.raises(errors.Unavailable, match="is full"):
        await sqlite_store.probe(at=1.0)
    together = [
        sqlite_store.write(lambda t, n=n: t.add_job(nouns.job(f"k-{n}", shell={"X": "x" * 90_000}), at=1.0))
        for n in range(9)
    ]
    answers = await asyncio.gather(*together, return_exceptions=True)
    assert all(isinstance(answer, errors.Unavailable) for answer in answers)
    await stays_whole(sqlite_store, stored)
    await limit(100_000)
    await sqlite_store.probe(at=2.0)
    await sqlite_store.write(lambda t: t.add_job(nouns.job(f"j-{stored}"), at=1.0))
    await stays_whole_after(sqlite_store, stored + 1)


def zero(path: Path, offset: int, length: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(bytes(length))


@pytest.mark.parametrize("table", ["jobs", "submissions", "records", "heartbeat", "jobs_active", "jobs_by_phase"])
async def test_a_probe_meets_the_damage_that_a_submission_would_meet(sqlite_url: str, table: str) -> None:
    """The page where a table or an index begins is zeroed, as a failing disk or a stray `dd` leaves it."""
    path = Path(sqlite_url.removeprefix("sqlite:///"))
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        found = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (table,))
        page = found.fetchone()[0]
        size = connection.execute("PRAGMA page_size").fetchone()[0]
    store = database.open_store(sqlite_url)
    zero(path, (page - 1) * size, size)
    with pytest.raises(errors.Unavailable, match="is damaged"):
        await store.probe(at=1.0)
    await store.close()


async def test_a_probe_is_flushed_and_changes_nothing_that_anybody_sees(sqlite_url: str) -> None:
    store = database.open_store(sqlite_url)
    path = Path(sqlite_url.removeprefix("sqlite:///") + "-wal")
    before = path.stat().st_size
    await store.probe(at=1.0)
    await store.probe(at=2.0)
    assert path.stat().st_size - before > 2 * 16_000, "each probe writes its pages"
    assert await store.read(lambda v: (v.count(), v.last_seq(), v.submitted("", ""))) == ({}, 0, None)
    await store.close()


async def stays_whole_after(store: database.SqlStore, stored: int) -> None:
    assert await store.read(lambda v: (v.count(), v.last_seq())) == ({phases.Phase.QUEUED: stored}, stored)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with needs.small_disk(tmp_path / "disk", "2m") as place:
        yield place


async def test_a_full_disk_says_so_and_goes_on_when_there_is_room(small_disk: Path) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(b"x" * 500_000)
    store = database.open_store(f"sqlite:///{small_disk}/store.db")
    stored, failure = await fill(store)
    assert stored > 5
    assert "full" in failure.message or "fails" in failure.message
    await stays_whole(store, stored)
    ballast.unlink()
    await store.write(lambda t: t.add_job(nouns.job(f"j-{stored}"), at=1.0))
    await stays_whole_after(store, stored + 1)
    await store.close()
    store = database.open_store(f"sqlite:///{small_disk}/store.db")
    await stays_whole_after(store, stored + 1)
    await store.close()


async def test_a_flush_that_fails_is_not_acknowledged(sqlite_url: str, tmp_path: Path) -> None:
    """The kernel says EIO to a few flushes: the store says Unavailable, goes on, and loses nothing that it told."""
    calls = "fsync,fdatasync"
    inject = [
        "strace",
        "-f",
        "-qq",
        "-o",
        "/dev/null",
        "-e",
        f"trace={calls}",
        "-e",
        f"inject={calls}:error=EIO:when=6..8",
    ]
    tried = await asyncio.to_thread(subprocess.run, [*inject, "true"], capture_output=True, check=False)
    if tried.returncode != 0:
        needs.skip("tracing")

    def run() -> list[str]:
        with programs.running("try", sqlite_url, 30, cwd=tmp_path, before=inject) as writer:
            assert writer.finish() == 0, writer.errors
            return writer.lines

    lines = await asyncio.to_thread(run)
    refused = [line for line in lines if line.startswith("refused")]
    assert refused, "no flush has failed: the writer does not flush, or strace did not reach it"
    assert all("fails (SQLITE_IOERR" in line for line in refused)
    told = {line.split()[1] for line in lines if line.startswith("told")}
    assert len(told) + len(refused) == 30
    store = database.open_store(sqlite_url)
    found = await store.read(lambda v: {job.id for job in v.active()})
    assert told <= found
    records = await store.read(lambda v: v.records(0))
    assert [record.seq for record in records] == list(range(1, len(found) + 1))
    await store.close()


async def test_another_process_that_holds_the_lock_is_named_not_waited_for_for_ever(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "BUSY_TIMEOUT_S", 0.05)
    store = database.open_store(sqlite_url)
    other = sqlite3.connect(sqlite_url.removeprefix("sqlite:///"), isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(errors.Unavailable, match="another process holds"):
        await store.write(lambda t: t.add_job(nouns.job(), at=1.0))
    assert await store.read(lambda v: v.count()) == {}
    other.execute("COMMIT")
    other.close()
    await store.write(lambda t: t.add_job(nouns.job(), at=1.0))
    await store.close()


async def test_the_table_itself_cannot_hold_a_device_twice(url: str) -> None:
    """Whatever a transaction has looked at before: the row is there once."""
    store = database.open_store(url)
    slot = "INSERT INTO slots (node, kind, number, job, attempt) VALUES ('n1', 'device', 0, 'j-1', 1)"
    await store.write(lambda t: t.put_node(nouns.node()))
    await store.write(lambda t: t._connection.exec_driver_sql(slot).rowcount)
    with pytest.raises(errors.Conflict) as refused:
        await store.write(lambda t: t._connection.exec_driver_sql(slot))
    assert isinstance(refused.value.__cause__, sa.exc.IntegrityError)
    await store.close()


async def test_a_cancelled_write_that_was_not_begun_is_not_made(sqlite_store: database.SqlStore) -> None:
    loop = asyncio.get_running_loop()
    begun = asyncio.Event()
    may_go_on = asyncio.Event()

    def slow(t: stores.Transaction) -> None:
        loop.call_soon_threadsafe(begun.set)
        asyncio.run_coroutine_threadsafe(may_go_on.wait(), loop).result(30)

    first = asyncio.ensure_future(sqlite_store.write(slow))
    await begun.wait()
    second = asyncio.ensure_future(sqlite_store.write(lambda t: t.add_job(nouns.job(), at=1.0)))
    await asyncio.sleep(0)
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    may_go_on.set()
    await first
    assert await sqlite_store.read(lambda v: v.count()) == {}


async def test_active_jobs_that_stayed_are_not_read_again(
    sqlite_store: database.SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cluster with thousands of waiting jobs looks at them each second."""
    asked: list[list[str]] = []
    bodies = reading.SqlView.jobs_by_id

    def counted(view: reading.SqlView, ids: list[str]) -> dict[str, jobs.Job]:
        asked.append(ids)
        return bodies(view, ids)

    monkeypatch.setattr(reading.SqlView, "jobs_by_id", counted)
    await sqlite_store.write(lambda t: [t.add_job(nouns.job(f"j-{place}"), at=1.0) for place in range(3)])
    await sqlite_store.read(lambda v: v.active())
    await sqlite_store.write(lambda t: t.put_job(t.job("j-1"), at=1.0))
    await sqlite_store.read(lambda v: v.active())
    assert asked == [["j-0", "j-1", "j-2"], ["j-1"]]


async def test_a_change_that_meets_others_is_tried_a_few_times(
    sqlite_store: database.SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PostgreSQL ends one of two transactions that met; SQLite has no such failure."""
    monkeypatch.setattr(writer, "PAUSE_S", 0.0)
    met = sa.exc.OperationalError("UPDATE", {}, psycopg.errors.SerializationFailure("met"))

    async def tried(failures: int) -> tuple[int, bool]:
        runs = []

        def change(_: stores.Transaction) -> bool:
            runs.append(1)
            if len(runs) <= failures:
                raise met
            return True

        try:
            return len(runs), await sqlite_store.write(change)
        except errors.Unavailable:
            return len(runs), False

    assert [(await tried(failures))[1] for failures in (0, 1, 3, 4)] == [True, True, True, False]


async def test_a_group_in_which_one_change_is_wrong_keeps_the_others(sqlite_store: database.SqlStore) -> None:
    loop = asyncio.get_running_loop()
    queued = asyncio.Event()

    def first(_: stores.Transaction) -> None:
        asyncio.run_coroutine_threadsafe(queued.wait(), loop).result(30)

    writes = [
        sqlite_store.write(change)
        for change in (
            first,
            lambda t: t.add_job(nouns.job(), at=1.0),
            lambda t: t._connection.exec_driver_sql("SELECT ?", ()),  # a value too few
            lambda t: t.add_job(nouns.job("j-2"), at=1.0),
        )
    ]
    asked = [asyncio.ensure_future(write) for write in writes]
    await asyncio.sleep(0)
    queued.set()
    answers = await asyncio.gather(*asked, return_exceptions=True)
    assert isinstance(answers[2], errors.Unavailable)
    assert answers[2].message.startswith("the database: Incorrect number of bindings")
    assert await sqlite_store.read(lambda v: [job.id for job in v.active()]) == ["j-1", "j-2"]


async def test_a_store_that_was_forgotten_lets_its_process_end(sqlite_store: database.SqlStore) -> None:
    assert sqlite_store._writer._thread.daemon
    assert sqlite_store._watcher.daemon
