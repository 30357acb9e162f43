"""Jobs over REST: submitted once, found again, wanted otherwise, forgotten."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.api import rig as rigs

from oarlock.api.jobs import execution, outlook
from oarlock.api.security import secretfiles
from oarlock.spec import phases


async def test_a_job_is_stored_and_found_by_id_and_name(rig: rigs.Rig) -> None:
    job = await rig.submit(name="digits", command="python train.py")
    async with rig.as_user("ann") as http:
        for place in (job.id, "digits"):
            found = (await http.get(f"/api/v1/jobs/{place}")).json()
            assert (found["id"], found["owner"], found["phase"], found["version"]) == (job.id, "ann", "QUEUED", 1)
        listed = (await http.get("/api/v1/jobs")).json()
    assert [item["id"] for item in listed["items"]] == [job.id]


async def test_one_idempotency_key_makes_one_job(rig: rigs.Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    body = rigs.submission()
    read = rig.store.read

    async def slow(look: Any) -> Any:
        """All have looked before the first has written."""
        found = await read(look)
        await asyncio.sleep(0.01)
        return found

    monkeypatch.setattr(rig.store, "read", slow)
    async with rig.as_user("ann") as http:
        answers = await asyncio.gather(
            *(http.post("/api/v1/jobs", json=body, headers={"Idempotency-Key": "k1"}) for _ in range(10))
        )
        other = await http.post("/api/v1/jobs", json=rigs.submission(priority=1), headers={"Idempotency-Key": "k1"})
        listed = (await http.get("/api/v1/jobs")).json()["items"]
    assert sorted(answer.status_code for answer in answers) == [200] * 9 + [201]
    assert len({answer.json()["id"] for answer in answers}) == len(listed) == 1
    assert (other.status_code, other.json()["error"]["code"]) == (409, "conflict")
    async with rig.as_user("bob") as http:  # a key is its owner's
        assert (await http.post("/api/v1/jobs", json=body, headers={"Idempotency-Key": "k1"})).status_code == 201


async def test_a_key_of_a_removed_job_makes_no_second_one(rig: rigs.Rig) -> None:
    """The first answer was lost, another user removed the job, and the client asks once more."""
    body = rigs.submission()
    async with rig.as_user("ann") as http:
        made = (await http.post("/api/v1/jobs", json=body, headers={"Idempotency-Key": "k"})).json()["id"]
        await http.put(f"/api/v1/jobs/{made}/intent", json={"intent": "cancel"})
        assert (await http.delete(f"/api/v1/jobs/{made}")).status_code == 204
        for _ in range(2):
            again = await http.post("/api/v1/jobs", json=body, headers={"Idempotency-Key": "k"})
            assert (again.status_code, again.json()["error"]["code"]) == (410, "gone")
            assert made in again.json()["error"]["message"]
        other = await http.post("/api/v1/jobs", json=rigs.submission(priority=1), headers={"Idempotency-Key": "k"})
        assert other.status_code == 409
        assert (await http.get("/api/v1/jobs")).json()["items"] == []
        await rig.store.write(lambda tx: tx.forget_keys(rig.clock() + 1))
        assert (await http.post("/api/v1/jobs", json=body, headers={"Idempotency-Key": "k"})).status_code == 201


async def test_a_repeated_submission_is_answered_even_if_it_would_be_refused_by_now(rig: rigs.Rig) -> None:
    rig.secrets.values["hub-token"] = "x"
    body = rigs.submission(secrets=[{"name": "hub-token"}])
    async with rig.as_user("ann") as http:
        first = await http.post("/api/v1/jobs", json=body, headers={"Idempotency-Key": "k"})
        rig.secrets.values.clear()
        again = await http.post("/api/v1/jobs", json=body, headers={"Idempotency-Key": "k"})
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json()["id"] == again.json()["id"]


async def test_a_name_of_an_active_job_is_taken_and_the_way_out_is_named(rig: rigs.Rig) -> None:
    await rig.submit(name="digits")
    async with rig.as_user("ann") as http:
        answer = await http.post("/api/v1/jobs", json=rigs.submission(name="digits"))
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["path"]) == (409, "name_taken", "name")
    assert "oarlock cancel digits" in error["hint"]
    await rig.submit("bob", name="digits")  # names are their owner's


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("python -u my_train.py --lr 1", "my-train"),
        ("mpirun -n 2 hostname", "hostname"),
        ("mpirun -n 2", "mpirun"),
        (["torchrun", "--nproc", "2", "/x/Fit.py"], "fit"),
        (["python", "-c", "import six; print(six.__version__)"], "python"),
        (["sh", "-c", "echo x > out.txt"], "sh"),
        ("python -m pkg.fit", "pkg-fit"),
        ("true", "true"),
        ("LR=1 ./run.sh", "run"),
        ("é", "job"),
        ("a" * 100, "a" * 40),
    ],
)
async def test_a_name_is_made_from_the_script(rig: rigs.Rig, command: str, name: str) -> None:
    first, second = await rig.submit(command=command), await rig.submit(command=command)
    assert first.name == name, "so that `oarlock logs train` means it"
    assert second.name.startswith(name + "-"), "while the first is not over"
    assert len(second.name) <= 63
    assert (await rig.submit("bob", command=command)).name == name, "names are their owner's"


async def test_a_halted_job_keeps_its_name_and_one_that_is_over_gives_it_away(rig: rigs.Rig) -> None:
    job = await rig.submit(command="python train.py")
    async with rig.as_user("ann") as http:
        await http.put(f"/api/v1/jobs/{job.id}/intent", json={"intent": "halt"})
        assert (await rig.submit(command="python train.py")).name != "train", "it could not be resumed"
        await http.put(f"/api/v1/jobs/{job.id}/intent", json={"intent": "cancel"})
    assert (await rig.submit(command="python train.py")).name == "train"


async def test_a_job_that_could_never_run_is_refused_with_the_numbers(rig: rigs.Rig) -> None:
    async with rig.as_user("ann") as http:
        answer = await http.post("/api/v1/jobs", json=rigs.submission(roles={"worker": {"count": 2, "gpus": 2}}))
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (422, "impossible")
    assert error["detail"]["code"] == "never_fits"
    assert error["detail"]["needed"]["gpus"] == 4.0
    assert (await rig.store.read(lambda view: view.count())) == {}, "nothing half-made"


@pytest.mark.parametrize(
    ("spec", "status", "code", "path"),
    [
        ({"image": "x"}, 409, "unsupported", "image"),
        ({"volumes": [{"claim": "c", "mount": "/d"}]}, 409, "unsupported", "volumes[0]"),
        ({"strategy": {"kind": "ps"}}, 422, "invalid_input", "strategy.kind"),
        ({"strategy": {"kind": "auto"}, "roles": {"ps": {}}}, 422, "invalid_input", "strategy.kind"),
        ({"topology": {"same": "rack"}}, 409, "unsupported", "topology.same"),
        ({"size": "3-v100"}, 422, "invalid_input", "size"),
        ({"roles": {"worker": {"count": 2, "min": 1}}}, 409, "unsupported", "roles.worker.min"),
        ({"roles": {"worker": {"gpus": 0.5}}}, 409, "unsupported", "roles.worker.gpus"),
        ({"pool": "gold"}, 422, "invalid_input", "pool"),
        ({"secrets": [{"name": "none"}]}, 422, "invalid_input", "secrets[0].name"),
        ({"comand": "x"}, 422, "unknown_field", "comand"),
        ({"roles": {"worker": {"coun": 1}}}, 422, "unknown_field", "roles.worker.coun"),
        ({"roles": {"worker": {"count": 0}}}, 422, "invalid_input", "roles.worker.count"),
        ({"roles": {"worker": {"count": 1000000}}}, 422, "invalid_input", "roles"),
        ({"roles": {"worker": {"memory": "-1Gi"}}}, 422, "invalid_input", "roles.worker.memory"),
        ({"roles": {"worker": {"cpus": 1e300}}}, 422, "invalid_input", "roles.worker.cpus"),
        ({"name": "a\0b"}, 422, "invalid_input", "name"),
        ({"name": "a" * 1_000_000}, 422, "invalid_input", "name"),
        ({"command": "a\0b"}, 422, "invalid_input", "command"),
        ({"priority": 10**30}, 422, "invalid_input", "priority"),
    ],
)
async def test_bad_input_is_named_by_its_path(rig: rigs.Rig, spec: dict, status: int, code: str, path: str) -> None:
    async with rig.as_user("ann") as http:
        answer = await http.post("/api/v1/jobs", json={"spec": {"command": "true", **spec}})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["path"]) == (status, code, path), error
    assert error["hint"]
    assert (await rig.store.read(lambda view: view.count())) == {}, "nothing half-made"


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 422),
        (b"{", 422),
        (b'{"spec":{"command":"a\xff"}}', 422),
        (b'{"spec":{"command":"a\\ud800"}}', 422),
        (b"[" * 100_000, 422),
        (b'{"spec":{"command":"a"},"x":' + b'{"a":' * 50_000, 422),
        (b"x" * ((1 << 20) + 1), 413),
        (b'{"spec":{"command":"a","priority":NaN}}', 422),
        (b'{"spec":{"command":"a","priority":1e400}}', 422),
        (b"null", 422),
    ],
)
async def test_a_malformed_body_is_refused(rig: rigs.Rig, body: bytes, status: int) -> None:
    async with rig.as_user("ann") as http:
        for path in ("/api/v1/jobs", "/api/v1/plan"):
            answer = await http.post(path, content=body)
            assert answer.status_code == status, answer.text
            assert answer.json()["error"]["message"]


async def test_a_body_without_a_length_is_limited_as_it_comes(rig: rigs.Rig) -> None:
    taken = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal taken
        for _ in range(64):
            taken += 1
            yield b" " * (1 << 20)

    async with rig.as_user("ann") as http:
        assert (await http.post("/api/v1/jobs", content=endless())).status_code == 413


async def test_plan_answers_now_later_or_never_and_stores_nothing(rig: rigs.Rig) -> None:
    async with rig.as_user("vera") as http:
        now = (await http.post("/api/v1/plan", json=rigs.submission())).json()
        never = (await http.post("/api/v1/plan", json=rigs.submission(roles={"worker": {"gpus": 3}}))).json()
    assert (now["when"], never["when"]) == ("now", "never")
    assert never["refusal"]["total"]
    assert (await rig.store.read(lambda view: view.count())) == {}


async def test_halt_resume_cancel_and_forget(rig: rigs.Rig) -> None:
    job = await rig.submit(name="digits")
    place = Path(rig.checkpoints.own) / job.id
    place.mkdir(parents=True)
    async with rig.as_user("ann") as http:
        put = f"/api/v1/jobs/{job.id}/intent"
        halted = (await http.put(put, json={"intent": "halt", "reason": "lunch"})).json()
        assert halted["phase"] == "HALTED"
        assert (await http.delete(f"/api/v1/jobs/{job.id}")).json()["error"]["code"] == "conflict"
        again = (await http.put(put, json={"intent": "halt"})).json()
        assert again["version"] == halted["version"], "wanting the same again writes nothing"
        assert (await http.put(put, json={"intent": "run"})).json()["phase"] == "QUEUED"
        assert (await http.put(put, json={"intent": "preempt"})).status_code == 422
        assert (await http.put(put, json={"intent": "cancel"})).json()["phase"] == "CANCELED"
        assert (await http.put(put, json={"intent": "cancel"})).status_code == 200
        again = (await http.put(put, json={"intent": "run"})).json()["error"]
        assert (again["code"], "Submit it again" in again["hint"]) == ("conflict", True)
        stopped = (await http.put(put, json={"intent": "halt"})).json()["error"]
        assert (stopped["code"], stopped["hint"]) == ("conflict", f"It no longer runs. See it: oarlock show {job.id}")
        events = (await http.get(f"/api/v1/jobs/{job.id}/events")).json()["items"]
        assert [event["kind"] for event in events if event["kind"] != "phase"] == ["submitted"] + ["intended"] * 3
        some = await http.get(f"/api/v1/jobs/{job.id}/events", params={"kind": ["submitted", "phase"]})
        assert some.json()["items"] == [event for event in events if event["kind"] in ("submitted", "phase")] != []
        many = await http.get(f"/api/v1/jobs/{job.id}/events", params={"kind": [f"kind-{n}" for n in range(21)]})
        assert (many.status_code, many.json()["error"]["path"]) == (422, "kind")
        assert (await http.delete(f"/api/v1/jobs/{job.id}")).status_code == 204
        assert (await http.get(f"/api/v1/jobs/{job.id}")).status_code == 404
    assert not place.exists(), "its checkpoints in the server's own place go with it"


async def test_a_job_that_could_not_be_forgotten_can_be_asked_for_again(
    rig: rigs.Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = await rig.submit(name="digits")
    async with rig.as_user("ann") as http:
        await http.put(f"/api/v1/jobs/{job.id}/intent", json={"intent": "cancel"})
        with monkeypatch.context() as patched:

            async def broken(_: str) -> None:
                raise OSError("the disk has gone")

            patched.setattr(rig.results, "forget", broken)
            assert (await http.delete("/api/v1/jobs/digits")).status_code == 500
        assert (await http.get(f"/api/v1/jobs/{job.id}")).status_code == 200, "its record stays while its files do"
        assert (await http.delete("/api/v1/jobs/digits")).status_code == 204
        assert (await http.get(f"/api/v1/jobs/{job.id}")).status_code == 404


async def test_the_end_of_a_job_s_record_is_told_to_its_owner_alone(rig: rigs.Rig) -> None:
    job = await rig.submit("ann", name="digits")
    for name, told in (("ann", ["removed"]), ("bob", [])):
        async with rig.as_user(name) as http:
            if name == "ann":
                await http.put(f"/api/v1/jobs/{job.id}/intent", json={"intent": "cancel"})
                assert (await http.delete(f"/api/v1/jobs/{job.id}")).status_code == 204
            items = (await http.get("/api/v1/events")).json()["items"]
            assert [item["kind"] for item in items if item["job"] == job.id] == told, name


async def test_pages_go_through_all_jobs_newest_first(rig: rigs.Rig) -> None:
    made = []
    for _ in range(5):
        rig.clock.now += 1
        made.append((await rig.submit()).id)
    seen, after = [], ""
    async with rig.as_user("ann") as http:
        while after is not None:
            page = (await http.get("/api/v1/jobs", params={"limit": 2, "after": after})).json()
            seen += [item["id"] for item in page["items"]]
            after = page["next"]
        assert (await http.get("/api/v1/jobs", params={"phase": ["FAILED", "CANCELED"]})).json()["items"] == []
        assert (await http.get("/api/v1/jobs", params={"phase": "QUEUED"})).json()["items"]
        bad = (await http.get("/api/v1/jobs", params={"phas": "QUEUED"})).json()["error"]
    assert seen == made[::-1]
    assert bad["code"] == "unknown_field"
    assert "phase" in bad["hint"]


async def test_why_says_it_in_three_lines(rig: rigs.Rig) -> None:
    job = await rig.submit(name="digits")
    async with rig.as_user("ann") as http:
        queued = (await http.get("/api/v1/jobs/digits/why")).json()
        await rig.launch(job)
        await rig.end(job.id, code=3)
        failed = (await http.get("/api/v1/jobs/digits/why")).json()
    assert queued["forecast"]["when"] == "now"
    assert len(queued["lines"]) == 3
    assert len(failed["lines"]) == 3
    assert all(failed["lines"])


async def test_why_a_frozen_job_still_holds_its_place(rig: rigs.Rig) -> None:
    job = await rig.submit(name="digits", freeze="30m")
    await rig.launch(job)
    found = await rig.store.read(lambda view: view.job(job.id))
    assert found is not None
    live = msgspec.structs.replace(found.attempts[-1], frozen_until=1000.0)
    frozen = msgspec.structs.replace(found, attempts=(live,), reason="worker-0 exited with code 3")
    assert outlook.explain(frozen, None, 880.0, "digits") == (
        "digits has failed, and its place is kept for 2 min more.",
        "worker-0 exited with code 3",
        "Look inside: oarlock exec digits -- sh. Then free it: oarlock cancel digits",
    )


@pytest.mark.parametrize("place", ["local:///etc/passwd", "reference::/x", "data", "ftp://host/x"])
async def test_a_place_of_an_unknown_kind_is_refused_at_once(rig: rigs.Rig, place: str) -> None:
    asked = {"data[0].source": {"data": [{"source": place, "mount": "x"}]}, "results": {"results": place}}
    async with rig.as_user("ann") as http:
        for path, fields in asked.items():
            refused = await http.post("/api/v1/jobs", json=rigs.submission(**fields))
            assert (refused.status_code, refused.json()["error"]["path"]) == (422, path), refused.text


async def test_no_job_reads_from_the_servers_home_or_stores_there(rig: rigs.Rig, tmp_path: Path) -> None:
    """Nor by a link, nor by `..`, nor by a directory that holds the home."""
    home = Path(rig.services.about.home)
    home.mkdir(exist_ok=True)
    (home / "token").write_text("topsecret")
    (tmp_path / "link").symlink_to(home / "token")
    (tmp_path / "folder").symlink_to(home)
    data = [f"file://{home}/token", str(home / "token"), f"{home}/results/../token", str(home), str(home.parent)]
    data += [str(tmp_path / "link"), f"{tmp_path}/folder/token", f"file://{home}/%74oken", f"FILE:{home}/token"]
    asked = [("data[0].source", {"data": [{"source": source, "mount": "data/it"}]}) for source in data]
    stored = (str(home), f"{home}/secrets", f"file://{home}/results/j-other", f"{tmp_path}/folder/tasks")
    asked += [("results", {"results": place}) for place in stored]
    asked += [("checkpoint.to", {"checkpoint": {"to": place}}) for place in stored]
    async with rig.as_user("ann") as http:
        for path, spec in asked:
            refused = await http.post("/api/v1/jobs", json=rigs.submission(**spec))
            error = refused.json()["error"]
            assert (refused.status_code, error["path"]) == (422, path), (spec, error)
            assert "home of the server" in error["message"]
        for spec in ({"results": f"{tmp_path}/out"}, {"checkpoint": {"to": f"{home}/checkpoints"}}):
            assert (await http.post("/api/v1/jobs", json=rigs.submission(**spec))).status_code == 201


async def test_a_secret_that_others_can_read_is_refused_and_not_waited_for(rig: rigs.Rig, tmp_path: Path) -> None:
    place = tmp_path / "hub-token"
    place.write_text("topsecret")
    place.chmod(0o644)
    rig.secrets.read = secretfiles.SecretFiles(tmp_path).read  # type: ignore[method-assign] # as the server has it
    body = rigs.submission(secrets=[{"name": "hub-token"}])
    async with rig.as_user("root") as http:
        refused = await http.post("/api/v1/jobs", json=body)
        place.chmod(0o600)
        taken = await http.post("/api/v1/jobs", json=body)
    error = refused.json()["error"]
    assert (refused.status_code, error["path"], error["hint"]) == (422, "secrets[0].name", f"chmod 600 {place}")
    assert taken.status_code == 201


async def test_exec_into_a_task_that_does_not_run_names_the_next_step(rig: rigs.Rig) -> None:
    job = await rig.submit(name="digits")
    assert execution.instead(job, "digits") == "It waits. See why: oarlock why digits"
    halted = msgspec.structs.replace(job, phase=phases.Phase.HALTED)
    assert execution.instead(halted, "digits") == "Resume it: oarlock resume digits"
    failed = msgspec.structs.replace(job, phase=phases.Phase.FAILED)
    assert "--freeze 30m" in execution.instead(failed, "digits")
    for asked, said in (("10m", "10m"), (90, "90s")):
        kept = msgspec.structs.replace(failed, spec=msgspec.structs.replace(job.spec, freeze=asked))
        told = execution.instead(kept, "digits")
        assert told == f"Its place was kept for {said} after the failure, or until it was canceled."


async def test_jobs_in_short_are_filtered_sorted_and_counted(rig: rigs.Rig) -> None:
    for name in ("beta", "alpha", "gamma"):
        rig.clock.now += 1
        job = await rig.submit("ann", name=name, command=["python", f"{name}.py"])
    await rig.launch(job)
    async with rig.as_user("ann") as http:
        page = (await http.get("/api/v1/summaries?sort=name&ascending=true&limit=2")).json()
        assert [one["name"] for one in page["items"]] == ["alpha", "beta"]
        assert (page["phases"], page["now"]) == ({"QUEUED": 2, "DEPLOYING": 1}, rig.clock.now)
        rest = (await http.get(f"/api/v1/summaries?sort=name&ascending=true&limit=2&after={page['next']}")).json()
        assert [(one["name"], one["tasks"], one["places"][0]["node"]) for one in rest["items"]] == [
            ("gamma", {"worker": 1}, "here")
        ]
        found = (await http.get("/api/v1/summaries?text=ALPHA.py&phase=QUEUED&phase=FAILED")).json()
        assert [one["command"] for one in found["items"]] == ["python alpha.py"]
        assert (await http.get("/api/v1/summaries?sort=body")).status_code == 422
