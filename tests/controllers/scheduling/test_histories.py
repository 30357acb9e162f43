"""The memory of jobs that have ended."""

from __future__ import annotations

import msgspec
import pytest
from tests.store import nouns

from oarlock.controllers.scheduling import histories
from oarlock.spec import curves, jobs, phases, plans
from oarlock.store import memory


def over(place: int, served_s: float = 60.0, phase: phases.Phase = phases.Phase.COMPLETED) -> jobs.Job:
    job = nouns.job(f"j-{place}", at=float(place), name=f"train-{place}", owner="ada", served_s=served_s)
    return msgspec.structs.replace(nouns.ended(job, phase), ended_at=100.0 - place)


async def written(*these: jobs.Job) -> memory.MemoryStore:
    store = memory.MemoryStore()
    for job in these:
        await store.write(lambda tx, job=job: tx.add_job(job, at=1.0))
    return store


def names(history: histories.History) -> list[str]:
    return [one.name for one in history.ended]


async def test_a_server_that_starts_knows_those_that_were_over_before_in_the_order_of_their_ends() -> None:
    history = histories.History(await written(over(1), over(2, phase=phases.Phase.FAILED), nouns.job("j-3", at=3.0)))
    await history.learn([])
    assert history.ended == (
        plans.Ended(owner="ada", name="train-2", served_s=60.0),
        plans.Ended(owner="ada", name="train-1", served_s=60.0),
    )


async def test_a_job_that_ends_later_is_added_once() -> None:
    store = await written(over(1))
    history = histories.History(store)
    await history.learn([])
    before = history.ended
    await history.learn([])
    assert history.ended is before
    await store.write(lambda tx: tx.add_job(over(2), at=2.0))
    await history.learn(["j-2", "j-1", "never-was"])
    await history.learn(["j-2"])
    assert names(history) == ["train-1", "train-2"]


async def test_a_job_that_was_never_served_tells_nothing_nor_does_one_that_is_halted() -> None:
    halted = msgspec.structs.replace(nouns.job("j-9", at=9.0, served_s=5.0), phase=phases.Phase.HALTED)
    store = await written(over(1, served_s=0.0), halted)
    history = histories.History(store)
    await history.learn([])
    await history.learn(["j-9"])
    assert history.ended == ()


async def test_only_the_last_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(histories, "KEPT", 2)
    store = await written(over(1), over(2))
    history = histories.History(store)
    await history.learn([])
    await store.write(lambda tx: tx.add_job(over(3), at=2.0))
    await history.learn(["j-3"])
    assert names(history) == ["train-1", "train-3"]


async def test_how_fast_it_was_on_each_type_of_gpu_is_remembered() -> None:
    """Jobs of its kind are compared by it."""
    model = curves.Allreduce(compute_s=0.1, compute_per_example_s=0.01)
    on = (curves.OnType(gpu_type="t4", model=model),)
    known = msgspec.structs.replace(over(1), curve=curves.Curve(model=model, types=on))
    history = histories.History(await written(known, over(2)))
    await history.learn([])
    assert {one.name: one.types for one in history.ended} == {"train-1": on, "train-2": ()}
