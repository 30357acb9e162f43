"""Many small changes in one transaction: a commit costs the same for a hundred as for one.

When one of them fails, each is tried in a transaction of its own, so that a bad one stops no other.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TypeVar

from oarlock.lifecycle import stepping
from oarlock.spec import errors, events, jobs
from oarlock.store import stores

Item = TypeVar("Item")
Result = TypeVar("Result")

MOST = 200
"""Changes in one transaction. More would keep others waiting."""

Report = Callable[[str, Exception], None]
"""A function that is told of a failure: the name of the item, and the error."""


async def each(
    store: stores.Store,
    items: Sequence[Item],
    change: Callable[[stores.Transaction, Item], Result],
    *,
    epoch: int,
    report: Report,
    named: Callable[[Item], str] = str,
    prepare: Callable[[stores.Transaction, Sequence[Item]], object] = lambda tx, items: None,
) -> list[Result | None]:
    """Return the result of `change` for each item, in their order; None for a failure, which is reported.

    `named` returns the id of the item's job. The jobs of a transaction are read together before the first change.
    `prepare` may read more that all of them need.

    Raises StaleEpoch and Unavailable: then nothing can be written at all, and everything written so far stays.
    """

    def changes(tx: stores.Transaction, part: Sequence[Item]) -> list[Result]:
        tx.jobs_by_id([named(item) for item in part])
        prepare(tx, part)
        return [change(tx, item) for item in part]

    results: list[Result | None] = []
    for start in range(0, len(items), MOST):
        part = items[start : start + MOST]
        try:
            results += await store.write(functools.partial(changes, part=part), epoch=epoch)
        except (errors.StaleEpoch, errors.Unavailable):
            raise
        except Exception:  # noqa: BLE001 - whichever it was is found and reported below
            for item in part:
                results.append(await _alone(store, item, change, epoch=epoch, report=report, named=named))
    return results


async def tell(
    store: stores.Store,
    told: Sequence[tuple[str, events.AnyEvent]],
    *,
    epoch: int,
    at: float,
    report: Report,
) -> list[jobs.Job | None]:
    """Record each of these facts about the job of that id; the jobs after it, None where it changed nothing."""

    def record(tx: stores.Transaction, item: tuple[str, events.AnyEvent]) -> jobs.Job | None:
        job = tx.job(item[0])
        after = stepping.step(job, item[1], at) if job is not None else None
        return None if after is None or after is job else tx.put_job(after, [item[1]], at=at)

    return await each(store, told, record, epoch=epoch, report=report, named=lambda item: item[0])


async def _alone(
    store: stores.Store,
    item: Item,
    change: Callable[[stores.Transaction, Item], Result],
    *,
    epoch: int,
    report: Report,
    named: Callable[[Item], str],
) -> Result | None:
    try:
        return await store.write(lambda tx: change(tx, item), epoch=epoch)
    except (errors.StaleEpoch, errors.Unavailable):
        raise
    except Exception as error:  # noqa: BLE001 - one bad job must not stop the others
        report(named(item), error)
        return None
