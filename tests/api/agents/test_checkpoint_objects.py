"""A task uses the checkpoints of its own job in the installation's object store, and no others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import msgspec
import pytest
from tests import objectstores
from tests.api import rig as rigs
from tests.api.agents.test_agents import gang, register
from tests.api.agents.test_reported_checkpoints import said, shown, tell

from oarlock.api import application
from oarlock.api.process import claimedcheckpoints
from oarlock.spec import jobs

NAME = "attempt-1-round-1-step-10"
OBJECTS = "/agent/v1/checkpoints/objects"


@pytest.fixture
def stored(rig: rigs.Rig, bucket: objectstores.Bucket, monkeypatch: pytest.MonkeyPatch) -> Iterator[rigs.Rig]:
    """A server that keeps checkpoints below `kept/` of the bucket."""
    for name, value in bucket.env.items():
        monkeypatch.setenv(name, value)
    place = claimedcheckpoints.opened(None, f"{bucket.url}/kept")
    rig.services = msgspec.structs.replace(rig.services, checkpoints=place)
    rig.app = application.make(rig.services)
    yield rig
    place.close()


async def ask(rig: rigs.Rig, job: jobs.Job, route: str, body: dict[str, Any]) -> httpx.Response:
    async with rig.as_task(rigs.key_of(job)) as http:
        return await http.post(f"{OBJECTS}{route}", json=body)


async def listed(rig: rigs.Rig, job: jobs.Job, path: str) -> httpx.Response:
    async with rig.as_task(rigs.key_of(job)) as http:
        return await http.get(OBJECTS, params={"path": path})


async def test_a_task_writes_reads_lists_and_removes_by_signed_urls(
    stored: rigs.Rig, bucket: objectstores.Bucket
) -> None:
    job = await gang(stored, 1)
    key = f"{job.id}/{NAME}/rank-0.pt"
    to_write = (await ask(stored, job, "/url", {"key": key, "use": "write"})).json()["url"]
    async with httpx.AsyncClient(timeout=objectstores.PATIENCE_S) as http:
        assert (await http.put(to_write, content=b"weights")).status_code == 200
        assert bucket.get(f"kept/{key}") == b"weights"
        to_read = (await ask(stored, job, "/url", {"key": key, "use": "read"})).json()["url"]
        assert (await http.get(to_read)).content == b"weights"
    bucket.put(f"kept/{job.id}/{NAME}0/rank-0.pt", b"of step 100")
    for path, keys in ((job.id, 2), (f"{job.id}/{NAME}", 1), (key, 1), (f"{job.id}/{NAME}1", 0)):
        assert len((await listed(stored, job, path)).json()["objects"]) == keys, path
    (one,) = (await listed(stored, job, key)).json()["objects"]
    assert (one["key"], one["bytes"], bool(one["version"])) == (key, 7, True)
    assert (await ask(stored, job, "/removal", {"keys": [key]})).status_code == 200
    assert bucket.keys(f"kept/{key}") == []


@pytest.mark.parametrize(
    ("route", "body", "status"),
    [
        ("/url", {"key": "OTHER/NAME/rank-0.pt", "use": "read"}, 403),
        ("/url", {"key": "OTHER/NAME/rank-0.pt", "use": "write"}, 403),
        ("/uploads", {"key": "OTHER/NAME/rank-0.pt"}, 403),
        ("/uploads/end", {"key": "OTHER/NAME/rank-0.pt", "upload": "u", "etags": []}, 403),
        ("/removal", {"keys": ["OWN/NAME/rank-0.pt", "OTHER/NAME/rank-0.pt"]}, 403),
        ("/url", {"key": "OWN/attempt-2-round-1-step-10/rank-0.pt", "use": "write"}, 403),
        ("/uploads", {"key": "OWN/attempt-2-round-1-step-10/rank-0.pt"}, 403),
        ("/url", {"key": "OWN/../OTHER/NAME/rank-0.pt", "use": "read"}, 422),
        ("/url", {"key": "OWN/NAME/../../OTHER/NAME/rank-0.pt", "use": "read"}, 422),
        ("/url", {"key": "OWN/NAME/..", "use": "write"}, 422),
        ("/url", {"key": "OWN/NAME", "use": "read"}, 422),
        ("/url", {"key": "OWN", "use": "read"}, 422),
        ("/url", {"key": "/OTHER/NAME/rank-0.pt", "use": "read"}, 422),
        ("/url", {"key": "OWN/NAME/rank-0.pt", "use": "part"}, 422),
        ("/removal", {"keys": ["OWN/NAME"]}, 422),
    ],
)
async def test_nothing_of_another_job_or_attempt_is_given_out(
    stored: rigs.Rig, bucket: objectstores.Bucket, route: str, body: dict[str, Any], status: int
) -> None:
    own, other = await gang(stored, 1), await gang(stored, 1)
    for job in (own, other):
        bucket.put(f"kept/{job.id}/{NAME}/rank-0.pt", b"weights")

    def named(value: Any) -> Any:
        if isinstance(value, list):
            return [named(one) for one in value]
        return value.replace("OTHER", other.id).replace("OWN", own.id).replace("NAME", NAME)

    answer = await ask(stored, own, route, {name: named(value) for name, value in body.items()})
    assert answer.status_code == status, answer.text
    assert "http" not in answer.text.replace("https://docs", "")
    assert len(bucket.keys("kept/")) == 2
    for path in (other.id, f"{other.id}/{NAME}", f"{other.id}/{NAME}/rank-0.pt"):
        assert (await listed(stored, own, path)).status_code == 403


async def test_a_report_names_the_place_and_is_offered_to_the_next_attempt(stored: rigs.Rig) -> None:
    job = await gang(stored, 1)
    place = f"oarlock:checkpoints/{job.id}"
    assert (await tell(stored, job, said(f"{place}/{NAME}", 10))).status_code == 200
    assert (await tell(stored, job, said(f"oarlock:checkpoints/other/{NAME}", 10))).status_code == 409
    assert (await register(stored, rigs.key_of(job)))["rendezvous"]["restore"] == [f"{place}/{NAME}"]
    assert (await tell(stored, job, {"names": []}, "/kept")).status_code == 200
    assert await shown(stored, job) == []


async def test_a_job_that_continues_reads_the_one_checkpoint_of_the_other_job(
    stored: rigs.Rig, bucket: objectstores.Bucket
) -> None:
    old = await stored.launch(await stored.submit(name="old", roles={"worker": {"count": 1, "cpus": 0.1}}))
    for step in (10, 20):
        bucket.put(f"kept/{old.id}/attempt-1-round-1-step-{step}/rank-0.pt", b"weights")
    assert (await tell(stored, old, said(f"oarlock:checkpoints/{old.id}/{NAME}", 10))).status_code == 200
    new = await gang(stored, 1)
    theirs = f"{old.id}/{NAME}/rank-0.pt"
    assert (await ask(stored, new, "/url", {"key": theirs, "use": "read"})).status_code == 403
    (known,) = await stored.store.read(lambda view: view.checkpoints(old.id))
    held = msgspec.structs.replace(known, job=new.id, attempt=0)
    await stored.store.write(lambda tx: tx.add_checkpoint(held))
    assert (await ask(stored, new, "/url", {"key": theirs, "use": "read"})).status_code == 200
    assert (await listed(stored, new, f"{old.id}/{NAME}")).status_code == 200
    later = theirs.replace("step-10", "step-20")
    assert (await ask(stored, new, "/url", {"key": later, "use": "read"})).status_code == 403
    for use in ("write", "part"):
        assert (await ask(stored, new, "/url", {"key": theirs, "use": use, "upload": "u"})).status_code == 403
    assert (await ask(stored, new, "/removal", {"keys": [theirs]})).status_code == 403


async def test_a_task_of_the_past_gets_no_url(stored: rigs.Rig) -> None:
    job = await gang(stored, 1)
    key = {"key": f"{job.id}/{NAME}/rank-0.pt", "use": "read"}
    assert (await ask(stored, job, "/url", key)).status_code == 200
    await stored.end(job.id)
    assert (await ask(stored, job, "/url", key)).status_code == 410


async def test_without_a_place_there_is_nothing_to_ask_for(rig: rigs.Rig) -> None:
    job = await gang(rig, 1)
    assert (await listed(rig, job, job.id)).status_code == 404
