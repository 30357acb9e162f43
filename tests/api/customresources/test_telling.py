"""The Events of OarlockJobs tell each line of their jobs' stories, whichever server leads, and each of them once."""

from __future__ import annotations

import asyncio
import time

import pytest
from tests.api import rig as rigs
from tests.api.customresources.desks import PATIENCE_S, Desk, is_true

from oarlock.api.customresources import telling
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
