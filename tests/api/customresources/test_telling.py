"""The Events of OarlockJobs tell each line of their jobs' stories, whichever server leads, and each of them once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import cast

import pytest
import structlog
from tests.api import rig as rigs
from tests.api.customresources.desks import PATIENCE_S, Desk, is_true

from oarlock.api.customresources import clusterobjects, telling, translation
from oarlock.backends.kubernetes import oarlockjobs
from oarlock.spec import events, resources
from oarlock.store import stores


def is_kept(view: stores.View) -> bool:
    return view.cursor(telling.CURSOR) == view.last_seq()


async def until_kept(desk: Desk) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not await desk.rig.store.read(is_kept):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)


async def until_told(desk: Desk, reason: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not any(one["reason"] == reason for one in desk.cluster.told.values()):
        assert time.monotonic() < deadline, desk.cluster.told
        await asyncio.sleep(0.05)


async def test_events_tell_the_story_of_the_job_once(rig: rigs.Rig) -> None:
    desk = Desk(rig)
    told = desk.cluster.told
    async with desk.serving():
        await desk.apply(desk.ann, "train")
        await desk.until(desk.ann, "train", is_true("Admitted"))
        job = await desk.rig.launch(await desk.job("train"))
        desk.cluster.lost = 3  # answers: the Event is written again under its name
        await desk.rig.end(job.id, code=1)
        await until_told(desk, "Failed")
    story = [(one["type"], one["reason"], one["message"]) for one in told.values()]
    assert story[0] == ("Normal", "Admitted", "attempt 1: 1 task on here")
    assert [reason for _, reason, _ in story if reason in {"Deploying", "Processing", "Failed"}] == [
        "Deploying",
        "Processing",
        "Failed",
    ]
    assert story[-1][0] == "Warning"
    assert {one["involvedObject"]["name"] for one in told.values()} == {"train"}


@pytest.mark.parametrize("killed", [False, True], ids=["kept", "killed"])
async def test_the_next_leader_tells_what_happened_before_it(
    rig: rigs.Rig, monkeypatch: pytest.MonkeyPatch, killed: bool
) -> None:
    """The control loops lead at once, and write before the face has looked at the cluster. A server that is killed has
    not kept its last place in the log: the Events behind it are written again, under their names.
    """
    desk = Desk(rig)
    monkeypatch.setattr(telling, "KEEP_EVERY_S", 3600.0 if killed else 0.02)
    async with desk.serving():
        await desk.apply(desk.ann, "train")
        await desk.until(desk.ann, "train", is_true("Admitted"))
        job = await desk.rig.launch(await desk.job("train"))
        await until_told(desk, "Deploying")
        if not killed:
            await until_kept(desk)
    before = dict(desk.cluster.told)
    await desk.rig.end(job.id, code=1)
    async with desk.serving():
        await until_told(desk, "Failed")
    told = desk.cluster.told
    assert {name: told[name] for name in before} == before
    assert len({(one["reason"], one["message"]) for one in told.values()}) == len(told), "each is there once"


@pytest.mark.parametrize("of", ["made", "written"])
async def test_an_event_that_fails_is_reported_and_passed_over(
    rig: rigs.Rig, monkeypatch: pytest.MonkeyPatch, of: str
) -> None:
    """The lines after it are told, and no later leader meets it again."""
    desk = Desk(rig)
    monkeypatch.setattr(telling, "KEEP_EVERY_S", 0.02)
    make, write = translation.event, oarlockjobs.OarlockJobs.tell

    def made(record: events.Record) -> resources.Event | None:
        if record.kind == "phase" and record.data["to"] == "PROCESSING":
            raise KeyError("from")
        return make(record)

    async def written(self: oarlockjobs.OarlockJobs, found: resources.OarlockJob, event: resources.Event) -> None:
        if event.reason == "Processing":
            raise TypeError("not a text")
        await write(self, found, event)

    if of == "made":
        monkeypatch.setattr(translation, "event", made)
    else:
        monkeypatch.setattr(oarlockjobs.OarlockJobs, "tell", written)
    async with desk.serving():
        uid = await desk.apply(desk.ann, "train")
        await desk.until(desk.ann, "train", is_true("Admitted"))
        job = await desk.rig.launch(await desk.job("train"))
        await desk.rig.end(job.id, code=1)
        await until_told(desk, "Failed")
        await until_kept(desk)
        ((what, facts),) = rig.reports
        rig.reports.clear()
    assert (what, facts["uid"], type(facts["error"])) == (
        "resource_failed",
        uid,
        KeyError if of == "made" else TypeError,
    )
    assert "Processing" not in {one["reason"] for one in desk.cluster.told.values()}
    async with desk.serving():
        await desk.apply(desk.ann, "next")
        await desk.until(desk.ann, "next", is_true("Admitted"))
        await until_kept(desk)
    assert not rig.reports


class SlowObjects:
    """The part of `clusterobjects.Objects` that writes Events: once it may."""

    def __init__(self, uid: str) -> None:
        self.items = {uid: resources.OarlockJob(metadata=resources.Meta(name="train", uid=uid))}
        self.may = asyncio.Event()
        self.told: asyncio.Queue[int] = asyncio.Queue()

    async def tell(self, found: resources.OarlockJob, event: resources.Event) -> None:
        await self.may.wait()
        self.told.put_nowait(event.number)


def untold(rig: rigs.Rig, slow: SlowObjects, waits: Callable[[float], bool] = lambda since: False) -> telling.Telling:
    objects = cast(clusterobjects.Objects, slow)
    return telling.Telling(rig.services, objects, waits=waits, monotonic=time.monotonic)


async def test_events_wait_for_launches_unless_too_many_do(rig: rigs.Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telling, "PAUSE_S", 0.01)
    monkeypatch.setattr(telling, "MOST_UNTOLD", 8)
    slow, asked = SlowObjects("u-1"), asyncio.Queue[float]()
    slow.may.set()
    launches = True

    def waits(since: float) -> bool:
        asked.put_nowait(since)
        return launches

    one = untold(rig, slow, waits)
    await one.begin(0)

    def note(seq: int) -> None:
        phase = {"from": "QUEUED", "to": "DEPLOYING"}
        one.note(events.Record(seq=seq, at=0.0, job="j-1", kind="phase", version=seq, data=phase), "u-1")

    began = time.monotonic()
    note(1)
    running = asyncio.create_task(one.run())
    for _ in range(5):
        assert began <= await asked.get() <= time.monotonic(), "since it was noted"
    assert slow.told.empty()
    for seq in range(2, 6):  # half of the places
        note(seq)
    assert await slow.told.get() == 1
    while not asked.empty():
        asked.get_nowait()
    for _ in range(5):
        await asked.get()
    assert slow.told.empty(), "the others wait again"
    launches = False
    assert [await slow.told.get() for _ in range(4)] == [2, 3, 4, 5]
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_the_log_says_how_many_events_were_left_out(rig: rigs.Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telling, "MOST_UNTOLD", 2)
    slow = SlowObjects("u-1")
    one = untold(rig, slow)
    await one.begin(0)

    def note(numbers: range) -> None:
        for seq in numbers:
            phase = {"from": "QUEUED", "to": "DEPLOYING"}
            one.note(events.Record(seq=seq, at=0.0, job="j-1", kind="phase", version=seq, data=phase), "u-1")

    with structlog.testing.capture_logs() as logged:
        note(range(1, 6))
        running = asyncio.create_task(one.run())
        slow.may.set()
        told = [await slow.told.get() for _ in range(2)]
        note(range(6, 8))
        told += [await slow.told.get() for _ in range(2)]
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert told == [1, 2, 6, 7]
    assert [(line["event"], line.get("count")) for line in logged] == [
        ("resources.events_left_out", None),
        ("resources.events_were_left_out", 3),
    ]
