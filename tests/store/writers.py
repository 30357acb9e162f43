"""Programs that the store's tests start, stop and kill: `python -m tests.store.writers NAME URL ARGUMENT...`.

Each prints a line for each finished change, and flushes it: a printed change was acknowledged.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import psycopg
import sqlalchemy as sa
from psycopg.types import string
from tests.store import nouns

from oarlock.spec import errors, events
from oarlock.spec.process import failpoints
from oarlock.store import stores
from oarlock.store.sql import database, postgres, schema


def say(*words: object) -> None:
    print(*words, flush=True)


async def submit(store: stores.Store, prefix: str, writers: str = "4", failpoint: str = "") -> None:
    """Add jobs until we are killed, each under a key; print each that was acknowledged."""
    if failpoint:
        reached = itertools.count()
        # Not at once: the first group would be all that there ever was.
        failpoints.arm(failpoint, lambda: os.kill(os.getpid(), signal.SIGKILL) if next(reached) >= 5 else None)

    async def one(writer: int) -> None:
        for number in itertools.count():
            job_id = f"{prefix}-{writer}-{number}"
            job = nouns.job(job_id, at=time.time())
            made = await store.write(
                lambda t, job=job: t.add_job(job, at=1.0, idempotency_key=job.id, request_sha256="x")
            )
            say(made.id)

    await asyncio.gather(*(one(writer) for writer in range(int(writers))))


async def lead(store: stores.Store, holder: str, ttl_s: str) -> None:
    """Take the leadership, then write under that epoch, never renewing it and never looking at a clock."""
    while (epoch := await store.lead(holder, now=time.time(), ttl_s=float(ttl_s))) is None:
        await store.wait(sys.maxsize, 0.02)
    say("leads", epoch)
    for number in itertools.count(1):

        def change(t: stores.Transaction, number: int = number) -> None:
            job = t.job("j-shared")
            assert job is not None
            t.put_job(
                msgspec.structs.replace(job, reason=f"{holder} {number}"), [events.Launched(attempt=epoch)], at=1.0
            )

        try:
            await store.write(change, epoch=epoch)
            say("wrote", number)
        except errors.StaleEpoch:
            say("stale", number)
        except errors.Unavailable as failure:
            say("unavailable", failure.message)
        await asyncio.sleep(0.002)


async def attempt(store: stores.Store, count: str) -> None:
    """Add so many jobs, one after another; print for each whether it was told done or refused."""
    for number in range(int(count)):
        job = nouns.job(f"j-{number}")
        try:
            await store.write(lambda t, job=job: t.add_job(job, at=1.0))
            say("told", job.id)
        except errors.Unavailable as failure:
            say("refused", job.id, failure.message)


async def write_patiently(store: stores.Store, change: Callable[[stores.Transaction], None]) -> None:
    """Write as a client does that is told to try again, however slow the machine is: the test's time-out ends it."""
    while True:
        try:
            return await store.write(change)
        except errors.Unavailable as failure:
            say("unavailable", failure.message)


def open_patiently(url: str) -> stores.Store:
    """Open the store, however often a slow machine exceeds the short idle limit of these tests before it is open."""
    while True:
        try:
            return database.open_store(url)
        except errors.Unavailable as failure:
            say("unavailable", failure.message)


async def stall(store: stores.Store) -> None:
    """Say `inside` within a transaction, take a moment, and go on; say how often it was begun."""
    runs = itertools.count(1)
    last = 0

    def change(t: stores.Transaction) -> None:
        nonlocal last
        last = next(runs)
        t.add_job(nouns.job("j-1"), at=1.0)
        if last == 1:
            say("inside")
            time.sleep(1.0)

    await write_patiently(store, change)
    say("stored", "again" if last > 1 else "at once")


class Stopping(str):
    """A text that stops this process, as SIGSTOP does, when the driver makes bytes of it for the first time."""


class StoppingDumper(string.StrDumper):
    stopped = False

    def dump(self, obj: str) -> bytes:
        if not StoppingDumper.stopped:
            StoppingDumper.stopped = True
            say("inside")
            # To this thread: one that is sent to the process stops its main thread, and this one goes on for a moment.
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
        return obj.encode()


async def stall_between_rows(store: stores.Store) -> None:
    """Be stopped half-way through the rows of one insertion; say how often it was begun."""
    runs = itertools.count(1)
    last = 0

    def change(t: stores.Transaction) -> None:
        nonlocal last
        last = next(runs)
        row = {"at": 1.0, "job": "j-1", "kind": "many", "version": 1}
        texts = ["{}"] * 500 + [Stopping("{}")]
        rows = [row | {"seq": t.last_seq() + 1000 + place, "data": text} for place, text in enumerate(texts)]
        t._connection.execute(sa.insert(schema.records), rows)

    await write_patiently(store, change)
    say("stored", "again" if last > 1 else "at once")


async def hold(store: stores.Store, job: str, rounds: str, devices: str) -> None:
    """Grab devices of n1 that were free a moment ago, and let them go, again and again; print what was got and lost.

    So many times, or more: until another was once quicker. Begins when it is told to.
    """
    await asyncio.to_thread(sys.stdin.readline)
    got = lost = 0
    for number in range(20 * int(rounds)):
        if number >= int(rounds) and lost:
            break
        taken = {device for claim in await store.read(lambda v: v.holdings()) for device in claim.devices}
        free = [device for device in range(int(devices)) if device not in taken] or [number % int(devices)]
        wanted = nouns.claim(job, devices=tuple(free[:2]), cpus=0, memory=0)
        try:
            await store.write(lambda t, wanted=wanted: t.hold([wanted]))
        except errors.AlreadyHeld:
            lost += 1
            continue
        got += 1
        for device in wanted.devices:
            os.mkdir(f"device-{device}")  # noqa: PTH102 - the oracle: it fails when somebody else is in there
        for device in wanted.devices:
            os.rmdir(f"device-{device}")  # noqa: PTH106 - as above
        await store.write(lambda t: t.release(job, 1))
    say("done", got, lost)


async def share(store: stores.Store, job: str, rounds: str, devices: str) -> None:
    """Grab shares of devices of n1, now and then a whole one, and let them go; print what was got and lost. As `hold`:
    so many times, or more.
    """
    await asyncio.to_thread(sys.stdin.readline)
    got = lost = 0
    for number in range(20 * int(rounds)):
        if number >= int(rounds) and lost:
            break
        device, milli = number % int(devices), (300, 500, 700, 1000)[number // int(devices) % 4]
        wanted = nouns.share(job, device=device, milli=milli) if milli < 1000 else nouns.claim(job, devices=(device,))
        try:
            await store.write(lambda t, wanted=wanted: t.hold([wanted]))
        except errors.AlreadyHeld:
            lost += 1
            continue
        got += 1
        mine = Path(f"{device}-{job}-{milli}")
        mine.touch()
        inside = sum(int(path.name.rsplit("-", 1)[1]) for path in Path().glob(f"{device}-*"))
        assert inside <= 1000, f"{inside} thousandths of device {device} are in use"
        mine.unlink()
        await store.write(lambda t: t.release(job, 1))
    say("done", got, lost)


async def follow(store: stores.Store, count: str) -> None:
    """Print every `seq` and job of the log, reading on from the last, until there are so many."""
    after, seen = 0, 0
    while seen < int(count):
        await store.wait(after, 5.0)
        for record in await store.read(lambda v, after=after: v.records(after, limit=50)):
            say(record.seq, record.job)
            after, seen = record.seq, seen + 1


async def add(store: stores.Store, prefix: str, count: str) -> None:
    """Add so many jobs, sixteen at a time; every seventh change fails after it has made its records."""

    async def one(writer: int) -> None:
        for number in range(writer, int(count), 16):
            await store.write(lambda t, number=number: t.add_job(nouns.job(f"{prefix}-{number}"), at=1.0))
            if number % 7 == 0:
                try:
                    await store.write(
                        lambda t, number=number: (t.add_job(nouns.job(f"x-{prefix}-{number}"), at=1.0), 1 / 0)
                    )
                except ZeroDivisionError:
                    continue

    await asyncio.gather(*(one(writer) for writer in range(16)))
    say("done")


async def main(name: str, url: str, *arguments: str) -> None:
    if name.startswith("stall"):
        postgres.IDLE_LIMIT_S = 1  # the test waits for it
        psycopg.adapters.register_dumper(Stopping, StoppingDumper)  # connections copy what there is when they are made
    store = open_patiently(url)
    say("open")
    programs = {
        "submit": submit,
        "try": attempt,
        "lead": lead,
        "stall": stall,
        "stall_between_rows": stall_between_rows,
    }
    programs |= {"hold": hold, "share": share, "follow": follow, "add": add}
    await programs[name](store, *arguments)
    await store.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
