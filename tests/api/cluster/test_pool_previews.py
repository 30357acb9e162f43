"""The dry run of a change of a pool: its effects, its refusals, and that it changes nothing."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import httpx
import msgspec
import pytest
from tests.api import rig as rigs
from tests.api.cluster import test_pools
from tests.api.jobs import test_outlook

from oarlock.api.cluster import poolpreviews as previews
from oarlock.api.services.turns import MOST_WAITING
from oarlock.display.pools import poolpreviews
from oarlock.spec import bodies


async def ask(rig: rigs.Rig, name: str, who: str = "root", **fields: Any) -> httpx.Response:
    async with rig.as_user(who) as http:
        return await http.post(f"/api/v1/pools/{name}/preview", json=fields)


async def test_a_change_tells_entitlements_and_the_jobs_that_start(rig: rigs.Rig) -> None:
    await test_pools.change(rig, "research", limit={"gpus": 1})
    await test_outlook.fill(rig, "runs", 1, "bob", pool="research")
    await rig.submit("ann", name="waits", pool="research", roles={"worker": {"gpus": 1}})
    before = await test_pools.shown(rig)
    found = (await ask(rig, "research", limit={"gpus": 2})).json()
    assert [(one["name"], one["user"]) for one in found["starts"]] == [("waits", "ann")]
    assert (found["stops"], found["shrinks"], found["planned"]) == ([], [], True)
    assert found["pool"]["limit"] == {"gpus": 2.0}
    assert found["before"] == before["items"]
    entitled = {one["pool"]["name"]: one["entitled"]["gpus"] for one in found["after"]}
    assert entitled["research"] == 1.5, "the rest is divided by share"
    assert await test_pools.shown(rig) == before, "nothing was written"
    lines = list(poolpreviews.lines(msgspec.convert(found, bodies.PoolPreview)))
    assert "research would be entitled to 1.5 GPUs (now 1 GPU)." in lines
    assert lines[-1] == "1 job would start at once: waits (ann, research)."


async def test_a_change_tells_the_jobs_that_give_way(rig: rigs.Rig) -> None:
    await test_pools.change(rig, "research", share=1)
    await test_outlook.fill(rig, "borrows", 2, "bob", roles={"worker": {"gpus": 2}})
    rig.clock.now += 3600
    await rig.submit("ann", name="waits", pool="research", roles={"worker": {"gpus": 2}})
    assert (await ask(rig, "research", share=1)).json()["stops"] == [], "no change, no difference"
    found = (await ask(rig, "research", reserve={"gpus": 2})).json()
    assert [one["name"] for one in found["stops"]] == ["borrows"]


async def test_a_change_tells_the_jobs_that_would_wait_with_their_numbers(rig: rigs.Rig) -> None:
    """Those of the pool and below it, and those of others with another reason than now; the rest wait as before."""
    await test_pools.change(rig, "research", limit={"gpus": 1})
    await test_pools.change(rig, "vision", parent="research")
    await test_outlook.fill(rig, "runs", 1, "bob", pool="vision")
    for name in ("first", "second"):
        rig.clock.now += 1
        await rig.submit("ann", name=name, pool="vision", roles={"worker": {"gpus": 1}})
    found = msgspec.convert((await ask(rig, "research", limit={"gpus": 2})).json(), bodies.PoolPreview)
    assert ([one.name for one in found.starts], found.waiting) == (["first"], 1)
    (waits,) = found.waits
    assert (waits.name, waits.user, waits.pool, waits.refusal.code) == ("second", "ann", "vision", "pool_limit")
    assert list(poolpreviews.lines(found))[-2:] == [
        "1 job would start at once: first (ann, vision).",
        "second (ann, vision) would wait. It needs 1 GPU; the pool research uses 2 of its limit of 2 GPUs.",
    ]
    same = msgspec.convert((await ask(rig, "research", limit={"gpus": 1})).json(), bodies.PoolPreview)
    assert [one.name for one in same.waits] == ["first", "second"], "they are in the pool"
    assert (await ask(rig, "new", policy="fifo")).json()["waits"] == [], "no reason changes"
    rig.clock.now += 1
    await rig.submit("ann", name="soon", roles={"worker": {"gpus": 1}})
    assert (await ask(rig, "new", policy="fifo")).json()["waits"] == [], "it starts"
    more = {"reserve": {"gpus": 2}, "limit": {"gpus": 2}}
    found = msgspec.convert((await ask(rig, "research", **more)).json(), bodies.PoolPreview)
    assert {one.name: one.refusal.message.partition(";")[0] for one in found.waits} == {
        "second": "It needs 1 GPU",
        "soon": "It needs 1 GPU",
    }, "one of another pool would not start any more"


async def test_a_job_that_no_node_has_room_for_is_told_with_the_free_amount(rig: rigs.Rig) -> None:
    await test_pools.change(rig, "research", share=1)
    await test_outlook.fill(rig, "runs", 2, "bob")
    await rig.submit("ann", name="waits", pool="research", roles={"worker": {"gpus": 1}})
    found = msgspec.convert((await ask(rig, "research", limit={"gpus": 3})).json(), bodies.PoolPreview)
    assert list(poolpreviews.lines(found))[-1] == (
        "waits (ann, research) would wait. It needs 1 GPU and 1 CPU for 1 task; 0 of 2 GPUs are free."
    )


async def test_of_many_jobs_that_would_wait_the_first_are_told(rig: rigs.Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("first", "second", "third"):
        rig.clock.now += 1
        await rig.submit("ann", name=name, roles={"worker": {"gpus": 1}})
    monkeypatch.setattr(previews, "MOST_WAITS", 2)
    monkeypatch.setattr(poolpreviews, "MOST_NAMED", 1)
    found = msgspec.convert((await ask(rig, "default", limit={"gpus": 0})).json(), bodies.PoolPreview)
    assert ([one.name for one in found.waits], found.waiting) == (["first", "second"], 3)
    assert list(poolpreviews.lines(found))[-1] == "2 more jobs would wait."


async def test_a_user_makes_one_preview_at_a_time(rig: rigs.Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two plans of a large cluster take long. Others of the user wait, and too many are refused."""
    real, planned, go = previews._difference, [], threading.Event()

    def held(*given: Any) -> Any:
        planned.append(given)
        go.wait(240)
        return real(*given)

    monkeypatch.setattr(previews, "_difference", held)
    asking = [asyncio.create_task(ask(rig, "research", share=2)) for _ in range(MOST_WAITING + 1)]
    try:
        waiting = rig.services.forecast_turns._locks
        while not planned or (len(planned) == 1 and waiting["root"][1] <= MOST_WAITING):  # noqa: ASYNC110  (a thread tells it)
            await asyncio.sleep(0.01)
        refused = await ask(rig, "research", share=2)
        assert (refused.status_code, "wait already" in refused.json()["error"]["message"]) == (409, True)
        assert len(planned) == 1
    finally:
        go.set()
        answers = await asyncio.gather(*asking)
    assert [one.status_code for one in answers] == [200] * len(asking)


async def test_a_change_without_effect_says_so(rig: rigs.Rig) -> None:
    found = (await ask(rig, "new", policy="fifo")).json()
    assert list(poolpreviews.lines(msgspec.convert(found, bodies.PoolPreview)))[-1] == (
        "No job would start or give way at once."
    )


async def test_a_change_that_would_be_refused_is_refused_with_the_same_numbers(rig: rigs.Rig) -> None:
    await test_pools.change(rig, "above", reserve={"gpus": 1})
    wrong: list[dict[str, Any]] = [
        {"parent": "above", "reserve": {"gpus": 2}},
        {"parent": "nowhere"},
        {"policy": "nothing"},
        {"version": 7},
        {"reserve": {"gpus": -1}},
    ]
    for fields in wrong:
        asked, made = await ask(rig, "below", **fields), await test_pools.change(rig, "below", **fields)
        assert asked.status_code == made.status_code >= 400, fields
        assert asked.json() == made.json()


async def test_administrators_alone_ask(rig: rigs.Rig) -> None:
    for who in ("ann", "vera"):
        assert (await ask(rig, "research", who, share=2)).status_code == 403
