"""The agent's routes, told as the lives of small gangs."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.api import rig as rigs
from tests.data.checkpoints.test_checkpoints import save

from oarlock.api.services import inbox as inboxes
from oarlock.spec import attempts, curves, events, jobs

REGISTER = {"pid": 1, "host": "h", "address": "127.0.0.1", "ports": [20000, 20001], "agent_version": "1", "python": "3"}

WOKEN_S = 240.0
"""Half of the time that the polls would wait: one that is never woken is noticed."""


async def gang(rig: rigs.Rig, count: int = 2, **spec: object) -> jobs.Job:
    return await rig.launch(await rig.submit(roles={"worker": {"count": count, "cpus": 0.1}}, **spec))


async def register(rig: rigs.Rig, key: attempts.TaskKey) -> dict:
    async with rig.as_task(key) as http:
        answer = await http.post("/agent/v1/register", json=REGISTER)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_the_last_to_register_opens_the_barrier_for_all(rig: rigs.Rig) -> None:
    job = await gang(rig)
    first, second = rigs.key_of(job, 0), rigs.key_of(job, 1)
    assert (await register(rig, first))["rendezvous"] is None
    async with rig.as_task(first) as http:
        early = await http.get("/agent/v1/rendezvous", params={"round": 1, "wait": 0})
        waiting = asyncio.create_task(http.get("/agent/v1/rendezvous", params={"round": 1, "wait": 60}))
        await asyncio.sleep(0.05)
        assert (early.status_code, waiting.done()) == (204, False)
        last = await register(rig, second)
        async with asyncio.timeout(WOKEN_S):
            told = await waiting
    assert told.status_code == 200
    envs = [told.json()["processes"][0]["env"], last["rendezvous"]["processes"][0]["env"]]
    assert [env["RANK"] for env in envs] == ["0", "1"]
    assert [env["WORLD_SIZE"] for env in envs] == ["2", "2"]
    assert last["orders"]["round"] == 1


async def test_a_server_that_is_behind_ends_no_task(rig: rigs.Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has read the job before another server began the attempt, and has not read the log since."""
    job = await rig.submit(roles={"worker": {"count": 1, "cpus": 0.1}})
    monkeypatch.setattr(rig.wakes, "touched", lambda job: None)
    before = await rig.wakes.job(job.id)
    assert before is not None
    assert before.live is None
    key = rigs.key_of(await rig.launch(job))
    assert await rig.wakes.job(job.id) is before
    async with rig.as_task(key) as http:
        assert (await http.get("/agent/v1/orders", params={"wait": 0})).status_code == 200


async def test_no_agent_of_an_earlier_life_is_heard(rig: rigs.Rig) -> None:
    job = await gang(rig, 1)
    key = rigs.key_of(job)
    stale = [
        attempts.TaskKey(key.job, key.attempt + 1, key.role, key.index, 1),
        attempts.TaskKey(key.job, key.attempt, key.role, key.index, 2),
        attempts.TaskKey(key.job, key.attempt, key.role, 7, 1),
        attempts.TaskKey("j-none", key.attempt, key.role, key.index, 1),
    ]
    for other in stale:
        async with rig.as_task(other) as http:
            for method, path, body in (
                ("POST", "/register", REGISTER),
                ("GET", "/rendezvous", None),
                ("GET", "/orders", None),
                ("POST", "/report", {"phase": "PROCESSING"}),
                ("POST", "/logs/stdout.0?offset=0", {}),
                ("POST", "/metrics/0?offset=0", {}),
                ("POST", "/stacks", {"request": 1, "stacks": {}}),
                ("POST", "/checkpoints", {"step": 1, "path": "/c", "manifest": {"step": 1, "attempt": other.attempt}}),
                ("GET", "/blobs/sha256:" + "0" * 64, None),
            ):
                answer = await http.request(method, f"/agent/v1{path}", json=body)
                assert answer.status_code == 410, (path, answer.text)
                assert answer.json()["error"]["code"] == "stale_task"
    assert await rig.logs.streams(key.job) == []


async def test_the_fence_is_in_the_transaction_not_in_an_earlier_read(
    rig: rigs.Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = await gang(rig, 1)
    key = rigs.key_of(old)
    await rig.end(old.id, code=3)
    assert (await rig.store.read(lambda view: view.job(old.id))).live is None

    async def remembered(_: str) -> jobs.Job:
        return old

    monkeypatch.setattr(rig.wakes, "job", remembered)
    path = save(Path(rig.checkpoints.own) / old.id, 1)
    checkpoint = {"step": 1, "path": str(path), "manifest": {"step": 1, "attempt": 1, "round": 1}}
    async with rig.as_task(key) as http:
        for path, body in (
            ("/register", REGISTER),
            ("/report", {"phase": "PROCESSING"}),
            ("/checkpoints", checkpoint),
            ("/stacks", {"request": 1, "stacks": {}}),
        ):
            assert (await http.post(f"/agent/v1{path}", json=body)).status_code == 410, path
    assert await rig.store.read(lambda view: view.checkpoints(old.id)) == []


async def test_a_token_opens_its_own_key_alone(rig: rigs.Rig) -> None:
    job = await gang(rig)
    mine, other = rigs.key_of(job, 0), rigs.key_of(job, 1)
    async with rig.as_task(mine) as http:
        for key in (str(other), "", "x", f"{mine}/1", str(mine).replace("worker", "chief"), "j/1/worker/0/é"):
            answer = await http.get("/agent/v1/orders", headers={"Oarlock-Task": key.encode()})
            assert answer.status_code == 401, key
    async with rig.as_user("root") as http:  # an administrator is no task
        answer = await http.get("/agent/v1/orders", headers={"Oarlock-Task": str(mine)})
        assert answer.status_code == 401


async def test_orders_come_when_the_owner_halts(rig: rigs.Rig) -> None:
    job = await gang(rig, 1)
    key = rigs.key_of(job)
    await register(rig, key)
    async with rig.as_task(key) as http:
        now = (await http.get("/agent/v1/orders", params={"seen": ""})).json()
        nothing = await http.get("/agent/v1/orders", params={"seen": now["version"], "wait": 0})
        waiting = asyncio.create_task(http.get("/agent/v1/orders", params={"seen": now["version"], "wait": 60}))
        await asyncio.sleep(0.05)
        assert (nothing.status_code, waiting.done()) == (204, False)
        async with rig.as_user("ann") as owner:
            await owner.put(f"/api/v1/jobs/{job.id}/intent", json={"intent": "halt", "reason": "lunch"})
        stop = events.StopDecided(attempt=1, cause=attempts.Cause.STOPPED, message="halted")
        await rig.happen(job.id, stop)
        async with asyncio.timeout(WOKEN_S):
            told = (await waiting).json()
    assert told["stop"]["grace_s"] == 30.0
    assert told["version"] != now["version"]


async def test_a_thousand_polls_wait_without_reading_and_end_together(rig: rigs.Rig) -> None:
    job = await gang(rig, 1)
    key = rigs.key_of(job)
    await register(rig, key)
    async with rig.as_task(key) as http:
        seen = (await http.get("/agent/v1/orders")).json()["version"]
        reads = 0
        read = rig.store.read

        async def counted(look: object) -> object:
            nonlocal reads
            reads += 1
            return await read(look)

        rig.store.read = counted  # type: ignore[method-assign]
        polls = [
            asyncio.create_task(http.get("/agent/v1/orders", params={"seen": seen, "wait": 60})) for _ in range(1000)
        ]
        await asyncio.sleep(0.5)
        assert not any(poll.done() for poll in polls)
        await rig.happen(job.id, events.StopDecided(attempt=1, cause=attempts.Cause.STOPPED, message="x"))
        async with asyncio.timeout(WOKEN_S):
            answers = await asyncio.gather(*polls)
    assert {answer.status_code for answer in answers} == {200}
    assert reads < 20, "one reading is shared by all polls"


async def test_a_gang_that_registers_at_once_costs_a_few_writes(rig: rigs.Rig) -> None:
    job = await gang(rig, 50)
    before = job.version
    answers = await asyncio.gather(*(register(rig, rigs.key_of(job, index)) for index in range(50)))
    after = await rig.store.read(lambda view: view.job(job.id))
    assert after is not None
    assert after.live is not None
    assert after.live.round == 1
    assert sum(answer["rendezvous"] is not None for answer in answers) >= 1
    assert after.version - before <= 10


async def test_progress_is_gathered_and_a_phase_is_not(rig: rigs.Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inboxes, "LINGER_S", 0.05)
    job = await gang(rig, 1)
    key = rigs.key_of(job)
    await register(rig, key)
    async with rig.as_task(key) as http:
        await http.post("/agent/v1/report", json={"phase": "PROCESSING", "hello": {"can_rejoin": True}})
        job = await rig.store.read(lambda view: view.job(key.job))
        version = job.version
        assert (job.phase, job.live.tasks[0].can_rejoin) == ("PROCESSING", True)
        for step in range(20):
            progress = {"event": "progress", "step": step, "time": 1.0, "loss": float("inf") if step < 0 else 0.5}
            answer = await http.post("/agent/v1/report", json={"progress": progress, "idle_s": 0.1})
            assert answer.status_code == 200
        await rig.services.inbox.drain()
    job = await rig.store.read(lambda view: view.job(key.job))
    assert job.live.tasks[0].progress.step == 19
    assert job.version - version <= 3


async def test_a_step_that_was_told_just_before_the_end_counts(rig: rigs.Rig) -> None:
    """The restart that a failure deserves depends on it."""
    job = await gang(rig, 1)
    key = rigs.key_of(job)
    await register(rig, key)
    async with rig.as_task(key) as http:
        await http.post("/agent/v1/report", json={"phase": "PROCESSING"})
        await http.post("/agent/v1/report", json={"progress": {"step": 6, "time": 1.0}})
        await http.post("/agent/v1/report", json={"exit": {"code": 1, "reason": "exited"}})
    job = await rig.store.read(lambda view: view.job(key.job))
    assert (job.reached_step, job.live.tasks[0].progress.step, job.live.tasks[0].phase) == (6, 6, "FAILED")

    job = await gang(rig, 1)
    key = rigs.key_of(job)
    await register(rig, key)
    async with rig.as_task(key) as http:
        await http.post("/agent/v1/report", json={"phase": "PROCESSING"})
        last = {"progress": {"step": 7, "time": 1.0}, "exit": {"code": 1, "reason": "exited"}}
        await http.post("/agent/v1/report", json=last)
    assert (await rig.store.read(lambda view: view.job(key.job))).reached_step == 7


async def test_a_speed_that_a_process_reports_is_kept_where_it_is_valid(rig: rigs.Rig) -> None:
    job = await gang(rig, 1)
    key = rigs.key_of(job)
    await register(rig, key)
    told = {
        "step": 3,
        "time": 1.0,
        "step_s": 0.5,
        "sync_s": 0.2,
        "ranks": 2,
        "local": 32,
        "accumulate": 4,
        "noise": 900,
        "gpu_type": "a100",
        "data_s": 0.01,
        "sent_bytes": 25e6,
        "slowest_rank": 0,
        "slowest_s": 0.4,
        "fastest_s": 0.2,
    }
    odd = {"step": 4, "time": 2.0, "step_s": -1, "sync_s": 1e300, "ranks": 0, "local": 2**40, "noise": 1e400}
    odd |= {"data_s": -0.1, "sent_bytes": 1e300, "slowest_rank": -1}
    async with rig.as_task(key) as http:
        await http.post("/agent/v1/report", json={"phase": "PROCESSING", "progress": told})
        await rig.services.inbox.drain()
        kept = (await rig.store.read(lambda view: view.job(key.job))).live.tasks[0].progress
        assert (kept.step_s, kept.sync_s, kept.ranks, kept.local, kept.accumulate, kept.noise) == (
            0.5,
            0.2,
            2,
            32,
            4,
            900,
        )
        assert kept.gpu_type == "a100"
        assert (kept.data_s, kept.sent_bytes) == (0.01, 25e6)
        assert (kept.slowest_rank, kept.slowest_s, kept.fastest_s) == (0, 0.4, 0.2), "rank 0 is a rank"
        body = json.dumps({"progress": odd}).replace("Infinity", "1e308")
        answer = await http.post("/agent/v1/report", content=body)
        assert answer.status_code == 200
        await rig.services.inbox.drain()
        kept = (await rig.store.read(lambda view: view.job(key.job))).live.tasks[0].progress
    assert (kept.step, kept.step_s, kept.sync_s, kept.ranks, kept.local, kept.noise) == (
        4,
        None,
        None,
        None,
        None,
        None,
    )
    assert (kept.data_s, kept.sent_bytes, kept.slowest_rank) == (None, None, None)


async def test_a_batch_size_that_was_decided_is_ordered_at_once(rig: rigs.Rig) -> None:
    job = await gang(rig, 1)
    key = rigs.key_of(job)
    await register(rig, key)
    async with rig.as_task(key) as http:
        now = (await http.get("/agent/v1/orders", params={"seen": ""})).json()
        assert now.get("batch") is None
        waiting = asyncio.create_task(http.get("/agent/v1/orders", params={"seen": now["version"], "wait": 60}))
        await asyncio.sleep(0.05)
        await rig.happen(job.id, events.BatchDecided(attempt=1, batch=curves.Batch(64, 2)))
        async with asyncio.timeout(WOKEN_S):
            told = (await waiting).json()
    assert told["batch"] == {"local": 64, "accumulate": 2}


async def test_an_exit_is_in_the_record_when_it_is_answered(rig: rigs.Rig) -> None:
    job = await gang(rig, 1)
    key = rigs.key_of(job)
    await register(rig, key)
    record = {
        "key": str(key),
        "code": 3,
        "signal": None,
        "reason": "exited",
        "killed_by_us": False,
        "oom": False,
        "processes": [{"code": 3, "signal": None, "ended_at": 5.0, "last_lines": ["ValueError: x"]}],
        "started_at": 1.0,
        "ended_at": 5.0,
        "kill": "session",
    }
    async with rig.as_task(key) as http:
        for _ in range(2):  # told twice, it happened once
            assert (await http.post("/agent/v1/report", json={"exit": record})).status_code == 200
    job = await rig.store.read(lambda view: view.job(key.job))
    ended = job.live.tasks[0].exit
    assert (ended.code, ended.cause, ended.last_lines, ended.at) == (3, "error", ("ValueError: x",), 5.0)
    records = await rig.store.read(lambda view: view.records(0, job=key.job))
    assert [record.kind for record in records].count("task_exited") == 1


async def test_logs_and_metrics_go_on_where_they_stopped(rig: rigs.Rig) -> None:
    job = await gang(rig, 1)
    key = rigs.key_of(job)
    async with rig.as_task(key) as http:
        for path in ("/agent/v1/logs/stdout.0", "/agent/v1/metrics/0"):
            first = await http.post(f"{path}?offset=0", content=b"one\n")
            again = await http.post(f"{path}?offset=0", content=b"one\n")
            assert (first.status_code, first.json()) == (200, {"length": 4})
            assert (again.status_code, again.json()) == (409, {"length": 4})
            assert (await http.post(f"{path}?offset=4", content=b"two\n")).json() == {"length": 8}
        for bad in ("/logs/..%2f..?offset=0", "/logs/stdout?offset=0", "/logs/x.0?offset=0", "/metrics/-1?offset=0"):
            assert (await http.post(f"/agent/v1{bad}", content=b"x")).status_code in (404, 422), bad
        for bad in ("", "?offset=", "?offset=-1", "?offset=x", "?offset=99999999999999999999"):
            assert (await http.post(f"/agent/v1/logs/stdout.0{bad}", content=b"x")).status_code == 422, bad
    async with rig.as_user("ann") as http:
        lines = (await http.get(f"/api/v1/jobs/{job.id}/logs")).text.splitlines()
        there = [
            await http.get(f"/api/v1/jobs/{job.id}/logs?{query}") for query in ("role=worker&index=0", "attempt=1")
        ]
        assert [len(answer.text.splitlines()) for answer in there] == [2, 2]
        for query, why in {
            "role=ps": "has no role ps",
            "index=1": "no task with the index 1",
            "role=worker&index=7": "no task worker-7",
            "attempt=2": "no attempt 2",
        }.items():
            answer = await http.get(f"/api/v1/jobs/{job.id}/logs?{query}")
            assert answer.status_code == 404, query
            assert re.search(why, answer.text), answer.text
    assert [line.partition('"text":"')[2].partition('"')[0] for line in lines] == ["one", "two"]


async def test_a_task_is_asked_again_for_logs_that_were_deleted_and_the_record_says_so(rig: rigs.Rig) -> None:
    job = await gang(rig, 1)
    key = rigs.key_of(job)
    await register(rig, key)

    async def missing() -> list[int]:
        told = await rig.store.read(lambda view: view.records(0, job=job.id))
        return [record.data["missing"] for record in told if record.kind == "logs_missing"]

    async def shown() -> str:
        async with rig.as_user("ann") as http:
            return (await http.get(f"/api/v1/jobs/{job.id}/logs")).text

    async with rig.as_task(key) as http:
        await http.post("/agent/v1/logs/stdout.0?offset=0", content=b"one\ntwo\n")
        (path,) = rig.logs._root.rglob("stdout.0.log")
        path.unlink()
        refused = await http.post("/agent/v1/logs/stdout.0?offset=8", content=b"three\n")
        assert (refused.status_code, refused.json()) == (409, {"length": 0})
        asked = await http.post("/agent/v1/report", json={"idle_s": 1.0})
        assert asked.json()["logs"] == {"stdout.0": 0}
        assert await missing() == [8]
        assert "8 bytes of this log are missing here" in await shown()
        await http.post("/agent/v1/logs/stdout.0?offset=0", content=b"one\ntwo\nthree\n")
        assert (await http.post("/agent/v1/report", json={"idle_s": 2.0})).json()["logs"] == {}
    assert await missing() == [8, 0]
    assert "missing" not in await shown()


async def test_secrets_are_told_at_registration_and_waited_for(rig: rigs.Rig) -> None:
    rig.secrets.values["hub-token"] = "hush"
    job = await gang(rig, 1, secrets=[{"name": "hub-token", "as": "file"}])
    key = rigs.key_of(job)
    rig.secrets.values.clear()
    async with rig.as_task(key) as http:
        answer = await http.post("/agent/v1/register", json=REGISTER)
        assert (answer.status_code, answer.json()["error"]["code"]) == (409, "conflict")
        rig.secrets.values["hub-token"] = "hush"
        answer = await http.post("/agent/v1/register", json=REGISTER)
    assert answer.json()["secrets"] == {"hub-token": {"as": "file", "value": "hush"}}
    stored = await rig.store.read(lambda view: (view.job(job.id), view.records(0)))
    assert "hush" not in repr(stored)


async def test_a_task_reads_its_own_snapshot_alone(rig: rigs.Rig) -> None:
    names = []
    async with rig.as_user("ann") as http:
        for data in (b"mine", b"other"):
            names.append("sha256:" + hashlib.sha256(data).hexdigest())
            assert (await http.put(f"/api/v1/blobs/{names[-1]}", content=data)).status_code == 200
        made = await http.post("/api/v1/jobs", json={"spec": {"command": "true"}, "snapshot": names[0]})
    job = await rig.store.read(lambda view: view.job(made.json()["id"]))
    key = rigs.key_of(await rig.launch(job))
    async with rig.as_task(key) as http:
        assert (await http.get(f"/agent/v1/blobs/{names[0]}")).content == b"mine"
        assert (await http.get(f"/agent/v1/blobs/{names[1]}")).status_code == 404


async def test_stacks_are_kept_within_bounds(rig: rigs.Rig) -> None:
    job = await gang(rig, 1)
    key = rigs.key_of(job)
    await register(rig, key)
    async with rig.as_task(key) as http:
        await http.post("/agent/v1/report", json={"phase": "PROCESSING"})
        await rig.happen(key.job, events.StacksAsked(attempt=1, task="worker-0", message="no progress"))
        asked = (await http.get("/agent/v1/orders")).json()["stacks"]
        assert asked == 1
        answer = await http.post("/agent/v1/stacks", json={"request": asked, "stacks": {"7": "x" * 1_000_000}})
    assert answer.status_code == 200
    job = await rig.store.read(lambda view: view.job(key.job))
    assert [len(text) for taken in job.live.stacks for text in taken.stacks.values()] == [64 * 1024]


async def test_secrets_are_told_before_data_is_fetched_to_the_present_incarnation_only(rig: rigs.Rig) -> None:
    rig.secrets.values["bucket-key"] = "hush"
    job = await gang(rig, 1, secrets=[{"name": "bucket-key", "as": "env"}])
    key = rigs.key_of(job)
    async with rig.as_task(key) as http:
        told = await http.get("/agent/v1/secrets")
        assert told.json() == {"secrets": {"bucket-key": {"as": "env", "value": "hush"}}}
        await rig.end(job.id, code=3)
        assert (await http.get("/agent/v1/secrets")).status_code == 410


async def test_a_file_of_a_task_that_ended_while_it_sent_is_not_stored(rig: rigs.Rig) -> None:
    job = await gang(rig, 1)

    async def body() -> AsyncIterator[bytes]:
        yield b"1"
        await rig.end(job.id)
        yield b"2"

    async with rig.as_task(rigs.key_of(job)) as http:
        answer = await http.put("/agent/v1/files", params={"path": f"results/{job.id}/x"}, content=body())
        assert answer.status_code == 410
    async with rig.as_user("ann") as http:
        assert (await http.get(f"/api/v1/jobs/{job.id}/files")).json()["items"] == []


async def test_a_task_stores_files_at_the_server_in_its_own_places_only(rig: rigs.Rig) -> None:
    job = await gang(rig)
    key = rigs.key_of(job, 1)
    own = f"files/{job.id}/worker-1/attempt-1"
    async with rig.as_task(key) as http:

        async def put(path: str, data: bytes = b"1") -> int:
            return (await http.put("/agent/v1/files", params={"path": path}, content=data)).status_code

        assert await put(f"results/{job.id}/worker-1/score.txt", b"0.9") == 200
        assert await put(f"{own}/odd-%FF.bin", b"w" * 3_000_000) == 200
        for path in (
            "",
            "results",
            f"results/{job.id}",
            f"results/{job.id}/../other/x",
            "results/j-other/x",
            f"files/{job.id}/worker-0/attempt-1/x",
            f"files/{job.id}/worker-1/attempt-2/x",
            own,
            f"checkpoints/{job.id}/x",
            f"../{job.id}/x",
            f"results/{job.id}/%2E%2E/%2E%2E/token",
        ):
            assert await put(path) == 422, path
        stale = key.__class__(key.job, 2, key.role, key.index, key.incarnation)
    async with rig.as_task(stale) as http:
        answer = await http.put("/agent/v1/files", params={"path": f"results/{job.id}/x"}, content=b"1")
        assert answer.status_code == 410
    async with rig.as_user("ann") as http:
        listed = (await http.get(f"/api/v1/jobs/{job.id}/files")).json()["items"]
    assert {one["path"]: one["bytes"] for one in listed} == {
        "results/worker-1/score.txt": 3,
        "files/worker-1/odd-%FF.bin": 3_000_000,
    }
