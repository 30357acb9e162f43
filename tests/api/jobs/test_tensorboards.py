"""The TensorBoard beside a job: who sees it, and how far its token reaches."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from tests.api import rig as rigs
from tests.api import test_streams
from tests.api.agents import test_agents

from oarlock.spec import intents, jobs
from oarlock.spec.protocol import tasktokens

WS = "/tensorboard/connection"


async def state(rig: rigs.Rig, job: jobs.Job, who: str = "ann") -> dict[str, str]:
    async with rig.as_user(who) as http:
        answer = await http.get(f"/api/v1/jobs/{job.id}/tensorboard")
    return answer.json() if answer.status_code == 200 else {"state": str(answer.status_code)}


async def test_its_state_is_that_of_the_pod(rig: rigs.Rig) -> None:
    plain = await test_agents.gang(rig, 1)
    assert await state(rig, plain) == {"state": "none", "reason": ""}
    asks = await test_agents.gang(rig, 1, tensorboard=True)
    assert (await state(rig, asks))["state"] == "starting"
    rig.tensorboards.put(asks.id, reason="no node has room")
    assert await state(rig, asks) == {"state": "starting", "reason": "no node has room"}
    rig.tensorboards.put(asks.id)
    assert await state(rig, asks) == {"state": "running", "reason": ""}
    assert (await state(rig, asks, "bob"))["state"] == "404"


async def test_a_job_that_waits_will_have_one(rig: rigs.Rig) -> None:
    """Else `oarlock tensorboard` right after `oarlock run`, or at a restart of the gang, says that there is none."""
    waits = await rig.submit("ann", tensorboard=True)
    assert await state(rig, waits) == {"state": "starting", "reason": f"the job is QUEUED (`oarlock why {waits.id}`)"}
    async with rig.as_user("ann") as http:
        await http.put(f"/api/v1/jobs/{waits.id}/intent", json={"intent": "halt"})
    assert (await state(rig, waits))["state"] == "none"
    runs = await test_agents.gang(rig, 1, tensorboard=True)
    rig.tensorboards.put(runs.id)
    async with rig.as_user("ann") as http:
        await http.put(f"/api/v1/jobs/{runs.id}/intent", json={"intent": "cancel"})
    assert (await state(rig, runs))["state"] == "none"


async def test_bytes_go_both_ways(rig: rigs.Rig) -> None:
    job = await test_agents.gang(rig, 1, tensorboard=True)
    rig.tensorboards.put(job.id)
    talk = test_streams.Talk(rig, job, path=WS)
    assert (await talk.hear())["type"] == "websocket.accept"
    assert (await talk.hear())["bytes"] == b"\x02connected"
    talk.say(data=b"\x00GET /")
    assert (await talk.hear())["bytes"] == b"\x01GET /"
    talk.leave()
    await talk.task
    assert rig.tensorboards.connections[0].killed


@pytest.mark.parametrize(("who", "status"), [("bob", 404), ("vera", 403)])
async def test_only_its_owner_reaches_it(rig: rigs.Rig, who: str, status: int) -> None:
    job = await test_agents.gang(rig, 1, tensorboard=True)
    rig.tensorboards.put(job.id)
    talk = test_streams.Talk(rig, job, who=who, path=WS)
    first = await talk.hear()
    assert (first["type"], first["status"]) == ("websocket.http.response.start", status)
    await talk.task


async def test_a_job_without_one_says_so(rig: rigs.Rig) -> None:
    talk = test_streams.Talk(rig, await test_agents.gang(rig, 1), path=WS)
    assert (await talk.hear())["status"] == 404
    await talk.task
    waits = test_streams.Talk(rig, await rig.submit("ann", tensorboard=True), path=WS)
    assert (await waits.hear())["status"] == 409
    await waits.task
    gone = test_streams.Talk(rig, await test_agents.gang(rig, 1, tensorboard=True), path=WS)
    assert (await gone.hear())["type"] == "websocket.accept"
    assert json.loads((await gone.hear())["text"])["error"]["code"] == "not_found"
    await gone.task


async def test_its_token_reads_the_metrics_of_its_job_alone_and_while_it_runs(rig: rigs.Rig) -> None:
    job, other = await test_agents.gang(rig, 1, tensorboard=True), await test_agents.gang(rig, 1, tensorboard=True)
    token = tasktokens.of_tensorboard(rigs.SECRET, job.id, 1)
    async with rig.client({"Authorization": f"Bearer {token}"}) as http:
        assert (await http.get(f"/api/v1/jobs/{job.id}/metrics")).json()["names"] == ["loss"]
        new = (await http.get(f"/api/v1/jobs/{job.id}/metrics", params={"after": "worker/0/0:1.1.5"})).json()
        assert new == {"names": ["loss"], "series": [], "after": "worker/0/0:1.1.5", "groups": 1}
        for path in (f"{other.id}/metrics", job.id, f"{job.id}/logs", f"{job.id}/files", f"{job.id}/tensorboard"):
            assert (await http.get(f"/api/v1/jobs/{path}")).status_code == 401, path
        assert (await http.get(f"/api/v1/jobs/{job.name}/metrics")).status_code == 401
        assert (await http.put(f"/api/v1/jobs/{job.id}/intent", json={"intent": "halt"})).status_code == 401
    ended = await rig.submit("ann", tensorboard=True)
    late = tasktokens.of_tensorboard(rigs.SECRET, ended.id, 1)
    async with rig.client({"Authorization": f"Bearer {late}"}) as http:
        assert (await http.get(f"/api/v1/jobs/{ended.id}/metrics")).status_code == 401
    assert ended.intent is intents.Intent.RUN


async def test_its_token_ends_with_the_attempt(rig: rigs.Rig) -> None:
    job = await test_agents.gang(rig, 1, tensorboard=True)
    tokens = [tasktokens.of_tensorboard(rigs.SECRET, job.id, attempt) for attempt in (1, 2)]

    async def statuses() -> list[int]:
        found = []
        for token in tokens:
            async with rig.client({"Authorization": f"Bearer {token}"}) as http:
                found.append((await http.get(f"/api/v1/jobs/{job.id}/metrics")).status_code)
        return found

    assert await statuses() == [200, 401]

    def again(tx: Any) -> None:
        found = tx.job(job.id)
        ended = msgspec.structs.replace(found.live, ended_at=2e9)
        second = msgspec.structs.replace(found.live, number=2)
        tx.put_job(msgspec.structs.replace(found, attempts=(ended, second)), at=1e9)

    await rig.store.write(again)
    assert await statuses() == [401, 200]
