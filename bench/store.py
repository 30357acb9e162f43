"""The store by itself: `python -m bench.store [DATABASE_URL]` (else SQLite in a new directory under the present one).

One writer's latency; 64 clients with group commit; an open loop of 100 submits/s with 10,000 jobs stored; 1,000 jobs
through eight writes each; what a controller and a list ask for with 10,000 jobs stored, of which few or all are active.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
from rich import console as consoles
from rich import table as tables

from bench import table
from oarlock.spec import events, holdings, jobfile, jobs, phases
from oarlock.spec.cluster import nodes
from oarlock.store import stores
from oarlock.store.sql import database

STORED, ACTIVE, RATE, SECONDS, CLIENTS, EACH, LIVES, READS = 10_000, 20, 100, 5, 64, 20, 1_000, 20
WALK = (
    phases.Phase.DEPLOYING,
    phases.Phase.DEPLOYING,
    phases.Phase.DOWNLOADING,
    phases.Phase.PROCESSING,
    phases.Phase.PROCESSING,
    phases.Phase.STORING,
    phases.Phase.COMPLETED,
)


def run(url: str | None = None) -> list[table.Row]:
    """Under the present directory, not under /tmp: that may be memory, where nothing is flushed."""
    if url is not None:
        return asyncio.run(_measured(url))
    with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".bench-store-") as place:
        return asyncio.run(_measured(f"sqlite:///{place}/store.db"))


def _job(job_id: str, at: float, phase: phases.Phase = phases.Phase.QUEUED) -> jobs.Job:
    spec = jobfile.JobSpec(command="python train.py --epochs 5", env={f"NAME_{n}": "value" * 4 for n in range(8)})
    shell = {"PATH": "/usr/local/bin:/usr/bin:/bin", "VIRTUAL_ENV": "/home/user/work/.venv"}
    return jobs.Job(id=job_id, name=job_id, owner="ann", spec=spec, created_at=at, shell=shell, phase=phase)


async def _measured(url: str) -> list[table.Row]:
    store = database.open_store(url)
    kind = url.partition(":")[0]
    try:
        rows = [await _alone(store), await _together(store), await _lives(store)]
        await _fill(store, STORED)
        rows += [await _open_loop(store), *await _reads(store, f"{ACTIVE} of them active")]
        await _fill(store, STORED, phases.Phase.QUEUED, "queued")
        rows += await _reads(store, f"and {STORED:,} more that wait")
    finally:
        await store.close()
    return [table.Row(row.bench, f"{kind}: {row.what}", *_rest(row)) for row in rows]


def _rest(row: table.Row) -> tuple[float, str, float | None, bool, str]:
    return row.value, row.unit, row.reach, row.at_least, row.detail


async def _add(store: stores.Store, job_id: str) -> float:
    began = time.perf_counter()
    job = _job(job_id, time.time())
    await store.write(lambda t: t.add_job(job, at=1.0, idempotency_key=job_id, request_sha256="x"))
    return time.perf_counter() - began


async def _alone(store: stores.Store) -> table.Row:
    taken = [await _add(store, f"alone-{number}") * 1000 for number in range(300)]
    detail = f"p99 {table.percentile(taken, 0.99):.2f} ms"
    return table.Row("store", "a submit, one writer, median", table.median(taken), "ms", detail=detail)


async def _together(store: stores.Store) -> table.Row:
    async def client(number: int) -> list[float]:
        return [await _add(store, f"together-{number}-{place}") for place in range(EACH)]

    began = time.perf_counter()
    taken = [one for found in await asyncio.gather(*(client(number) for number in range(CLIENTS))) for one in found]
    rate = CLIENTS * EACH / (time.perf_counter() - began)
    detail = f"p99 {table.percentile(taken, 0.99) * 1000:.0f} ms"
    return table.Row("store", f"{CLIENTS} clients as fast as they can", rate, "submits/s", detail=detail)


async def _lives(store: stores.Store) -> table.Row:
    """Each job is added, holds a place, goes through its phases and gives it back: eight writes, 32 jobs at a time."""
    node = nodes.Node(
        name="n1", capacity=holdings.Resources(cpus_milli=10**6, memory_bytes=1 << 50), ports=(20000, 60000)
    )
    await store.write(lambda t: t.put_node(node))
    gate = asyncio.Semaphore(32)

    async def live(number: int) -> None:
        job_id = f"life-{number}"
        async with gate:
            await _add(store, job_id)
            claim = holdings.Holding(
                job=job_id,
                attempt=1,
                role="worker",
                index=0,
                node="n1",
                amount=holdings.Resources(cpus_milli=1000),
                ports=tuple(range(20000 + 4 * number, 20004 + 4 * number)),
            )
            for phase in WALK:
                await store.write(lambda t, phase=phase: _step(t, job_id, phase, claim))

    began = time.perf_counter()
    await asyncio.gather(*(live(number) for number in range(LIVES)))
    rate = LIVES / (time.perf_counter() - began)
    return table.Row("store", f"{LIVES:,} jobs through eight writes each", rate, "jobs/s", 10, at_least=True)


def _step(t: stores.Transaction, job_id: str, phase: phases.Phase, claim: holdings.Holding) -> None:
    job = t.job(job_id)
    assert job is not None
    if job.phase is phases.Phase.QUEUED:
        t.hold([claim])
    t.put_job(msgspec.structs.replace(job, phase=phase), [events.Launched(attempt=1)], at=1.0)
    if phase in phases.TERMINAL:
        t.release(job_id, 1)


async def _fill(store: stores.Store, count: int, phase: phases.Phase | None = None, prefix: str = "stored") -> None:
    def add(start: int) -> Callable[[stores.Transaction], None]:
        def change(t: stores.Transaction) -> None:
            for number in range(start, min(start + 200, count)):
                here = phase or (phases.Phase.QUEUED if number < ACTIVE else phases.Phase.COMPLETED)
                t.add_job(_job(f"{prefix}-{number}", float(number), here), at=1.0)

        return change

    if phase is None:  # jobs of earlier measurements wait no more
        for job in await store.read(lambda v: v.active()):
            over = msgspec.structs.replace(job, phase=phases.Phase.CANCELED)
            await store.write(lambda t, over=over: t.put_job(over, at=1.0))
    for start in range(0, count, 200):
        await store.write(add(start))


async def _open_loop(store: stores.Store) -> table.Row:
    asked, began = [], time.perf_counter()
    for number in range(RATE * SECONDS):
        await asyncio.sleep(max(0.0, began + number / RATE - time.perf_counter()))
        asked.append(asyncio.create_task(_add(store, f"open-{number}")))
    taken = [one * 1000 for one in await asyncio.gather(*asked)]
    what = f"{RATE} submits/s with {STORED:,} jobs stored, p99"
    detail = f"median {table.median(taken):.2f} ms"
    return table.Row("store", what, table.percentile(taken, 0.99), "ms", 100, detail=detail)


async def _reads(store: stores.Store, stored: str) -> list[table.Row]:
    page = stores.JobFilter(limit=50)
    deep = stores.JobFilter(limit=50, owner="ann", after=f"stored-{STORED // 2}")

    async def timed(ask: Callable[[], Awaitable[object]]) -> list[float]:
        taken = []
        for _ in range(READS):
            began = time.perf_counter()
            await ask()
            taken.append((time.perf_counter() - began) * 1000)
        return taken

    rows = []
    for what, ask in (
        ("active()", lambda: store.read(lambda v: v.active())),
        ("a page of 50", lambda: store.read(lambda v: v.jobs(page))),
        ("a page of 50 in the middle, of one owner", lambda: store.read(lambda v: v.jobs(deep))),
        ("count()", lambda: store.read(lambda v: v.count())),
    ):
        taken = await timed(ask)
        detail = table.spread(taken, "ms")
        rows.append(
            table.Row("store", f"{what}, {STORED:,} stored, {stored}", table.median(taken), "ms", detail=detail)
        )
    return rows


def main() -> None:
    shown = tables.Table("what", "measured", "reach", "reached", "how")
    for row in run(*sys.argv[1:2]):
        shown.add_row(*row.cells())
    consoles.Console(width=160).print(shown)


if __name__ == "__main__":
    main()
