"""The past over REST: which job held which devices when, and the usage of each day."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.api import rig as rigs
from tests.api.jobs import test_outlook

from oarlock.spec import attempts, events, intents, jobs
from oarlock.spec.access import privacy
from oarlock.store import stores

DAY_S = 86_400.0


async def told(rig: rigs.Rig, who: str = "bob", **query: Any) -> dict[str, Any]:
    async with rig.as_user(who) as http:
        answer = await http.get("/api/v1/history", params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def ran(rig: rigs.Rig, name: str, seconds: float, who: str = "ann") -> jobs.Job:
    """A job that held both GPUs for so long, counted as the guardian counts it."""
    job = await test_outlook.fill(rig, name, 2, who)
    begun = rig.clock.now
    rig.clock.now += seconds - 5  # its end takes 5 seconds
    ended = await rig.end(job.id)
    await count(rig, job, begun, seconds)
    return ended


async def count(rig: rigs.Rig, job: jobs.Job, begun: float, seconds: float) -> None:
    used = stores.Usage(
        owner=job.owner,
        pool="default",
        job=job.id,
        attempt=1,
        started_at=begun,
        ended_at=rig.clock.now,
        gpu_type="h100",
        device_seconds=2 * seconds,
        useful_seconds=1.5 * seconds,
        cpu_seconds=seconds,
        cost=seconds / 100,
    )
    await rig.store.write(lambda tx: (tx.release(job.id, 1), tx.add_usage(used)))


async def test_everybody_sees_which_job_held_which_devices(rig: rigs.Rig) -> None:
    begin = rig.clock.now
    first = await ran(rig, "first", 600)
    rig.clock.now += 100
    second = await test_outlook.fill(rig, "second", 1, "bob")
    rig.clock.now += 50
    found = await told(rig)
    assert [(one["user"], one["name"], one["started_at"], one["ended_at"]) for one in found["items"]] == [
        ("ann", "first", begin, begin + 600),
        ("bob", "second", begin + 700, None),
    ]
    assert [one["places"] for one in found["items"]] == [
        [{"node": "here", "devices": [0, 1]}],
        [{"node": "here", "devices": [0]}],
    ]
    assert [one["job"] for one in found["items"]] == [first.id, second.id]
    assert [one["outcome"] for one in found["items"]] == ["COMPLETED", None]
    assert (found["since"], found["until"], found["cut"]) == (rig.clock.now - DAY_S, rig.clock.now, False)
    assert [one["name"] for one in (await told(rig, since=begin + 650))["items"]] == ["second"]
    assert [one["name"] for one in (await told(rig, since=begin, until=begin + 650))["items"]] == ["first"]


async def stop(rig: rigs.Rig, job: jobs.Job, intent: intents.Intent) -> None:
    """The gang ends by our signal, for this wish."""
    where = {"key": rigs.key_of(job)}
    how = attempts.Exit(code=143, cause=attempts.Cause.STOPPED, signal=15, at=rig.clock.now)
    await rig.happen(job.id, events.Intended(intent=intent, by="ann"))
    await rig.happen(job.id, events.TaskExited(**where, exit=how), events.TaskGone(**where))
    await rig.happen(job.id, events.Released(attempt=1))


@pytest.mark.parametrize(
    ("end", "restarts", "outcome", "phase"),
    [
        (0, 0, "COMPLETED", "COMPLETED"),
        (3, 0, "FAILED", "FAILED"),
        (3, 1, "FAILED", "QUEUED"),
        (intents.Intent.CANCEL, 1, "CANCELED", "CANCELED"),
        (intents.Intent.HALT, 1, "HALTED", "HALTED"),
        (intents.Intent.PREEMPT, 1, "QUEUED", "QUEUED"),
        (intents.Intent.RESIZE, 1, "QUEUED", "QUEUED"),
    ],
)
async def test_each_attempt_tells_how_it_ended(
    rig: rigs.Rig, end: int | intents.Intent, restarts: int, outcome: str, phase: str
) -> None:
    job, begun = await test_outlook.fill(rig, "ends", 2, max_restarts=restarts), rig.clock.now
    rig.clock.now += 400  # after a shorter run a job that fails does not start again
    if isinstance(end, intents.Intent):
        await stop(rig, job, end)
    else:
        await rig.end(job.id, code=end)
    await count(rig, job, begun, rig.clock.now - begun)
    assert [one["outcome"] for one in (await told(rig))["items"]] == [outcome]
    found = await rig.store.read(lambda view: view.job(job.id))
    assert found is not None
    assert found.phase == phase
    if phase in ("HALTED", "QUEUED"):
        await rig.happen(job.id, events.Intended(intent=intents.Intent.CANCEL, by="ann"))
        assert [one["outcome"] for one in (await told(rig))["items"]] == [outcome], "what follows changes no past"


async def test_a_list_that_is_cut_says_so_and_a_removed_job_is_missing(rig: rigs.Rig) -> None:
    early = await ran(rig, "early", 60)
    await ran(rig, "late", 60)
    found = await told(rig, limit=1)
    assert ([one["name"] for one in found["items"]], found["cut"]) == (["late"], True)
    assert (await told(rig, limit=2))["cut"] is False
    await rig.store.write(lambda tx: tx.remove_jobs([early.id], at=rig.clock.now))
    assert [one["name"] for one in (await told(rig))["items"]] == ["late"]


async def test_hidden_names_are_hidden_in_the_past_too(rig: rigs.Rig) -> None:
    rig.services.forecaster.names = privacy.Names(True, b"k" * 32)
    job = await ran(rig, "secret-run", 60)
    found = await told(rig, "bob")
    assert found["items"][0]["job"] == ""
    assert found["items"][0]["name"].startswith("job ")
    assert (await told(rig, "ann"))["items"][0]["name"] == "secret-run"
    assert job.id not in str(found)


async def usage(rig: rigs.Rig, who: str, **query: Any) -> Any:
    async with rig.as_user(who) as http:
        answer = await http.get("/api/v1/usage", params={"by": "day", **query})
    return answer.json()["items"] if answer.status_code == 200 else answer


async def test_a_day_has_its_part_of_each_attempt(rig: rigs.Rig) -> None:
    midnight = (rig.clock.now // DAY_S + 1) * DAY_S
    rig.clock.now = midnight - 3600
    await ran(rig, "over-night", 3 * 3600)
    await test_outlook.fill(rig, "runs", 2, "bob")
    rig.clock.now += 3600
    days = await usage(rig, "root")
    assert [one["name"] for one in days] == ["2023-11-14", "2023-11-15"]
    assert [one["device_hours"] for one in days] == [pytest.approx(2), pytest.approx(4 + 2)]
    assert [one["cpu_hours"] for one in days] == [pytest.approx(1), pytest.approx(2 + 1)]
    assert days[0]["cost"] == pytest.approx(36)
    mine = await usage(rig, "bob")
    assert [(one["name"], one["device_hours"]) for one in mine] == [("2023-11-15", pytest.approx(2))]
    late = await usage(rig, "root", since=midnight + 3600)
    assert [(one["name"], one["device_hours"]) for one in late] == [("2023-11-15", pytest.approx(2 + 2))]


async def test_the_types_of_gpu_have_their_useful_and_idle_hours(rig: rigs.Rig) -> None:
    await ran(rig, "typed", 3600)
    held = {"owner": "ann", "pool": "p", "attempt": 1, "started_at": 1.0, "ended_at": 3601.0}
    early = stores.Usage(job="old", device_seconds=7200, **held)
    none = msgspec.structs.replace(early, job="cores", device_seconds=0.0, useful_seconds=0.0, cpu_seconds=3600)
    await rig.store.write(lambda tx: (tx.add_usage(early), tx.add_usage(none)))
    await test_outlook.fill(rig, "runs", 2, "bob")
    rig.clock.now += 1800
    found = await usage(rig, "root", by="gpu_type")
    told = [[one[name] for name in ("name", "device_hours", "useful_hours", "idle_hours")] for one in found]
    assert told == [
        ["h100", pytest.approx(3), pytest.approx(2.5), pytest.approx(0.5)],
        ["none", 0, 0, 0],
        ["not recorded", pytest.approx(2), 0, 0],
    ], "of an earlier record it is not known which hours were useful"


async def test_too_many_days_are_refused_and_not_left_out(rig: rigs.Rig) -> None:
    refused = await usage(rig, "ann", since=rig.clock.now - 500 * DAY_S)
    assert refused.status_code == 422
    assert "400 days" in refused.text
