"""Samples over REST: all users see the use and the entitlement of each pool over time."""

from __future__ import annotations

from typing import Any

from tests.api import rig as rigs

from oarlock.spec.cluster import samples


async def told(rig: rigs.Rig, status: int = 200, **query: Any) -> Any:
    async with rig.as_user("vera") as http:
        answer = await http.get("/api/v1/samples", params=query)
    assert answer.status_code == status, answer.text
    return answer.json()


async def test_the_last_day_is_told_unless_another_time_is_asked_for(rig: rigs.Rig) -> None:
    now = rig.clock.now
    for age in (3 * 86_400.0, 7200.0, 3600.0, 0.5):
        one = samples.Sample(at=now - age, pools={"p": samples.PoolUse({"gpus": 1.0}, {"gpus": 2.0})})
        await rig.store.write(lambda tx, one=one: tx.add_sample(one))
    found = await told(rig)
    assert [now - one["at"] for one in found["items"]] == [7200.0, 3600.0, 0.5]
    assert found["items"][0]["pools"] == {"p": {"used": {"gpus": 1.0}, "entitled": {"gpus": 2.0}}}
    assert (found["since"], found["until"]) == (now - 86_400.0, now)
    assert len((await told(rig, since=now - 10 * 86_400.0))["items"]) == 4
    assert [now - one["at"] for one in (await told(rig, since=0, until=now - 5000))["items"]] == [259_200.0, 7200.0]
    assert len((await told(rig, since=0, limit=2))["items"]) == 2
    await told(rig, 422, limit=100_000)
