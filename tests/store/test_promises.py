"""The promises of a database that several processes use, each of which may be killed at any moment.

Real processes and signals.
"""

from __future__ import annotations

import asyncio
import random
import signal
import time
from pathlib import Path

import pytest
from tests import marks
from tests.store import nouns, programs

from oarlock.spec import errors, phases
from oarlock.spec.process import failpoints
from oarlock.store import stores
from oarlock.store.sql import database

ONE_IS_ENOUGH = marks.long_except(["sqlite"], ["sqlite", "postgresql"])
"""Databases, for a promise that takes many writes of several processes. `make test-long` has PostgreSQL."""


async def everything(url: str) -> dict[str, str]:
    """Every stored job, with the key that it was made under; and whether the log tells of each once, without a gap."""
    store = database.open_store(url)
    try:
        found = await store.read(lambda v: {job.id: v.submitted(job.owner, job.id) for job in v.active()})
        records = await store.read(lambda v: v.records(0, limit=10**6))
        assert [record.seq for record in records] == list(range(1, len(records) + 1))
        assert sorted(record.job for record in records) == sorted(found)
        return found
    finally:
        await store.close()


def kill_after(url: str, cwd: Path, prefix: str, acknowledged: int) -> set[str]:
    """SIGKILL a writer after so many acknowledgements; all that it was told in the end."""
    with programs.running("submit", url, prefix, cwd=cwd) as writer:
        writer.until("open")
        for _ in range(acknowledged):
            writer.until(prefix)
        writer.process.kill()
        writer.finish()
        return set(writer.lines) - {"open"}


@pytest.mark.parametrize("url", ONE_IS_ENOUGH, indirect=True)
async def test_an_acknowledged_job_outlives_kill_9(url: str, tmp_path: Path) -> None:
    await lose_nothing(url, tmp_path, random.Random(1), rounds=4)


@pytest.mark.soak
async def test_an_acknowledged_job_outlives_kill_9_a_hundred_times(url: str, tmp_path: Path, seed: int) -> None:
    await lose_nothing(url, tmp_path, random.Random(seed), rounds=100)


async def lose_nothing(url: str, tmp_path: Path, chance: random.Random, rounds: int) -> None:
    told: set[str] = set()
    for number in range(rounds):
        told |= await asyncio.to_thread(kill_after, url, tmp_path, f"r{number}", chance.randint(1, 60))
        found = await everything(url)
        assert told <= set(found)
        assert all(made == (job_id, "x") for job_id, made in found.items())


@pytest.mark.parametrize("name", [name for name in failpoints.NAMES if name.startswith("store.")])
async def test_killed_at_a_failpoint_a_change_is_there_or_not(url: str, tmp_path: Path, name: str) -> None:
    """One client, so that it is known what each commit held."""

    def run() -> set[str]:
        with programs.running("submit", url, "j", 1, name, cwd=tmp_path) as writer:
            assert writer.finish() == -signal.SIGKILL, writer.errors
            return set(writer.lines) - {"open"}

    told = await asyncio.to_thread(run)
    assert len(told) == 5
    found = set(await everything(url))
    assert told <= found
    if name == "store.before_commit":
        assert found == told, "an uncommitted change is there"
    else:
        assert len(found - told) == 1, "a committed change, not yet told, is not there"


async def test_a_leader_that_was_stopped_past_its_expiry_writes_nothing_more(url: str, tmp_path: Path) -> None:
    store = database.open_store(url)
    await store.write(lambda t: t.add_job(nouns.job("j-shared"), at=1.0))
    ttl_s = 0.5
    with programs.running("lead", url, "first", ttl_s, cwd=tmp_path) as first:
        assert await asyncio.to_thread(first.until, "leads") == "leads 1"
        await asyncio.to_thread(first.until, "wrote")
        await stop_outside_a_transaction(store, first)
        said = len(first.lines)
        with programs.running("lead", url, "second", 1000, cwd=tmp_path) as second:
            assert await asyncio.to_thread(second.until, "leads") == "leads 2"
            await asyncio.to_thread(second.until, "wrote")
            seq = await store.read(lambda v: v.last_seq())
            first.process.send_signal(signal.SIGCONT)
            while len(first.lines) < said + 50:  # it may have said some things before that were not read yet
                await asyncio.to_thread(first.until, "")
        # What was committed before it was stopped it may have been told after.
        late = [line.split()[0] for line in first.lines[said:]]
        assert late.count("wrote") <= 1
        assert late[-40:] == ["stale"] * 40
    records = await store.read(lambda v: v.records(seq, limit=10**6))
    assert records
    assert {record.data["attempt"] for record in records} == {2}
    assert (await store.read(lambda v: v.job("j-shared"))).reason.startswith("second")
    await store.close()


async def stop_outside_a_transaction(store: database.SqlStore, leader: programs.Program) -> None:
    """SQLite's write lock stays with a stopped process. So stop it where it has none: where another can write."""
    for _ in range(20):
        leader.process.send_signal(signal.SIGSTOP)
        await asyncio.to_thread(leader.until_stopped)  # a thread of its may run on for a moment, and begin to write
        probe = asyncio.ensure_future(store.resign("nobody", 0))
        done, _ = await asyncio.wait({probe}, timeout=1.0)
        if done:
            return
        leader.process.send_signal(signal.SIGCONT)
        await probe
    raise AssertionError("it was never stopped outside a transaction")


def add_patiently(store: database.SqlStore, job: str) -> None:
    """Add the job as a client does that is told to try again while another process holds the lock."""
    deadline = time.monotonic() + programs.PATIENCE_S
    while True:
        try:
            return asyncio.run(store.write(lambda t: t.add_job(nouns.job(job), at=1.0)))
        except errors.Unavailable:
            assert time.monotonic() < deadline, "the lock was never free"


async def test_a_process_stopped_within_a_transaction_loses_it(postgres_url: str, tmp_path: Path) -> None:
    """PostgreSQL ends its session, so that the others go on."""
    store = database.open_store(postgres_url)

    def stop(name: str) -> int:
        with programs.running("stall", postgres_url, cwd=tmp_path) as stalled:
            stalled.until("inside")
            stalled.process.send_signal(signal.SIGSTOP)
            add_patiently(store, "j-2")
            stalled.process.send_signal(signal.SIGCONT)
            return stalled.until("stored").count("again")

    assert await asyncio.to_thread(stop, "x") == 1
    records = await store.read(lambda v: v.records(0))
    assert [(record.seq, record.job) for record in records] == [(1, "j-2"), (2, "j-1")]
    await store.close()


async def test_nor_does_one_stopped_between_two_rows_keep_the_lock(postgres_url: str, tmp_path: Path) -> None:
    """Sent as a pipeline, they would leave the session waiting for the next row, without any limit."""
    store = database.open_store(postgres_url)

    def stop() -> int:
        with programs.running("stall_between_rows", postgres_url, cwd=tmp_path) as stalled:
            stalled.until("inside")
            stalled.until_stopped()
            add_patiently(store, "j-2")
            stalled.process.send_signal(signal.SIGCONT)
            return stalled.until("stored").count("again")

    assert await asyncio.to_thread(stop) == 1
    await store.close()


@pytest.mark.parametrize("url", ONE_IS_ENOUGH, indirect=True)
@pytest.mark.parametrize("what", marks.long_except(["hold"], ["hold", "share"]))
async def test_no_device_is_held_twice_by_two_processes(url: str, tmp_path: Path, what: str) -> None:
    store = database.open_store(url)
    devices, rounds, processes = 3, 20, 2
    await store.write(lambda t: t.put_node(nouns.node(devices=devices)))
    for number in range(processes):
        await store.write(lambda t, number=number: t.add_job(nouns.job(f"j-{number}"), at=1.0))

    def run() -> list[list[int]]:
        with (
            programs.running(what, url, "j-0", rounds, devices, cwd=tmp_path) as one,
            programs.running(what, url, "j-1", rounds, devices, cwd=tmp_path) as other,
        ):
            for program in (one, other):
                program.until("open")
            for program in (one, other):
                program.tell("go")
            return [[int(number) for number in program.until("done").split()[1:]] for program in (one, other)]

    counts = await asyncio.to_thread(run)
    assert all(got + lost >= rounds for got, lost in counts)
    assert all(got for got, _ in counts)
    assert sum(lost for _, lost in counts), "they never met: the test shows nothing"
    assert await store.read(lambda v: v.holdings()) == []
    await store.close()


@pytest.mark.parametrize("url", ONE_IS_ENOUGH, indirect=True)
async def test_a_reader_misses_no_line_of_many_writers(url: str, tmp_path: Path) -> None:
    count, processes = 150, 2

    def run() -> list[str]:
        with (
            programs.running("follow", url, count * processes, cwd=tmp_path) as reader,
            programs.running("add", url, "a", count, cwd=tmp_path) as one,
            programs.running("add", url, "b", count, cwd=tmp_path) as other,
        ):
            for program in (one, other, reader):
                assert program.finish() == 0, program.errors
            return reader.lines[1:]

    lines = [line.split() for line in await asyncio.to_thread(run)]
    assert [int(seq) for seq, _ in lines] == list(range(1, count * processes + 1))
    assert {job for _, job in lines} == {f"{prefix}-{number}" for prefix in "ab" for number in range(count)}


async def test_one_key_makes_one_job_across_processes(url: str, tmp_path: Path) -> None:
    """Both servers are asked the same under the same keys; the second one gets the first one's job."""
    stores = [database.open_store(url) for _ in range(2)]

    def submit(number: int, server: int):
        def change(t: stores.Transaction) -> str:
            if (made := t.submitted("ann", f"key-{number}")) is not None:
                return made[0]
            time.sleep(0.0005)  # the other looks too
            job = nouns.job(f"j-{number}-{server}", name=f"n-{number}")
            return t.add_job(job, at=1.0, idempotency_key=f"key-{number}").id

        return change

    asked = [store.write(submit(number, server)) for number in range(50) for server, store in enumerate(stores)]
    answers = await asyncio.gather(*asked)
    assert answers[0::2] == answers[1::2]
    assert await stores[0].read(lambda v: v.count()) == {phases.Phase.QUEUED: 50}
    for store in stores:
        await store.close()
