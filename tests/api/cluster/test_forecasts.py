"""The forecast of the cluster over REST: the starts, places and ends of jobs, and the part for other users."""

from __future__ import annotations

from typing import Any

import pytest
from tests.api import rig as rigs
from tests.api.jobs import test_outlook

from oarlock.api.services import forecaster
from oarlock.spec import events, refusals
from oarlock.spec.access import privacy


async def told(rig: rigs.Rig, who: str = "ann") -> dict[str, Any]:
    async with rig.as_user(who) as http:
        answer = await http.get("/api/v1/forecasts")
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_every_waiting_job_has_its_start_and_every_running_one_its_end(
    rig: rigs.Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.take_time(monkeypatch)
    big = await test_outlook.fill(rig, "big", 2, timeout="1h")
    await rig.submit("bob", name="first", roles={"worker": {"gpus": 2}}, timeout="30m")
    rig.clock.now += 1
    await rig.submit(name="second", roles={"worker": {"gpus": 1}})
    await rig.submit(name="small", roles={"worker": {"gpus": 0}})
    rig.clock.now += 59
    found = await told(rig, "bob")
    assert [(one["name"], one["when"], one["position"]) for one in found["starts"]] == [
        ("small", "now", 0),
        ("first", "later", 1),
        ("second", "later", 2),
    ]
    small, first, second = found["starts"]
    assert small["places"] == [{"node": "here", "devices": []}]
    assert first["expected"].startswith("It should start within")
    assert first["latest"] < second["latest"], "each waits for the one before it"
    assert first["message"].startswith("It needs 2 GPUs")
    assert (second["message"], small["message"]) == ("", ""), "why another's job waits is its owner's to know"
    assert [(one["job"], one["end"]) for one in found["ends"]] == [(big.id, None)], "a time-out is no expected end"
    assert found["ends"][0]["latest"] > rig.clock.now
    assert (found["computed"], found["at"]) == (True, rig.clock.now)


async def test_an_expected_start_has_its_expected_place(rig: rigs.Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.take_time(monkeypatch)
    before = await test_outlook.fill(rig, "again", 2)
    rig.clock.now += 600
    await rig.end(before.id)
    await rig.store.write(lambda tx: tx.release(before.id, 1))
    await test_outlook.fill(rig, "again", 2)
    await rig.submit(name="next", roles={"worker": {"gpus": 1}})
    rig.clock.now += 60
    found = await told(rig)
    assert found["ends"][0]["end"] > rig.clock.now, "as long as the last job of this name took"
    assert found["starts"][0]["start"] >= found["ends"][0]["end"]
    assert found["starts"][0]["places"] == [{"node": "here", "devices": [0]}]


async def test_without_a_forecast_the_last_refusals_are_told(rig: rigs.Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    async def none(*_: Any) -> None:
        return None

    monkeypatch.setattr(forecaster.Forecaster, "_fresh", none)
    await test_outlook.fill(rig, "big", 2, timeout="1h")
    job = await rig.submit(name="first", roles={"worker": {"gpus": 2}})
    refusal = refusals.Refusal(code=refusals.Code.NO_CAPACITY, message="It needs 2 GPUs; 0 of 2 are free.")
    await rig.happen(job.id, events.Refused(refusal=refusal))
    found = await told(rig)
    assert found["computed"] is False
    assert [(one["name"], one["message"], one["start"]) for one in found["starts"]] == [
        ("first", "It needs 2 GPUs; 0 of 2 are free.", None)
    ]
    assert (found["ends"][0]["end"], found["ends"][0]["latest"] > rig.clock.now) == (None, True)


async def test_names_that_are_hidden_stay_so(rig: rigs.Rig) -> None:
    rig.services.forecaster.names = privacy.Names(True, b"k" * 32)
    big = await test_outlook.fill(rig, "secret-run", 2)
    wait = await rig.submit(name="secret-wait", roles={"worker": {"gpus": 2}})
    async with rig.as_user("bob") as http:
        text = (await http.get("/api/v1/forecasts")).text
    assert "job " in text
    for hidden in ("secret-run", "secret-wait", big.id, wait.id):
        assert hidden not in text
