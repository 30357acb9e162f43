"""The privacy rule: each user sees which user, pool and job name holds what; everything else of a job is its owner's.

Markers stand in everything that belongs to ann's job. Each route is asked by another user and by a viewer: no answer
has one of them. With `private_jobs` the job's name is a marker too.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import msgspec
import pytest
from tests.api import rig as rigs
from tests.api.security import test_access

from oarlock.api import application
from oarlock.scheduler import gangs
from oarlock.spec import attempts, events, holdings, jobs, refusals
from oarlock.spec.access import privacy, users
from oarlock.spec.cluster import nodes

MARK = "xmarkerx"
NAME = "digits-of-ann"
OTHERS = ("bob", "vera")
CODE = f"{MARK}-code".encode()
DIGEST = "sha256:" + hashlib.sha256(CODE).hexdigest()
READ = [one for one in application.TABLE if isinstance(one.needs, users.Right) and one.method == "GET"]
WHOLE = holdings.Resources(8000, 16 << 30, 2)


async def planted(rig: rigs.Rig, home: Path) -> jobs.Job:
    """A running job of ann's with a marker wherever one can stand, which holds the whole node."""

    async def chunks():
        yield CODE

    await rig.blobs.put(DIGEST, chunks(), limit_bytes=1 << 20)
    job = await rig.submit(
        "ann",
        snapshot=DIGEST,
        name=NAME,
        command=f"python train.py --with {MARK}-command",
        env={"TOKEN": f"{MARK}-env"},
        data=[{"source": f"s3://bucket/{MARK}-data", "mount": "data/it"}],
        results=f"s3://bucket/{MARK}-results",
        secrets=[{"name": f"{MARK}-secret"}],
        roles={"worker": {"count": 1, "cpus": 8}},
    )
    job = await rig.launch(job)
    key = rigs.key_of(job)
    claim = holdings.Holding(job=job.id, attempt=1, role="worker", index=0, node="here", amount=WHOLE, devices=(0, 1))
    await rig.store.write(lambda tx: tx.hold([claim]))
    where = {"key": attempts.TaskKey(job.id, 1, "worker", 0, 1)}
    await rig.happen(
        job.id,
        events.TaskRegistered(**where, address="127.0.0.1"),
        events.TaskReported(**where, phase="PROCESSING", detail=f"{MARK}-detail"),
        events.StacksAsked(attempt=1, task="worker-0", message=f"{MARK}-hang"),
        events.StacksTaken(**where, request=1, stacks={"0": f"{MARK}-stack"}),
        events.CheckpointVisible(checkpoint_step=3, attempt=1, path=f"/checkpoints/{MARK}-checkpoint"),
    )
    await rig.logs.append(key, "stdout.0", 0, f"{MARK}-log\n".encode(), at=1.0)
    for folder in ("results", "files"):
        (home / folder / job.id).mkdir(parents=True)
        (home / folder / job.id / f"{MARK}-file").write_text(f"{MARK}-result")
    return job


@pytest.fixture(params=[False, True], ids=["names are shown", "private_jobs"])
async def private(request: pytest.FixtureRequest, rig: rigs.Rig) -> bool:
    rig.services.forecaster.names = privacy.Names(request.param, b"k" * 32)
    rig.secrets.values[f"{MARK}-secret"] = "hush"
    return bool(request.param)


async def everything(rig: rigs.Rig, name: str, job: jobs.Job, own: jobs.Job) -> dict[str, str]:
    """Return the answer of each reading route to this user: for ann's job by id and by name, and for their own."""
    found = {}
    async with rig.as_user(name) as http:
        for route in READ:
            if route.media == "text/event-stream":
                continue  # the same lines as /api/v1/events
            for asked in {job.id, job.name, own.id} if "job" in route.parameters else {job.id}:
                path = test_access.path_of(route, msgspec.structs.replace(job, id=asked))
                path = path.replace(test_access.DIGEST, DIGEST)
                answer = await http.get(path, params=test_access.query_of(route))
                found[f"{route.path} {asked}"] = answer.text + json.dumps(dict(answer.headers))
        plan = await http.post("/api/v1/plan", json=rigs.submission(roles={"worker": {"count": 1, "cpus": 8}}))
        found["plan"] = plan.text
    return found


async def test_nothing_of_a_job_but_its_name_is_told_to_others(rig: rigs.Rig, private: bool) -> None:
    home = Path(rig.services.about.home)
    job = await planted(rig, home)
    waits = await rig.submit("bob", name="waits", priority=90, roles={"worker": {"count": 1, "cpus": 8}})
    holder = refusals.Holder(job=job.id, name=rig.services.forecaster.names.of(job), amount={"cpus": 8}, owner="ann")
    refusal = refusals.Refusal(code=refusals.Code.NO_CAPACITY, message="it needs 8 CPUs", holders=(holder,))
    await rig.happen(waits.id, events.Refused(refusal=refusal))
    for name in OTHERS:
        told = await everything(rig, name, job, waits)
        assert [where for where, text in told.items() if MARK in text] == []
        if private:
            echoed = {where for where, text in told.items() if NAME in text and not where.endswith(f" {NAME}")}
            assert echoed == set()
            named = {where for where, text in told.items() if job.id in text and not where.endswith(f" {job.id}")}
            assert named == set(), "an id that was not asked for"
    whole = await everything(rig, "ann", job, waits)
    seen = "".join(whole.values())
    planted_words = ("command", "env", "data", "results", "detail", "hang", "stack", "log", "file", "checkpoint")
    assert [word for word in planted_words if f"{MARK}-{word}" not in seen] == [], "a marker that is invisible"


async def test_every_user_sees_the_user_pool_and_name_of_each_holding(rig: rigs.Rig, private: bool) -> None:
    job = await planted(rig, Path(rig.services.about.home))
    waits = await rig.submit("bob", name="waits", roles={"worker": {"count": 1, "cpus": 8}})
    called = rig.services.forecaster.names.of(job)
    assert (called == NAME) is not private
    async with rig.as_user("bob") as http:
        (node,) = (await http.get("/api/v1/nodes")).json()["items"]
        queue = (await http.get("/api/v1/queue")).json()["items"]
        why = (await http.get(f"/api/v1/jobs/{waits.id}/why")).json()
    (holder,) = node["holders"]
    assert (holder["user"], holder["pool"], holder["name"]) == ("ann", "default", called)
    assert [(row["user"], row["pool"], row["name"], row["phase"]) for row in queue] == [
        ("ann", "default", called, "PROCESSING"),
        ("bob", "default", "waits", "QUEUED"),
    ]
    (holder,) = why["refusal"]["holders"]
    assert (holder["owner"], holder["pool"], holder["name"]) == ("ann", "default", called)
    assert called in "".join(why["lines"])
    for who in ("ann", "root"):
        async with rig.as_user(who) as http:
            rows = (await http.get("/api/v1/queue")).json()["items"]
        assert (rows[0]["name"], rows[0]["job"]) == (NAME, job.id), "it is theirs to see"


async def test_a_name_that_is_hidden_is_the_same_for_the_same_name_and_opens_nothing(rig: rigs.Rig) -> None:
    names = privacy.Names(True, b"k" * 32)
    rig.services.forecaster.names = names
    first = await rig.submit("ann", name=NAME)
    called = names.of(first)
    assert called == gangs.gang(first, names).name
    assert called == names.of(msgspec.structs.replace(first, id="j-another"))
    assert called != privacy.Names(True, b"other").of(first)
    async with rig.as_user("bob") as http:
        assert (await http.get(f"/api/v1/jobs/{called}")).status_code == 404


async def test_the_nodes_do_not_tell_the_claims_of_others(rig: rigs.Rig) -> None:
    node = nodes.Node(name="n9", capacity=holdings.Resources(1000), lacks=("secret-claim",))
    await rig.store.write(lambda tx: tx.put_node(node))
    async with rig.as_user("bob") as http:
        told = await http.get("/api/v1/nodes")
    assert "n9" in told.text
    assert "secret-claim" not in told.text
