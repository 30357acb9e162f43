"""Writes that many tests of the contract begin with, and the lines of the event log in short."""

from __future__ import annotations

from tests.store import nouns

from oarlock.spec import events
from oarlock.store import stores


def kinds(records: list[events.Record]) -> list[tuple[int, str, str, int]]:
    return [(record.seq, record.job, record.kind, record.version) for record in records]


async def add(store: stores.Store, *ids: str, **more) -> None:
    for place, job_id in enumerate(ids, start=1):
        await store.write(lambda t, i=job_id, at=place: t.add_job(nouns.job(i, at=float(at), **more), at=1.0))


async def finish(store: stores.Store, job_id: str) -> None:
    await store.write(lambda t: t.put_job(nouns.ended(t.job(job_id)), at=5.0))
