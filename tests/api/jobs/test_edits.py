"""`PATCH /api/v1/jobs/JOB`: the fields that can be changed, and a reason for each refusal."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.api import rig as rigs

from oarlock.api import application
from oarlock.api.jobs import capabilities
from oarlock.spec import attempts, events, intents, jobfile, jobs, refusals
from oarlock.spec.cluster import pools


@pytest.fixture(autouse=True)
def elastic(rig: rigs.Rig) -> None:
    about = msgspec.structs.replace(rig.services.about, capabilities=(*capabilities.LOCAL, "elastic"))
    rig.services = msgspec.structs.replace(rig.services, about=about)
    rig.app = application.make(rig.services)


@pytest.fixture
async def pooled(rig: rigs.Rig) -> rigs.Rig:
    await rig.store.write(lambda tx: tx.put_pool(pools.Pool(name="research")))
    return rig


async def patch(rig: rigs.Rig, job: str, who: str = "ann", **fields: Any) -> tuple[int, Any]:
    async with rig.as_user(who) as http:
        answer = await http.patch(f"/api/v1/jobs/{job}", json=fields)
    return answer.status_code, answer.json()


async def told(rig: rigs.Rig, job: str) -> list[dict[str, Any]]:
    async with rig.as_user("ann") as http:
        return [one.data for one in (await _records(http, job)) if one.kind == "edited"]


async def _records(http: Any, job: str) -> list[events.Record]:
    answer = (await http.get(f"/api/v1/jobs/{job}/events")).json()["items"]
    return msgspec.convert(answer, list[events.Record])


async def test_priority_pool_and_workers_can_be_changed_and_the_log_tells_it(pooled: rigs.Rig) -> None:
    job = await pooled.submit(name="digits", roles={"worker": {"count": 2}})
    code, after = await patch(pooled, "digits", priority=80, pool="research", min=1, max=4)
    assert code == 200
    assert (after["spec"]["priority"], after["pool"], after["spec"]["pool"]) == (80, "research", "research")
    assert after["spec"]["roles"]["worker"] == {"count": 2, "min": 1, "max": 4}
    assert await told(pooled, "digits") == [{"priority": 80, "pool": "research", "min": 1, "max": 4, "by": "ann"}]
    async with pooled.as_user("ann") as http:
        listed = (await http.get("/api/v1/jobs?pool=research")).json()["items"]
        decided = (await http.get(f"/api/v1/jobs/{job.id}/decisions")).json()["items"]
    assert [one["id"] for one in listed] == [job.id], "the list goes by the new pool"
    assert [one["text"] for one in decided] == ["set by ann: priority 80, pool research, min 1, max 4"]


async def test_a_stored_job_that_would_be_refused_today_can_be_changed(rig: rigs.Rig) -> None:
    job = await rig.submit(name="digits")
    spec = msgspec.structs.replace(job.spec, strategy=jobfile.Strategy(sync=True))
    await rig.store.write(lambda tx: tx.put_job(msgspec.structs.replace(job, spec=spec), [], at=rig.services.clock()))
    assert (await patch(rig, "digits", priority=60))[0] == 200
    code, answer = await patch(rig, "digits", priority=5000)
    assert (code, answer["error"]["path"]) == (422, "priority")


async def test_a_change_of_nothing_writes_nothing(rig: rigs.Rig) -> None:
    job = await rig.submit(name="digits", priority=50)
    code, after = await patch(rig, "digits", priority=50)
    assert (code, after["version"]) == (200, job.version)
    code, answer = await patch(rig, "digits")
    assert (code, answer["error"]["message"]) == (422, "The request changes nothing.")


async def test_a_refusal_is_forgotten_with_its_reason(rig: rigs.Rig) -> None:
    """It may have been due to the pool or the size that the job had."""
    job = await rig.submit(name="digits")
    refused = refusals.Refusal(code=refusals.Code.POOL_LIMIT, message="The pool is full.")
    assert (await rig.happen(job.id, events.Refused(refusal=refused))).reason == "The pool is full."
    _, after = await patch(rig, "digits", priority=51)
    assert (after["refusal"], after["reason"]) == (None, "")


@pytest.mark.parametrize(
    ("fields", "code", "words"),
    [
        ({"image": "other:1"}, 422, "Only priority, pool, min and max of a job can be changed."),
        ({"priority": 1001}, 422, "1001 is out of range"),
        ({"priority": "high"}, 422, "priority"),
        ({"pool": "Research"}, 422, "not a valid name"),
        ({"pool": "absent"}, 422, "absent"),
        ({"min": 3}, 422, "It must be between 1 and 2."),
        ({"max": 1}, 422, "It must be between 2 and"),
    ],
    ids=str,
)
async def test_another_change_is_refused_with_the_reason(
    rig: rigs.Rig, fields: dict[str, Any], code: int, words: str
) -> None:
    await rig.submit(name="digits", roles={"worker": {"count": 2}})
    found, answer = await patch(rig, "digits", **fields)
    error = answer["error"]
    assert (found, words in f"{error['message']} {error['hint']} {error.get('path')}") == (code, True), error
    assert await told(rig, "digits") == []


async def test_a_job_without_workers_has_no_bounds(rig: rigs.Rig) -> None:
    await rig.submit(name="alone", roles={"chief": {"count": 1}})
    code, answer = await patch(rig, "alone", max=4)
    assert (code, answer["error"]["path"]) == (422, "max")
    assert "no workers" in answer["error"]["message"]


async def test_a_pool_that_can_never_hold_the_gang_is_refused(pooled: rigs.Rig) -> None:
    await pooled.store.write(lambda tx: tx.put_pool(pools.Pool(name="small", limit={"gpus": 1})))
    await pooled.submit(name="digits", roles={"worker": {"gpus": 2}})
    code, answer = await patch(pooled, "digits", pool="small")
    assert (code, answer["error"]["code"]) == (422, "impossible")
    assert await told(pooled, "digits") == []


async def test_a_running_gang_stays_within_its_bounds(rig: rigs.Rig) -> None:
    job = await rig.submit(name="digits", roles={"worker": {"count": 4, "min": 2, "max": 8}})
    await rig.launch(job)
    assert (await patch(rig, "digits", min=3, max=4, priority=9))[0] == 200
    shrunk = await rig.submit(name="shrunk", roles={"worker": {"count": 2, "min": 2, "max": 8}})
    await rig.launch(shrunk)

    def one_more(tx: Any) -> None:
        stored = tx.job(shrunk.id)
        live = stored.live
        more = msgspec.structs.replace(live.tasks[0], index=2)
        live = msgspec.structs.replace(live, tasks=(*live.tasks, more))
        tx.put_job(msgspec.structs.replace(stored, attempts=(live,)), at=rig.clock())

    await rig.store.write(one_more)
    code, answer = await patch(rig, "shrunk", max=2)
    assert (code, answer["error"]["message"]) == (409, "shrunk runs with 3 workers, and would have 2 to 2.")
    assert "oarlock halt shrunk" in answer["error"]["hint"]
    assert (await patch(rig, "shrunk", max=3))[0] == 200


async def trains(rig: rigs.Rig, job: jobs.Job, *indexes: int) -> None:
    """These workers register, train, and can go on among others."""
    keys = [rigs.key_of(job, index) for index in indexes]
    await rig.happen(job.id, *(events.TaskRegistered(key=key, address="127.0.0.1") for key in keys))
    await rig.happen(job.id, *(events.TaskReported(key=key, phase="PROCESSING", can_rejoin=True) for key in keys))


@pytest.mark.parametrize("bounds", [{}, {"min": 1}], ids=["fixed", "elastic"])
async def test_the_bounds_stay_while_the_others_wait_for_a_successor(rig: rigs.Rig, bounds: dict[str, int]) -> None:
    """Each of its phases counts. Other fields can be changed, and then the bounds, from a fixed size and to one."""
    worker = {"count": 2, "on_failure": "restart", **bounds}
    job = await rig.launch(await rig.submit(name="digits", roles={"worker": worker}))
    await trains(rig, job, 0, 1)
    dead = rigs.key_of(job, 1)
    how = attempts.Exit(code=1, cause=attempts.Cause.ERROR, at=rig.clock())
    fresh = msgspec.structs.replace(dead, incarnation=2)
    phases = (
        events.TaskExited(key=dead, exit=how),
        events.TaskGone(key=dead),
        events.TaskRegistered(key=fresh, address="127.0.0.1"),
        events.TaskReported(key=fresh, phase="PROCESSING"),
    )
    for event in phases:
        await rig.happen(job.id, event)
        for edit in ({"min": 1, "max": 4}, {"min": 2, "max": 2}):
            code, answer = await patch(rig, "digits", **edit)
            assert (code, answer["error"]["message"]) == (409, "A worker of digits just comes or goes.")
            assert "oarlock halt digits" in answer["error"]["hint"]
        assert (await patch(rig, "digits", priority=60))[0] == 200
    await rig.happen(job.id, events.TaskReported(key=fresh, can_rejoin=True))
    after = await rig.store.read(lambda view: view.job(job.id))
    assert after.live is not None
    assert [(task.part, task.incarnation) for task in after.live.tasks] == [("member", 1), ("member", 2)]
    assert (await patch(rig, "digits", min=1, max=4))[0] == 200
    assert (await patch(rig, "digits", min=2, max=2))[0] == 200


@pytest.mark.parametrize(
    ("strategy", "worker", "edit"),
    [
        ({"kind": "ps", "sync": True}, {"on_failure": "restart"}, {"min": 1}),
        ({"kind": "ps", "sync": False}, {}, {"max": 3}),
        ({"kind": "ps", "sync": False}, {"min": 1}, {"min": 2}),
    ],
    ids=["in rounds", "one by one", "a fixed size"],
)
async def test_running_workers_of_parameter_servers_do_not_begin_to_come_and_go(
    rig: rigs.Rig, strategy: dict[str, Any], worker: dict[str, Any], edit: dict[str, int]
) -> None:
    """Neither they nor the servers were started for that. A worker that was to leave would hold the others up."""
    shape = {"worker": {"count": 2, **worker}, "ps": {"count": 1}}
    job = await rig.launch(await rig.submit(name="served", strategy=strategy, roles=shape))
    await trains(rig, job, 0, 1)
    code, answer = await patch(rig, "served", **edit)
    assert (code, "its parameter servers are told at the start" in answer["error"]["message"]) == (409, True), answer
    assert "oarlock halt served" in answer["error"]["hint"]
    plain = {"worker": {"count": 2}, "ps": {"count": 1}}
    await rig.launch(await rig.submit(name="plain", strategy={"kind": "ps"}, roles=plain))
    assert (await patch(rig, "plain", min=1))[0] == 200, "it changes its size by a restart in any case"


async def test_a_job_that_has_ended_or_is_to_end_stays_as_it_is(rig: rigs.Rig) -> None:
    job = await rig.submit(name="digits")
    await rig.launch(job)
    await rig.happen(job.id, events.Intended(intent=intents.Intent.CANCEL, by="ann"))
    code, answer = await patch(rig, job.id, priority=1)
    assert (code, answer["error"]["message"]) == (409, "digits is being canceled.")
    ended = await rig.submit(name="ended")
    await rig.happen(ended.id, events.Intended(intent=intents.Intent.CANCEL, by="ann"))
    code, answer = await patch(rig, ended.id, priority=1)
    assert (code, answer["error"]["message"]) == (409, "ended has ended: CANCELED.")


async def test_only_the_owner_and_administrators_change_a_job(rig: rigs.Rig) -> None:
    job = await rig.submit("ann", name="digits")
    assert (await patch(rig, job.id, "bob", priority=1))[0] == 404
    assert (await patch(rig, job.id, "root", priority=1))[0] == 200
