"""Whether the server lives and is ready, its measurements and version; and bodies that are too large or half."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.api import rig as rigs
from tests.api.agents import test_agents

from oarlock.api import application, routes
from oarlock.api.process import health
from oarlock.spec import errors, events, holdings, plans
from oarlock.spec.cluster import nodes, provisioning


async def test_health_and_readiness(rig: rigs.Rig) -> None:
    async with rig.client() as http:
        assert (await http.get("/healthz")).status_code == 200
        assert (await http.get("/readyz")).json() == {"ready": True, "problems": {}}
        rig.problems["store"] = "the disk is full"
        answer = await http.get("/readyz")
    assert (answer.status_code, answer.json()["problems"]) == (503, {"store": "the disk is full"})


async def test_readiness_names_the_part_that_hangs_fails_or_lacks(
    rig: rigs.Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "PART_S", 0.05)
    monkeypatch.setattr(health, "KEPT_S", 0.0)

    async def hangs() -> None:
        await asyncio.sleep(60)

    look = health.Health(rig.store, hangs, rig.clock, {})
    assert await look() == {"leader": "there is no leader yet", "backend": "no answer within 0.05 s"}
    await rig.store.lead("me", now=rig.clock(), ttl_s=10)
    assert await look() == {"backend": "no answer within 0.05 s"}
    rig.clock.now += 60

    async def full(**_: object) -> None:
        raise errors.Unavailable("the disk is full")

    monkeypatch.setattr(rig.store, "probe", full)
    found = await look()
    assert found["store"] == "the disk is full"
    assert found["leader"] == "the leader has not renewed its term"


async def test_readiness_names_the_folder_that_takes_no_file(
    rig: rigs.Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "KEPT_S", 0.0)
    await rig.store.lead("me", now=rig.clock(), ttl_s=10)
    (tmp_path / "logs").write_text("a file in the folder's place: root, too, can put nothing below it")
    folders = {"blobs": tmp_path / "blobs" / "drafts", "logs": tmp_path / "logs" / "deeper"}
    look = health.Health(rig.store, lambda: rig.store.read(lambda view: view.nodes()), rig.clock, folders)
    assert list(await look()) == ["logs"]
    assert "could not be stored" in (await look())["logs"]
    assert list(folders["blobs"].iterdir()) == [], "a probe leaves nothing behind"


async def test_metrics_count_jobs_by_phase_and_requests_by_template(rig: rigs.Rig) -> None:
    job = await rig.submit("ann")
    async with rig.as_user("ann") as http:
        await http.get(f"/api/v1/jobs/{job.id}")
        await http.get("/api/v1/jobs/none")
    async with rig.client() as http:
        text = (await http.get("/metrics")).text
    assert 'oarlock_jobs{phase="QUEUED"} 1.0' in text
    assert 'oarlock_http_request_seconds_count{method="GET",route="/api/v1/jobs/{job}",status="200"} 1.0' in text
    assert 'route="/api/v1/jobs/{job}",status="404"} 1.0' in text
    assert job.id not in text, "a path in a label would be a time series for every job"


async def test_metrics_count_the_missing_nodes_by_class(rig: rigs.Rig) -> None:
    model = nodes.Node(name="large", capacity=holdings.Resources(8000))
    classes = tuple(nodes.NodeClass(name=name, model=model, most=9) for name in ("large", "small"))
    rules = plans.Rules(node_classes=classes)
    rig.app = application.make(msgspec.structs.replace(rig.services, rules=lambda: rules))
    for count in (2, 3):
        job = await rig.submit("ann")
        need = provisioning.Need(nodes={"large": count}, tasks=())
        request = provisioning.NodeRequest(number=1, need=need, at=rig.clock.now)
        await rig.happen(job.id, events.NodesRequested(request=request))
    async with rig.client() as http:
        text = (await http.get("/metrics")).text
    assert 'oarlock_nodes_missing{node_class="large"} 5.0' in text
    assert 'oarlock_nodes_missing{node_class="small"} 0.0' in text
    await rig.happen(job.id, events.NodesRequested(request=None))
    async with rig.client() as http:
        assert 'oarlock_nodes_missing{node_class="large"} 2.0' in (await http.get("/metrics")).text


async def test_the_time_in_the_queue_is_measured_once_for_each_job(rig: rigs.Rig) -> None:
    job = await rig.submit("ann")
    rig.clock.now += 7
    await rig.launch(job)
    async with rig.as_user("ann") as http:
        for _ in range(100):
            text = (await http.get("/metrics")).text
            if "oarlock_queue_wait_seconds_count 1.0" in text:
                break
            await asyncio.sleep(0.02)
    assert "oarlock_queue_wait_seconds_sum 7.0" in text


async def test_metrics_from_elsewhere_need_an_administrator(rig: rigs.Rig) -> None:
    import httpx

    transport = httpx.ASGITransport(rig.app, client=("10.1.2.3", 5))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
        statuses = [
            (await http.get("/metrics", headers={"Authorization": f"Bearer {token}"} if token else {})).status_code
            for token in ("", rig.tokens["ann"], rig.tokens["root"])
        ]
    assert statuses == [401, 403, 200]


async def test_the_server_names_its_backend_and_the_right_of_the_user(rig: rigs.Rig) -> None:
    async with rig.as_user("ann") as http:
        said = (await http.get("/api/v1/server")).json()
    assert (said["user"], said["right"], said["backend"], said["local"]) == ("ann", "user", "local", True)


async def test_shutdown_is_for_administrators(rig: rigs.Rig) -> None:
    async with rig.as_user("ann") as http:
        assert (await http.post("/api/v1/shutdown")).status_code == 403
    async with rig.as_user("root") as http:
        assert (await http.post("/api/v1/shutdown")).status_code == 202
    assert rig.shutdowns == 1


async def test_numbers_that_json_lacks_are_null(rig: rigs.Rig) -> None:
    job = await rig.submit("ann")
    async with rig.as_user("ann") as http:
        said = (await http.get(f"/api/v1/jobs/{job.id}/metrics")).json()
    series = said["series"][0]
    assert (series["points"][0]["value"], series["low"]) == (None, [None])


async def test_nodes_pools_and_usage_add_up(rig: rigs.Rig) -> None:
    job = await test_agents.gang(rig, 2)
    claims = [
        holdings.Holding(
            job=job.id,
            attempt=1,
            role="worker",
            index=index,
            node="here",
            amount=holdings.Resources(500, 0, 1),
            devices=(index,),
        )
        for index in range(2)
    ]
    await rig.store.write(lambda tx: tx.hold(claims))
    rig.clock.now += 3600
    async with rig.as_user("ann") as http:
        node = (await http.get("/api/v1/nodes")).json()["items"][0]
        pool = (await http.get("/api/v1/pools")).json()["items"][0]
        by_user = (await http.get("/api/v1/usage")).json()["items"]
        lately = {"by": "pool", "since": rig.clock.now - 1800}
        by_pool = (await http.get("/api/v1/usage", params=lately)).json()["items"]
        assert (await http.get("/api/v1/usage", params={"by": "planet"})).status_code == 422
    async with rig.as_user("bob") as http:
        assert (await http.get("/api/v1/usage")).json()["items"] == [], "a running job is its owner's to see"
    async with rig.as_user("root") as http:
        assert (await http.get("/api/v1/usage")).json()["items"] == by_user
    assert node["held"] == {"cpus_milli": 1000, "memory_bytes": 0, "gpus": 2, "gpu_milli": 0}
    assert (pool["pool"]["name"], pool["held"]["gpus"], pool["running"], pool["waiting"]) == ("default", 2, 1, 0)
    assert by_user == [
        {"name": "ann", "device_hours": 2.0, "cpu_hours": 1.0, "cost": 0.0, "useful_hours": 0.0, "idle_hours": 2.0}
    ]
    assert by_pool == [
        {"name": "default", "device_hours": 1.0, "cpu_hours": 0.5, "cost": 0.0, "useful_hours": 0.0, "idle_hours": 1.0}
    ]


async def test_an_unforeseen_error_is_logged_and_the_answer_says_nothing(
    rig: rigs.Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(_: object) -> None:
        raise RuntimeError("the password is hunter2")

    job = await rig.submit("ann")
    async with rig.as_user("ann") as http:
        await http.get("/api/v1/server")
        monkeypatch.setattr(rig.store, "read", broken)
        answer = await http.get(f"/api/v1/jobs/{job.id}")
    assert answer.status_code == 500
    assert "hunter2" not in answer.text
    assert [event for event, _ in rig.reports] == ["request_failed"]


async def test_unknown_paths_and_methods_are_json_errors(rig: rigs.Rig) -> None:
    async with rig.as_user("root") as http:
        for path in ("/", "/api/v1", "/api/v1/jobs/", "/api/v2/jobs", "/api/v1/jobs/a/b/c", "/agent/v1"):
            assert (await http.get(path)).json()["error"]["code"] == "not_found", path
        answer = await http.patch("/api/v1/jobs")
        assert (answer.status_code, answer.headers["allow"]) == (405, "POST, GET")
        for name in ("a" * 5000, "%00", "a%00b", "%ff%fe", "..%2f..%2fetc"):
            assert (await http.get(f"/api/v1/jobs/{name}")).status_code in (404, 422), name
        assert (await http.get("/api/v1/jobs", params={"name": "a\0"})).status_code == 422
        assert (await http.get("/api/v1/jobs?limit=1&limit=2")).status_code == 422
        assert (await http.get("/api/v1/jobs?" + "a=1&" * 10_000)).status_code == 413
        assert (await http.get("/api/v1/jobs", params={"limit": 10**40})).status_code == 422


async def test_snapshots_are_stored_under_their_own_digest(rig: rigs.Rig) -> None:
    data = b"snapshot" * 1000
    name = "sha256:" + hashlib.sha256(data).hexdigest()
    async with rig.as_user("ann") as http:
        assert (await http.head(f"/api/v1/blobs/{name}")).status_code == 404
        assert (await http.put(f"/api/v1/blobs/{name}", content=data[:-1])).status_code == 422
        assert (await http.head(f"/api/v1/blobs/{name}")).status_code == 404, "nothing half-made"
        assert (await http.put(f"/api/v1/blobs/{name}", content=data)).json()["bytes"] == len(data)
        assert (await http.head(f"/api/v1/blobs/{name}")).status_code == 200
        for bad in ("x", "sha256:" + "0" * 63, "sha256:" + "A" * 64, "md5:" + "0" * 64, "sha256:" + "0" * 65):
            assert (await http.put(f"/api/v1/blobs/{bad}", content=b"")).status_code == 422, bad
        gone = {"spec": {"command": "true"}, "snapshot": "sha256:" + "0" * 64}
        assert (await http.post("/api/v1/jobs", json=gone)).json()["error"]["path"] == "snapshot"


async def test_a_body_that_stands_still_or_is_cut_off_ends(rig: rigs.Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "BODY_PAUSE_S", 0.05)
    name = "sha256:" + hashlib.sha256(b"whole").hexdigest()
    for path, method in (("/api/v1/jobs", "POST"), (f"/api/v1/blobs/{name}", "PUT")):
        for ends in (True, False):
            sent: list[Any] = []
            answers = iter([{"type": "http.request", "body": b"{", "more_body": True}])

            async def receive(ends: bool = ends, answers: Any = answers) -> Any:
                for message in answers:
                    return message
                if ends:
                    return {"type": "http.disconnect"}
                return await asyncio.sleep(60)

            async def send(message: Any, sent: list[Any] = sent) -> None:
                sent.append(message)

            headers = [(b"host", b"127.0.0.1"), (b"authorization", f"Bearer {rig.tokens['ann']}".encode())]
            scope = {
                "type": "http",
                "asgi": {"version": "3.0"},
                "method": method,
                "path": path,
                "query_string": b"",
                "headers": headers,
                "client": ("127.0.0.1", 1),
            }
            async with asyncio.timeout(240):
                await rig.app(scope, receive, send)  # type: ignore[arg-type]
            assert sent[0]["status"] == 408
    async with rig.as_user("ann") as http:
        assert (await http.head(f"/api/v1/blobs/{name}")).status_code == 404
