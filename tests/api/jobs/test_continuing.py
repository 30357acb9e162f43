"""A new job begins from another one's checkpoint, which then is its own; the other job never changes."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.api import rig as rigs
from tests.api.agents.test_agents import gang, register
from tests.api.agents.test_reported_checkpoints import place_of, said, shown, tell
from tests.data.checkpoints.test_checkpoints import flip, save

from oarlock.api import application
from oarlock.api.process import claimedcheckpoints
from oarlock.data.checkpoints import checkpoints
from oarlock.spec import attempts, intents, jobs
from oarlock.spec import events as facts


async def failed(rig: rigs.Rig, steps: tuple[int, ...] = (10, 50), **spec: Any) -> jobs.Job:
    """A job that has failed, with visible checkpoints of these steps."""
    job = await gang(rig, 1, **{"name": "train", "max_restarts": 0, **spec})
    for step in steps:
        path = save(place_of(rig, job), step)
        assert (await tell(rig, job, said(path, step))).status_code == 200
    return await rig.end(job.id, code=3)


async def submit(rig: rigs.Rig, continues: str, who: str = "ann", key: str = "", **spec: Any) -> Any:
    body = {"spec": {"command": "true", **spec}, "continues": continues}
    async with rig.as_user(who) as http:
        return await http.post("/api/v1/jobs", json=body, headers={"Idempotency-Key": key} if key else {})


async def stored(rig: rigs.Rig, job_id: str) -> jobs.Job:
    job = await rig.store.read(lambda view: view.job(job_id))
    assert job is not None
    return job


async def test_it_goes_on_from_the_newest_checkpoint_that_holds(rig: rigs.Rig) -> None:
    old = await failed(rig, (10, 50, 60))
    flip(place_of(rig, old) / "attempt-1-round-1-step-60" / "rank-0.pt")
    answer = await submit(rig, "train")
    assert answer.status_code == 201, answer.text
    new = msgspec.json.decode(answer.content, type=jobs.Job)
    held = place_of(rig, new) / "attempt-0-round-1-step-50"
    assert new.continues == jobs.Continued(job=old.id, name="train", step=50, attempt=1, path=str(held))
    checkpoints.verify(held)
    assert await shown(rig, new) == [50]
    new = await rig.launch(new)
    assert (new.live.offered_step, new.live.restore_step) == (50, None)
    assert (await register(rig, rigs.key_of(new)))["rendezvous"]["restore"] == [str(held)]
    assert [path.name for path in place_of(rig, new).iterdir()] == [held.name], (
        "nothing is left of the part that did not hold"
    )
    assert await stored(rig, old.id) == old, "an ended job does not change"
    async with rig.as_user("ann") as http:
        items = (await http.get("/api/v1/jobs", params={"continues": "train"})).json()["items"]
        records = (await http.get(f"/api/v1/jobs/{new.id}/events")).json()["items"]
    assert [item["id"] for item in items] == [new.id]
    assert (records[0]["data"]["continues"], records[0]["data"]["step"]) == (old.id, 50)


async def test_a_step_may_be_named(rig: rigs.Rig) -> None:
    old = await failed(rig)
    new = (await submit(rig, f"{old.id}@10")).json()
    assert (new["continues"]["step"], new["name"]) == (10, "true")
    nowhere = await submit(rig, "train@11")
    assert (nowhere.status_code, nowhere.json()["error"]["path"]) == (409, "continues")
    assert nowhere.json()["error"]["hint"] == "It has checkpoints of step 50, 10."
    flip(place_of(rig, old) / "attempt-1-round-1-step-10" / "rank-0.pt")
    broken = await submit(rig, "train@10")
    assert "rank-0.pt does not have the digest" in broken.json()["error"]["message"]
    assert [path.name for path in Path(rig.checkpoints.own).iterdir()] == sorted([old.id, new["id"]])


@pytest.mark.parametrize(
    ("wanted", "status", "why"),
    [
        ("train@", 422, "is not a job with a step"),
        ("@5", 422, "is not a job with a step"),
        ("train@-1", 422, "is not a job with a step"),
        ("train@5@6", 422, "is not a job with a step"),
        ("", 422, "is not a job with a step"),
        ("nothing", 404, "no job `nothing`"),
        ("bare", 409, "bare has no checkpoint to continue from"),
    ],
)
async def test_a_job_that_cannot_be_continued_is_refused_with_the_reason(
    rig: rigs.Rig, wanted: str, status: int, why: str
) -> None:
    await failed(rig, (), name="bare")
    answer = await submit(rig, wanted)
    assert (answer.status_code, answer.json()["error"]["path"]) == (status, "continues")
    assert why in answer.json()["error"]["message"]
    async with rig.as_user("ann") as http:
        body = {**rigs.submission(), "continues": wanted}
        assert (await http.post("/api/v1/plan", json=body)).status_code == status
    assert not Path(rig.checkpoints.own).exists()


async def test_only_a_job_that_one_may_read_is_continued(rig: rigs.Rig) -> None:
    old = await failed(rig)
    for wanted in ("train", old.id):
        assert (await submit(rig, wanted, who="bob")).status_code == 404
    assert (await submit(rig, old.id, who="root")).status_code == 201
    async with rig.as_user("ann") as http:
        assert (await http.get("/api/v1/jobs", params={"continues": old.id})).json()["items"] == [], "root's own"
    async with rig.as_user("bob") as http:
        assert (await http.get("/api/v1/jobs", params={"continues": old.id})).status_code == 404


async def test_the_checkpoint_outlives_the_other_job_and_its_retention(rig: rigs.Rig) -> None:
    old = await failed(rig)
    new = msgspec.json.decode((await submit(rig, "train")).content, type=jobs.Job)
    async with rig.as_user("ann") as http:
        assert (await http.delete(f"/api/v1/jobs/{old.id}")).status_code == 204
        assert not place_of(rig, old).exists()
        shown_now = (await http.get(f"/api/v1/jobs/{new.id}")).json()
    assert shown_now["continues"]["name"] == "train"
    (one,) = await rig.store.read(lambda view: view.checkpoints(new.id))
    assert await rig.checkpoints.good(one, fresh=True)


async def test_the_same_key_gives_the_same_job_and_leaves_nothing_else(rig: rigs.Rig) -> None:
    await failed(rig)
    first = await submit(rig, "train", key="k")
    again = await submit(rig, "train", key="k")
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json()["id"] == again.json()["id"]
    taken = await submit(rig, "train", name="other")
    assert taken.status_code == 201
    assert (await submit(rig, "train", name="other")).status_code == 409
    assert len(list(Path(rig.checkpoints.own).iterdir())) == 3, "the first job's and two that continue it"


async def test_a_continued_job_can_be_continued_itself(rig: rigs.Rig) -> None:
    await failed(rig)
    second = await submit(rig, "train", name="second")
    third = (await submit(rig, "second")).json()
    assert (third["continues"]["job"], third["continues"]["step"], third["continues"]["attempt"]) == (
        second.json()["id"],
        50,
        0,
    )


async def test_where_there_are_no_links_it_is_copied(rig: rigs.Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> None:
        raise OSError(1, "Operation not permitted")

    monkeypatch.setattr(checkpoints.os, "link", refused)
    old = await failed(rig)
    new = msgspec.json.decode((await submit(rig, "train")).content, type=jobs.Job)
    shutil.rmtree(place_of(rig, old))
    checkpoints.verify(place_of(rig, new) / "attempt-0-round-1-step-50")


async def test_a_running_job_on_this_machine_can_be_continued_too(rig: rigs.Rig) -> None:
    job = await gang(rig, 1, name="running")
    await tell(rig, job, said(save(place_of(rig, job), 5), 5))
    assert (await submit(rig, "running")).json()["continues"]["step"] == 5


FAR = {"checkpoint": {"to": "s3://bucket/ckpt", "keep": 2}}


CLAIMED = {"checkpoint": {"keep": 2}}


async def far(rig: rigs.Rig, place: str = "s3://bucket/ckpt", spec: dict[str, Any] = FAR) -> jobs.Job:
    """A running job with a copy of step 7 in an object store, or on a volume that the server does not see."""
    job = await gang(rig, 1, name="far", **spec)
    path = f"{place}/{job.id}/attempt-1-round-1-step-7"
    assert (await tell(rig, job, said(path, 7))).status_code == 200
    return job


async def halt(rig: rigs.Rig, job: jobs.Job) -> None:
    where = {"key": attempts.TaskKey(job.id, 1, "worker", 0, 1)}
    cause = attempts.Cause.STOPPED
    await rig.happen(
        job.id,
        facts.Intended(intent=intents.Intent.HALT),
        facts.StopDecided(attempt=1, cause=cause, message="halted"),
        facts.TaskExited(**where, exit=attempts.Exit(code=143, cause=cause, at=rig.clock())),
        facts.TaskGone(**where),
        facts.Released(attempt=1),
    )
    assert (await stored(rig, job.id)).phase == "HALTED"


@pytest.mark.parametrize(("place", "spec"), [("s3://bucket/ckpt", FAR), ("/ckpt", CLAIMED)], ids=["store", "claim"])
async def test_a_checkpoint_that_cannot_be_copied_is_referred_to_once_nothing_removes_it(
    rig: rigs.Rig, place: str, spec: dict[str, Any]
) -> None:
    if spec is CLAIMED:
        rig.services = msgspec.structs.replace(rig.services, checkpoints=claimedcheckpoints.ClaimedCheckpoints(place))
        rig.app = application.make(rig.services)
    old = await far(rig, place, spec)
    refused = await submit(rig, "far")
    assert (refused.status_code, refused.json()["error"]["hint"]) == (409, "Halt it first: oarlock halt far")
    await halt(rig, old)
    new = msgspec.json.decode((await submit(rig, "far", **spec)).content, type=jobs.Job)
    url = f"{place}/{old.id}/attempt-1-round-1-step-7"
    assert new.continues is not None
    assert (new.continues.path, await shown(rig, new)) == (url, [7])

    async with rig.as_user("ann") as http:
        resumed = await http.put(f"/api/v1/jobs/{old.id}/intent", json={"intent": "run"})
        assert (resumed.status_code, new.id in resumed.text) == (409, True), (
            "it would remove files that the other one needs"
        )
        new = await rig.launch(new)
        assert (await register(rig, rigs.key_of(new)))["rendezvous"]["restore"] == [url]
        for step, left in ((8, [8, 7]), (9, [9, 8])):
            path = f"{place}/{new.id}/attempt-1-round-1-step-{step}"
            assert (await tell(rig, new, said(path, step))).status_code == 200
            assert await shown(rig, new) == left, "the other job's stays until there are enough of its own"
        assert (await http.put(f"/api/v1/jobs/{old.id}/intent", json={"intent": "run"})).status_code == 200


async def test_resume_of_an_ended_job_names_the_command(rig: rigs.Rig) -> None:
    old, bare = await failed(rig), await failed(rig, (), name="bare")
    async with rig.as_user("ann") as http:
        hints = [
            (await http.put(f"/api/v1/jobs/{job.id}/intent", json={"intent": "run"})).json()["error"]["hint"]
            for job in (old, bare)
        ]
    assert hints[0].endswith(f"oarlock run --continue {old.id}")
    assert hints[1] == "Submit it again: it has no checkpoint to continue from."
