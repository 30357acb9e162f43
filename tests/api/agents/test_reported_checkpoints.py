"""A checkpoint is visible when it lies in its job's own place and every digest holds, and as long as it is there."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.api import rig as rigs
from tests.api.agents.test_agents import gang, register
from tests.data.checkpoints.test_checkpoints import flip, save

from oarlock.data.checkpoints import checkpoints
from oarlock.spec import events, jobs


def place_of(rig: rigs.Rig, job: jobs.Job) -> Path:
    return Path(rig.checkpoints.own) / job.id


def said(path: str | Path, step: int, *, attempt: int = 1, **more: Any) -> dict[str, Any]:
    manifest = {"format": 1, "step": step, "attempt": attempt, "round": 1}
    return {"event": "checkpoint", "step": step, "path": str(path), "bytes": 5, "manifest": manifest, **more}


async def tell(rig: rigs.Rig, job: jobs.Job, body: dict[str, Any], route: str = "") -> Any:
    async with rig.as_task(rigs.key_of(job)) as http:
        return await http.post(f"/agent/v1/checkpoints{route}", json=body)


async def shown(rig: rigs.Rig, job: jobs.Job) -> list[int]:
    async with rig.as_user("ann") as http:
        items = (await http.get(f"/api/v1/jobs/{job.id}/checkpoints")).json()["items"]
    return [item["step"] for item in items]


async def test_a_checkpoint_becomes_visible_once_and_is_offered(rig: rigs.Rig) -> None:
    job = await gang(rig, 1)
    path = save(place_of(rig, job), 10)
    digest = checkpoints.read(path).manifest_sha256
    for _ in range(2):
        answer = await tell(rig, job, said(path, 10, manifest_sha256=digest))
        assert (answer.status_code, answer.json()) == (200, {"visible": True})
    other = await tell(rig, job, {**said(path, 10), "manifest": {"step": 10, "attempt": 2}})
    assert other.status_code == 409
    async with rig.as_user("ann") as http:
        (item,) = (await http.get(f"/api/v1/jobs/{job.id}/checkpoints")).json()["items"]
    assert (item["step"], item["path"], item["bytes"], item["manifest_sha256"]) == (10, str(path), 8000, digest)
    assert (await register(rig, rigs.key_of(job)))["rendezvous"]["restore"] == [str(path)]


async def test_a_checkpoint_of_another_attempt_is_refused_under_the_name_of_this_one(rig: rigs.Rig) -> None:
    """Report, manifest and name have to be of the attempt whose task it is: the best checkpoint is of the latest."""
    job = await gang(rig, 1)
    later = save(place_of(rig, job), 10, attempt=2)
    path = later.rename(later.with_name("attempt-1-round-1-step-10"))
    manifest = {"format": 1, "step": 10, "attempt": 2, "round": 1}
    answer = await tell(rig, job, {**said(path, 10), "manifest": manifest})
    assert answer.status_code == 409
    assert await shown(rig, job) == []


@pytest.mark.parametrize(
    "where",
    [
        "../../x",
        "s3://evil/attempt-1-round-1-step-10",
        "/nonexistent/attempt-1-round-1-step-10",
        "{place}/../{other}/attempt-1-round-1-step-10",
        "{own}/{other}/attempt-1-round-1-step-10",
        "{place}/deeper/attempt-1-round-1-step-10",
        "{place}/attempt-1-round-1-step-11",
        "{place}/weights",
        "{place}",
        "{place}/attempt-1-round-1-step-10\0",
        "file://{place}/attempt-1-round-1-step-10",
    ],
)
async def test_a_checkpoint_outside_the_jobs_own_place_is_refused(rig: rigs.Rig, where: str) -> None:
    job, other = await gang(rig, 1), await gang(rig, 1)
    for path in (place_of(rig, other), place_of(rig, job), place_of(rig, job) / "deeper"):
        save(path, 10)
    save(place_of(rig, job), 10, attempt=2).rename(place_of(rig, job) / "weights")
    path = where.format(place=place_of(rig, job), own=rig.checkpoints.own, other=other.id)
    answer = await tell(rig, job, said(path, 10))
    assert answer.status_code == 409, answer.text
    error = answer.json()["error"]
    assert "is not a place of this job's checkpoints" in error["message"]
    assert f"{place_of(rig, job)}/attempt-1-round-1-step-10" in error["hint"]
    assert await shown(rig, job) == []


async def test_one_that_does_not_hold_is_refused_with_the_reason(rig: rigs.Rig) -> None:
    job = await gang(rig, 1)
    for step in (10, 11, 12, 13):
        save(place_of(rig, job), step)
    at = {step: place_of(rig, job) / f"attempt-1-round-1-step-{step}" for step in (10, 11, 12, 13, 14)}
    flip(at[10] / "rank-1.pt")
    (at[11] / "rank-0.pt").unlink()
    (at[12] / "manifest.json").unlink()
    shutil.copytree(at[13], at[14])  # its manifest says step 13
    for step, why in {
        10: "rank-1.pt does not have the digest",
        11: "rank-0.pt cannot be read",
        12: "it has no manifest.json",
        14: "manifest on disk is of another checkpoint",
    }.items():
        answer = await tell(rig, job, said(at[step], step))
        assert (answer.status_code, why in answer.text) == (409, True), answer.text
    assert (await tell(rig, job, said(at[13], 13, manifest_sha256="0" * 64))).status_code == 409
    at[10].rename(at[10].with_name("aside"))
    at[10].symlink_to(at[13])
    assert "link" in (await tell(rig, job, said(at[10], 10))).text
    assert await shown(rig, job) == []


async def test_a_job_with_a_place_of_its_own_reports_from_there(rig: rigs.Rig, tmp_path: Path) -> None:
    job = await gang(rig, 1, checkpoint={"to": f"file://{tmp_path}/with%20space/"})
    assert (await tell(rig, job, said(save(place_of(rig, job), 3), 3))).status_code == 409
    assert (await tell(rig, job, said(save(tmp_path / "with space" / job.id, 3), 3))).status_code == 200
    assert await shown(rig, job) == [3]


async def test_checkpoints_that_the_library_removed_are_not_shown_nor_kept_in_the_record(rig: rigs.Rig) -> None:
    """Nine were reported with `keep: 4`; five of them were listed and were not there."""
    job = await gang(rig, 1, checkpoint={"keep": 4})
    paths = {}
    for step in range(1, 10):
        paths[step] = save(place_of(rig, job), step)
        assert (await tell(rig, job, said(paths[step], step))).status_code == 200
        if step > 4:
            shutil.rmtree(paths[step - 4])
        assert await shown(rig, job) == sorted((one for one in paths if paths[one].exists()), reverse=True)
    listed = await rig.store.read(lambda view: view.checkpoints(job.id))
    assert [one.step for one in listed] == [9, 8, 7, 6, 5], "the record learns of it with the next one"
    restore = (await register(rig, rigs.key_of(job)))["rendezvous"]["restore"]
    assert restore == [str(paths[step]) for step in (9, 8, 7, 6)]
    for step in (6, 7, 8, 9):
        shutil.rmtree(paths[step])
    assert await shown(rig, job) == []
    restore = (await register(rig, rigs.key_of(job)))["rendezvous"]["restore"]
    assert len(restore) == 5, "with nothing left it fails, and does not begin again by itself"


async def test_copies_are_listed_as_their_agent_says(rig: rigs.Rig) -> None:
    job = await gang(rig, 1, checkpoint={"to": "s3://bucket/ckpt", "keep": 2})
    name = "attempt-1-round-1-step-{}".format
    for step in (1, 2, 3):
        answer = await tell(rig, job, said(f"s3://bucket/ckpt/{job.id}/{name(step)}", step))
        assert answer.status_code == 200
    assert (await tell(rig, job, said(save(place_of(rig, job), 4), 4))).status_code == 200, "one that was not copied"
    answer = await tell(rig, job, {"names": [name(2), name(3), "notes"]}, "/kept")
    assert (answer.status_code, await shown(rig, job)) == (200, [4, 3, 2])
    other = await gang(rig, 1)
    assert (await tell(rig, other, {"names": []}, "/kept")).status_code == 409


async def test_one_that_was_reported_in_time_is_listed_though_the_attempt_ended_meanwhile(
    rig: rigs.Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large one takes a while to be read, and a failure is not held up for it. The agent is stale all the same."""
    job = await gang(rig, 1, max_restarts=0)
    path = save(place_of(rig, job), 10)
    verify = rig.checkpoints.verify

    async def slow(*arguments: Any) -> Any:
        await rig.end(job.id, code=3)
        return await verify(*arguments)

    monkeypatch.setattr(rig.checkpoints, "verify", slow)
    key = rigs.key_of(job)
    async with rig.as_task(key) as http:
        assert (await http.post("/agent/v1/checkpoints", json=said(path, 10))).status_code == 410
        ended = await rig.store.read(lambda view: view.job(job.id))
        assert await shown(rig, job) == [10]
        late = save(place_of(rig, job), 11)
        assert (await http.post("/agent/v1/checkpoints", json=said(late, 11))).status_code == 410
    assert await shown(rig, job) == [10], "a report after the end is not"
    assert await rig.store.read(lambda view: view.job(job.id)) == ended


async def test_the_step_that_was_restored_is_the_one_that_the_processes_say(rig: rigs.Rig) -> None:
    """Step 20 was offered and did not hold: the record says 10."""
    job = await gang(rig, 1)
    for step in (10, 20):
        await tell(rig, job, said(save(place_of(rig, job), step), step))
    await rig.end(job.id, code=3)
    job = await rig.launch(await rig.store.read(lambda view: view.job(job.id)))
    assert (job.live.offered_step, job.live.restore_step) == (20, None)
    key = rigs.key_of(job)
    path = str(place_of(rig, job) / "attempt-1-round-1-step-10")
    async with rig.as_task(key) as http:
        for _ in range(2):
            await http.post("/agent/v1/report", json={"restored": {"step": 10, "path": path}})
    job = await rig.store.read(lambda view: view.job(job.id))
    assert job.live.restore_step == 10
    records = await rig.store.read(lambda view: view.records(0, job=job.id))
    facts = [record.data for record in records if record.kind == events.CheckpointRestored.__struct_config__.tag]
    assert [(fact["step"], fact["path"]) for fact in facts] == [(10, path)], "said twice, recorded once"


@pytest.mark.parametrize("field", ["checkpoint", "results"])
@pytest.mark.parametrize("place", ["/proc/foo", "file:///sys/a/b", "/dev/null/x", "/dev/null", f"/{'x' * 300}"])
async def test_a_place_that_cannot_be_written_is_refused_at_submit(rig: rigs.Rig, field: str, place: str) -> None:
    body = rigs.submission(**{field: {"to": place} if field == "checkpoint" else place})
    async with rig.as_user("ann") as http:
        answer = await http.post("/api/v1/jobs", json=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["path"]) == (422, "checkpoint.to" if field == "checkpoint" else "results")
    assert error["message"].startswith("Nothing can be stored at "), error


async def test_a_place_that_is_not_there_yet_is_tried_and_left_as_it_was(rig: rigs.Rig, tmp_path: Path) -> None:
    async with rig.as_user("ann") as http:
        body = rigs.submission(checkpoint={"to": f"{tmp_path}/new/deeper"})
        assert (await http.post("/api/v1/jobs", json=body)).status_code == 201
    assert not (tmp_path / "new").exists()
    assert list(tmp_path.glob(".oarlock-*")) == []
