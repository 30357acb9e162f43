"""Simulations over REST: the record's jobs as a workload, the job of a simulation, and its outcome."""

from __future__ import annotations

import asyncio
import json
import tarfile
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.api import rig as rigs
from tests.api.jobs import test_outlook

from oarlock.api.jobs import capabilities, recordedjobs, simulations
from oarlock.backends.kubernetes.pods import rendering
from oarlock.cli import main
from oarlock.simulator import recorder
from oarlock.spec import holdings, jobs, phases
from oarlock.spec.access import privacy
from oarlock.spec.cluster import nodes, pools
from oarlock.spec.input import validation
from oarlock.spec.simulator import simulations as nouns

SMALL = "nodes: 1x2\njobs: [{name: a, count: 3, lasts: 10m, gpus: 1}]\n"


async def ran(rig: rigs.Rig, name: str, seconds: float, who: str = "ann", **spec: Any) -> jobs.Job:
    """A job that was at work for so long, less the 5 seconds of its end."""
    job = await test_outlook.fill(rig, name, 2, who, **spec)
    rig.clock.now += seconds - 5
    ended = await rig.end(job.id)
    await rig.store.write(lambda tx: tx.release(job.id, 1))
    return ended


async def recorded(rig: rigs.Rig, who: str = "bob", status: int = 200, **query: Any) -> dict[str, Any]:
    async with rig.as_user(who) as http:
        answer = await http.get("/api/v1/workloads/recorded", params=query)
    assert answer.status_code == status, answer.text
    return refused_or_whole(answer.json())


async def send(rig: rigs.Rig, who: str = "ann", status: int = 201, **asked: Any) -> dict[str, Any]:
    async with rig.as_user(who) as http:
        answer = await http.post("/api/v1/simulations", json=asked)
    assert answer.status_code == status, answer.text
    return refused_or_whole(answer.json())


async def told(rig: rigs.Rig, job: str, who: str = "ann", status: int = 200) -> dict[str, Any]:
    async with rig.as_user(who) as http:
        answer = await http.get(f"/api/v1/simulations/{job}")
    assert answer.status_code == status, answer.text
    return refused_or_whole(answer.json())


def refused_or_whole(answer: dict[str, Any]) -> dict[str, Any]:
    return answer.get("error", answer)


async def scenario(rig: rigs.Rig, job: dict[str, Any]) -> dict[str, Any]:
    stored = await rig.store.read(lambda view: view.job(job["id"]))
    assert stored is not None
    assert stored.snapshot is not None
    with tarfile.open(rig.blobs.path(stored.snapshot)) as archive:
        file = archive.extractfile(simulations.SCENARIO)
        assert file is not None
        return validation.fields(file.read().decode())


async def test_the_record_is_a_workload_that_the_command_line_simulates(
    rig: rigs.Rig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    await ran(rig, "first", 600, roles={"worker": {"gpus": 2, "gpu_type": "h100"}})
    rig.clock.now += 95
    await ran(rig, "second", 300, "bob")
    await rig.submit("ann", name="waits")
    found = await recorded(rig)
    assert [(one["name"], one["owner"], one["arrivals"]["start"], one["lasts"]) for one in found["jobs"]] == [
        ("1-first", "ann", 0.0, 595.0),
        ("2-second", "bob", 695.0, 295.0),
    ]
    assert found["jobs"][0]["spec"]["roles"] == {"worker": {"count": 1, "cpus": 1, "gpus": 2, "gpu_type": "h100"}}
    assert [(one["count"], one["gpus"], one["gpu_type"], one["cpus"]) for one in found["nodes"]] == [(1, 2, "h100", 8)]
    file = tmp_path / "recorded.yaml"
    await asyncio.to_thread(file.write_text, json.dumps(found))
    words = ["simulate", str(file), "--policy", "fifo", "--policy", "las", "--json"]
    assert await asyncio.to_thread(main.main, words) == 0
    assert [one["figures"]["completed"] for one in json.loads(capsys.readouterr().out)] == [2, 2]


async def test_the_time_bounds_the_submissions(rig: rigs.Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    begin = rig.clock.now
    await ran(rig, "early", 60)
    await ran(rig, "late", 60)
    assert [one["name"] for one in (await recorded(rig, since=begin + 30))["jobs"]] == ["1-late"]
    assert [one["name"] for one in (await recorded(rig, until=begin + 30))["jobs"]] == ["1-early"]
    rig.clock.now += recordedjobs.WEEK_S
    assert "has run" in (await recorded(rig, status=422))["message"], "a week is told by default"
    assert len((await recorded(rig, since=begin))["jobs"]) == 2
    monkeypatch.setattr(nouns, "MOST_RECORDED", 1)
    assert "More than 1 jobs" in (await recorded(rig, since=begin, status=422))["message"]


async def test_a_running_job_counts_with_its_time_until_now(rig: rigs.Rig) -> None:
    await test_outlook.fill(rig, "runs", 1)
    rig.clock.now += 42
    assert [one["lasts"] for one in (await recorded(rig))["jobs"]] == [42.0]


async def test_names_of_others_are_hidden_where_names_are_private(rig: rigs.Rig) -> None:
    secret = {"command": "python hidden-command.py", "env": {"HIDDEN": "hidden-value"}, "image": "hidden-image"}
    await ran(rig, "secret-run", 60, "ann", **{k: v for k, v in secret.items() if k != "image"})
    assert "1-secret-run" in [one["name"] for one in (await recorded(rig, "bob"))["jobs"]]
    assert "hidden" not in json.dumps(await recorded(rig, "bob"))
    rig.services.forecaster.names = privacy.Names(True, b"k" * 32)
    found = await recorded(rig, "bob")
    assert "secret" not in json.dumps(found)
    assert found["jobs"][0]["owner"] == "ann"
    validation.decode({"command": "x", "name": found["jobs"][0]["name"]})
    assert [one["name"] for one in (await recorded(rig, "ann"))["jobs"]] == ["1-secret-run"]
    job = await send(rig, "bob", recorded={})
    assert "secret" not in json.dumps(await scenario(rig, job))


async def test_pools_that_are_gone_become_the_default_one(rig: rigs.Rig) -> None:
    for name in ("kept", "gone"):
        await rig.store.write(lambda tx, name=name: tx.put_pool(pools.Pool(name=name, policy="las")))
        await ran(rig, f"in-{name}", 60, pool=name)
    await rig.store.write(lambda tx: tx.remove_pool("gone"))
    found = await recorded(rig)
    assert [one["spec"].get("pool") for one in found["jobs"]] == ["kept", None]
    assert [(one["name"], one["policy"]) for one in found["pools"]] == [("kept", None)]


def test_equal_nodes_are_counted_together() -> None:
    gpus = tuple(nodes.Device(index=index, type="a b", memory_bytes=5) for index in range(2))
    capacity = holdings.Resources(4000, 1 << 30, 2)
    machines = [nodes.Node(name=name, capacity=capacity, devices=gpus) for name in "ab"]
    machines.append(nodes.Node(name="c", capacity=holdings.Resources(1500, 1 << 20, 0)))
    found = recordedjobs.classes(machines)
    assert [(one.count, one.gpus, one.gpu_type, one.cpus) for one in found] == [(2, 2, "a-b", 4.0), (1, 0, "gpu", 1.5)]


async def test_a_simulation_is_a_plain_job_and_one_of_a_user_runs_at_a_time(rig: rigs.Rig) -> None:
    asked = {"text": SMALL, "policies": ["las", "fifo", "las"], "seed": 7, "faults": {"node_mtbf_s": "3d"}}
    job = await send(rig, **asked)
    assert (job["name"], job["owner"], job["spec"]["priority"]) == ("simulation", "ann", 0)
    assert job["spec"]["command"][-3:] == ["scenario.yaml", "las", "fifo"]
    made = await scenario(rig, job)
    assert (made["seed"], made["nodes"], made["faults"]) == (7, "1x2", {"node_mtbf_s": "3d"})
    again = await send(rig, workload="small-first", status=409)
    assert again["message"] == "A simulation of yours is under way."
    other = await send(rig, "bob", workload="small-first", nodes="4x2")
    assert (await scenario(rig, other))["nodes"] == "4x2"
    await send(rig, "vera", workload="small-first", status=403)


async def test_two_requests_at_once_make_one_simulation(rig: rigs.Rig) -> None:
    async def one() -> int:
        async with rig.as_user("ann") as http:
            return (await http.post("/api/v1/simulations", json={"workload": "small-first"})).status_code

    assert sorted(await asyncio.gather(one(), one(), one())) == [201, 409, 409]


@pytest.mark.parametrize(
    ("asked", "status", "said"),
    [
        ({}, 422, "needs one workload"),
        ({"workload": "small-first", "text": SMALL}, 422, "needs one workload"),
        ({"workload": "none"}, 422, "no such workload"),
        ({"workload": "small-first", "policies": ["no"]}, 422, "there is no policy"),
        ({"text": "jobs: ["}, 422, "not valid YAML"),
        ({"text": "recorded: {file: /etc/passwd}"}, 422, "cannot name files"),
        ({"text": "jobs: []\nfaults: 3\n", "faults": {"node_mtbf_s": "3d"}}, 422, "not a mapping"),
        ({"text": "a: b\n" * 100_000}, 413, "characters"),
        ({"text": "a: b"}, 422, "unknown field 'a'"),
        ({"text": "jobs:\n- {count: -1}"}, 422, "-1 jobs"),
        ({"text": "jobs:\n- {spec: {priority: high}}"}, 422, "expected a whole number"),
        ({"text": "a,b\n1,2\n"}, 422, "column"),
        ({"workload": "small-first", "nodes": "many"}, 422, "many"),
        ({"workload": "small-first", "faults": {"node_mtbf_s": "often"}}, 422, "often"),
        ({"recorded": {}}, 422, "has run"),
    ],
)
async def test_a_refused_simulation_starts_nothing(
    rig: rigs.Rig, asked: dict[str, Any], status: int, said: str
) -> None:
    assert said in (await send(rig, status=status, **asked))["message"]
    assert await rig.store.read(lambda view: view.active()) == []


async def test_a_server_without_the_capability_runs_no_simulations(rig: rigs.Rig) -> None:
    about = msgspec.structs.replace(rig.services.about, capabilities=("sizes",))
    rig.services = msgspec.structs.replace(rig.services, about=about)
    rig.app = simulations_app(rig)
    async with rig.as_user("ann") as http:
        assert (await http.get("/api/v1/workloads")).json()["offered"] is False
    assert (await send(rig, workload="small-first", status=409))["code"] == "unsupported"


async def test_in_pods_a_simulation_has_the_image_of_the_server(rig: rigs.Rig) -> None:
    words = capabilities.kubernetes({"torch": "registry.example/torch:2"})
    about = msgspec.structs.replace(rig.services.about, backend="kubernetes", capabilities=tuple(words))
    rig.services = msgspec.structs.replace(rig.services, about=about, image="registry.example/oarlock:1")
    rig.app = simulations_app(rig)
    spec = (await send(rig, workload="small-first", policies=["fifo"]))["spec"]
    assert spec["image"] == "registry.example/oarlock:1"
    assert spec["command"] == [rendering.PYTHON, "-I", "-m", "oarlock.simulator.recorder", "scenario.yaml", "fifo"]
    assert (spec["framework"], spec["priority"], spec["roles"]["worker"]["cpus"]) == ("plain", 0, 1)
    refused = await send(rig, "bob", text="jobs:\n- {count: -1}", status=422)
    assert "-1 jobs" in refused["message"], "this process checks it, wherever it would run"


def simulations_app(rig: rigs.Rig) -> Any:
    from oarlock.api import application

    return application.make(rig.services)


async def test_progress_and_outcome_are_told_to_the_owner_alone(rig: rigs.Rig, tmp_path: Path) -> None:
    job = await send(rig, text=SMALL, policies=["fifo"])
    assert await told(rig, job["id"]) == {
        "job": job["id"],
        "phase": "QUEUED",
        "reason": job["reason"],
        "progress": "",
        "outcome": None,
    }
    await told(rig, job["id"], "bob", 404)
    other = await rig.submit("ann", name="other")
    assert "not a simulation" in (await told(rig, other.id, status=404))["message"]
    stored = await rig.store.read(lambda view: view.job(job["id"]))
    assert stored is not None
    started = await rig.launch(stored)
    assert started.live is not None
    key = started.live.tasks[0].key(started.id, 1)
    await rig.logs.append(key, "stdout.0", 0, b"Simulating fifo: 3 jobs\n", at=rig.clock.now)
    assert (await told(rig, job["id"]))["progress"] == "Simulating fifo: 3 jobs"
    await rig.end(job["id"])
    await finish(rig, job["id"])
    assert (await told(rig, job["id"]))["outcome"] is None
    file = tmp_path / "scenario.yaml"
    await asyncio.to_thread(file.write_text, SMALL)
    found = await asyncio.to_thread(recorder.record, file, ("fifo",))
    content = msgspec.json.encode(found)
    place = Path(rig.services.about.home) / "files" / job["id"] / "worker-0" / "attempt-1"
    assert (await outcome(rig, job["id"], place, content))["reports"] == json.loads(content)["reports"]
    for damaged in (b"{}", content[:-1], b"[" * 100_000):
        assert await outcome(rig, job["id"], place, damaged) is None


async def finish(rig: rigs.Rig, job_id: str) -> None:
    stored = await rig.store.read(lambda view: view.job(job_id))
    assert stored is not None
    rig.store._state._jobs[job_id] = msgspec.structs.replace(stored, phase=phases.Phase.COMPLETED)


async def outcome(rig: rigs.Rig, job_id: str, place: Path, content: bytes) -> Any:
    def left() -> None:
        place.mkdir(parents=True, exist_ok=True)
        (place / nouns.FILE).write_bytes(content)

    await asyncio.to_thread(left)
    return (await told(rig, job_id))["outcome"]
