"""The dry run of a change of a pool: its effects, its refusals, and that it changes nothing."""

from __future__ import annotations

from typing import Any

import httpx
import msgspec
from tests.api import rig as rigs
from tests.api.cluster import test_pools
from tests.api.jobs import test_outlook

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
