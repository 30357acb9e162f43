"""The files of a job over HTTP: one tree of keys, whole or in part, for their owner alone, and nothing beside it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.api import rig as rigs

from oarlock.spec import attempts, events, jobs


def home(rig: rigs.Rig) -> Path:
    return Path(rig.services.about.home)


def put(path: Path, content: bytes = b"x") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


async def left(rig: rigs.Rig, **spec: Any) -> jobs.Job:
    """A job of ann's with something of each kind."""
    job = await rig.submit("ann", name="train", **spec)
    job = await rig.launch(job)
    files = home(rig) / "files" / job.id
    put(files / "worker-0" / "attempt-1" / "ckpt.pt", b"old")
    put(files / "worker-0" / "attempt-1-incarnation-2" / "ckpt.pt", b"newer")
    put(files / "worker-0" / "attempt-2" / "ckpt.pt", b"0123456789")
    put(Path(os.fsdecode(os.fsencode(files) + b"/worker-0/attempt-2/a\xff.bin")), b"odd")
    put(files / "worker-1" / "attempt-1" / "x" / "y.txt", b"y")
    put(home(rig) / "results" / job.id / "model.pt", b"model")
    saved = home(rig) / "checkpoints" / job.id
    put(saved / "attempt-1-round-1-step-5" / "shard-0.pt", b"shard")
    put(saved / "attempt-1-round-1-step-9" / "shard-0.pt", b"not visible")
    made = jobs.Checkpoint(
        job=job.id,
        step=5,
        attempt=1,
        round=1,
        path=str(saved / "attempt-1-round-1-step-5"),
        manifest_sha256="",
        bytes=5,
        at=1.0,
    )
    await rig.store.write(lambda tx: tx.add_checkpoint(made))
    await rig.logs.append(rigs.key_of(job), "stdout.0", 0, b"hello\n", at=rig.clock())
    return job


async def test_everything_a_job_left_is_one_tree(rig: rigs.Rig) -> None:
    await left(rig)
    async with rig.as_user("ann") as http:
        found = (await http.get("/api/v1/jobs/train/files")).json()
        assert {one["path"]: one["bytes"] for one in found["items"]} == {
            "checkpoints/attempt-1-round-1-step-5/shard-0.pt": 5,
            "earlier/attempt-1-incarnation-2/worker-0/ckpt.pt": 5,
            "earlier/attempt-1/worker-0/ckpt.pt": 3,
            "files/worker-0/a%FF.bin": 3,
            "files/worker-0/ckpt.pt": 10,
            "files/worker-1/x/y.txt": 1,
            "logs/attempt-1/worker-0/stdout.0": 6,
            "results/model.pt": 5,
        }
        assert (found["files"], found["bytes"], found["next"]) == (8, 38, None)
        for one in found["items"]:
            answer = await http.get("/api/v1/jobs/train/file", params={"path": one["path"]})
            assert len(answer.content) == one["bytes"]
            assert answer.headers["etag"] == f'"{one["version"]}"'
        pages, after = [], ""
        while True:
            page = (await http.get("/api/v1/jobs/train/files", params={"limit": 3, "after": after})).json()
            pages += [one["path"] for one in page["items"]]
            if page["next"] is None:
                break
            after = page["next"]
        assert pages == [one["path"] for one in found["items"]]
        under = (await http.get("/api/v1/jobs/train/files?under=files/worker-0")).json()
        assert [one["path"] for one in under["items"]] == ["files/worker-0/a%FF.bin", "files/worker-0/ckpt.pt"]


async def test_only_the_owner_and_administrators_may_see_them(rig: rigs.Rig) -> None:
    job = await left(rig)
    for name, status in (("ann", 200), ("root", 200), ("bob", 404), ("vera", 404)):
        async with rig.as_user(name) as http:
            for query in (f"/api/v1/jobs/{job.id}/files", f"/api/v1/jobs/{job.id}/file?path=results/model.pt"):
                assert (await http.get(query)).status_code == status, (name, query)


EVIL = [
    "../../token",
    "files/../../../token",
    "files/worker-0/../../../../token",
    "/etc/passwd",
    "files/worker-0//etc/passwd",
    "files/worker-0/%2e%2e/%2e%2e/secret",
    "files/worker-0/..%2f..%2fsecret",
    "results/link",
    "results/out/passwd",
    "results/hole/file",
    "results/pipe",
    "results",
    "files",
    "checkpoints/../../token",
    "checkpoints/attempt-1-round-1-step-9/shard-0.pt",
    "logs/attempt-1/worker-0/../../../../token",
    "logs/attempt-1/worker-0/stdout.0.idx",
    "nonsense",
    "files/worker-0/a\x00b",
]


@pytest.mark.parametrize("key", EVIL)
async def test_a_key_leads_nowhere_but_to_the_jobs_own_files(rig: rigs.Rig, key: str) -> None:
    job = await left(rig)
    put(home(rig) / "token", b"the administrator's")
    place = home(rig) / "results" / job.id
    (place / "link").symlink_to(home(rig) / "token")
    (place / "out").symlink_to("/etc")
    put(place / "real" / "file")
    (place / "hole").symlink_to("real")
    os.mkfifo(place / "pipe")
    async with rig.as_user("ann") as http:
        answer = await http.get("/api/v1/jobs/train/file", params={"path": key})
        listed = (await http.get("/api/v1/jobs/train/files")).json()["items"]
    assert answer.status_code in (404, 422), answer.content
    assert b"administrator" not in answer.content
    assert {one["path"] for one in listed if one["path"].startswith("results/")} == {
        "results/model.pt",
        "results/real/file",
    }


async def test_a_checkpoint_that_a_task_has_claimed_elsewhere_is_not_served(rig: rigs.Rig) -> None:
    job = await rig.submit("ann", name="train")
    other = put(home(rig) / "checkpoints" / "j-other" / "attempt-1-round-1-step-5" / "shard.pt").parent
    claimed = (str(other), "/etc", str(home(rig) / "checkpoints" / job.id / ".."), "relative", "s3://x/y")
    for number, path in enumerate(claimed):
        made = jobs.Checkpoint(
            job=job.id, step=number, attempt=1, round=1, path=path, manifest_sha256="", bytes=1, at=1.0
        )
        await rig.store.write(lambda tx, made=made: tx.add_checkpoint(made))
    async with rig.as_user("ann") as http:
        assert (await http.get("/api/v1/jobs/train/files")).json()["items"] == []


@pytest.mark.parametrize(
    ("asked", "status", "content"),
    [
        ("bytes=4-", 206, b"456789"),
        ("bytes=2-3", 206, b"23"),
        ("bytes=5-100", 206, b"56789"),
        ("bytes=10-", 206, b""),
        ("bytes=11-", 422, None),
        ("bytes=0-9", 200, b"0123456789"),
        ("bytes=-5", 200, b"0123456789"),
        ("bytes=1-2,4-5", 200, b"0123456789"),
        ("lines=1-", 200, b"0123456789"),
    ],
)
async def test_a_part_may_be_asked_for(rig: rigs.Rig, asked: str, status: int, content: bytes | None) -> None:
    await left(rig)
    target = "/api/v1/jobs/train/file?path=files/worker-0/ckpt.pt"
    async with rig.as_user("ann") as http:
        answer = await http.get(target, headers={"Range": asked})
        assert answer.status_code == status
        assert content is None or answer.content == content
        stale = await http.get(target, headers={"Range": asked, "If-Range": '"another"'})
        assert (stale.status_code, stale.content) == (200, b"0123456789"), "of a file that has changed all is sent"


async def test_files_that_the_job_file_sends_elsewhere_are_named_and_not_read(rig: rigs.Rig) -> None:
    job = await rig.submit("ann", name="far", results="/etc", checkpoint={"to": "s3://bucket/ckpt"})
    async with rig.as_user("ann") as http:
        found = (await http.get("/api/v1/jobs/far/files")).json()
        assert found["elsewhere"] == [
            {"path": "results", "url": "/etc"},
            {"path": "checkpoints", "url": f"s3://bucket/ckpt/{job.id}"},
        ]
        assert found["items"] == []
        assert (await http.get("/api/v1/jobs/far/file?path=results/passwd")).status_code == 404


async def test_the_files_a_task_kept_are_in_its_record_and_bounded(rig: rigs.Rig) -> None:
    job = await rig.launch(await rig.submit("ann", name="train"))
    key = rigs.key_of(job)
    where = {"key": attempts.TaskKey(job.id, 1, "worker", 0, 1)}
    await rig.happen(job.id, events.TaskRegistered(**where, address="127.0.0.1"))
    ended = attempts.Exit(code=1, cause=attempts.Cause.ERROR, at=rig.clock())
    await rig.happen(job.id, events.TaskExited(**where, exit=ended))
    lost = {"why": "w" * 9000, "count": 3, "examples": ["e" * 900] * 20}
    async with rig.as_task(key) as http:
        answer = await http.post(
            "/agent/v1/report", json={"kept": {"files": 2, "bytes": 9, "not_kept": [lost] * 30, "newer": 1}}
        )
        assert answer.status_code == 200, answer.text
    async with rig.as_user("ann") as http:
        shown = msgspec.json.decode((await http.get("/api/v1/jobs/train")).content, type=jobs.Job)
    (task,) = shown.attempts[-1].tasks
    assert task.kept is not None
    assert (task.kept.files, task.kept.bytes) == (2, 9)
    assert len(msgspec.json.encode(task.kept)) < 15_000
    assert task.exit is not None


async def test_kept_files_go_with_the_record(rig: rigs.Rig) -> None:
    job = await left(rig)
    await rig.end(job.id)
    async with rig.as_user("ann") as http:
        assert (await http.delete(f"/api/v1/jobs/{job.id}")).status_code == 204
    assert list((home(rig) / "files").iterdir()) == []
