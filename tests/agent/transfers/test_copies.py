"""Checkpoints that belong elsewhere: copied before the server hears of them, fetched before the processes start.

The helper is a stand-in that keeps the "object store" in a directory: STORE/bucket/... for s3://bucket/....
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import types
from pathlib import Path
from typing import Any

import pytest
from tests.agent import rig as rigs

from oarlock.agent.transfers import copies, helpercommand

HELPER = """
import json, os, shutil, sys, time
verb, args = sys.argv[1], sys.argv[2:]
store = os.environ["STORE"]
with open(store + "/said", "a") as said:
    said.write(json.dumps([verb, *args]) + "\\n")
place = lambda url: store + "/" + url.partition("://")[2]
if verb == "store":
    while os.path.exists(store + "/hold"):
        time.sleep(0.01)
    if os.path.exists(store + "/broken"):
        sys.exit("the bucket is on fire")
    shutil.copytree(args[0], place(args[1]))
elif verb == "fetch":
    if not os.path.isdir(place(args[0])):
        sys.exit("there is nothing at " + args[0])
    shutil.copytree(place(args[0]), args[1])
elif verb == "prune":
    print(json.dumps({"removed": 0, "kept": sorted(os.listdir(place(args[0])))}))
"""

SAVE = """
import hashlib, json, os, sys
def save(step, keep=True):
    path = os.environ["OARLOCK_CHECKPOINTS"] + f"/attempt-1-round-1-step-{step}"
    os.makedirs(path)
    shard = f"weights of {step}".encode()
    open(path + "/rank-0.pt", "wb").write(shard)
    shards = [{"file": "rank-0.pt", "bytes": len(shard), "sha256": hashlib.sha256(shard).hexdigest()}]
    text = json.dumps({"format": 1, "step": step, "shards": shards})
    open(path + "/manifest.json", "w").write(text)
    digest = hashlib.sha256(text.encode()).hexdigest()
    event = {"event": "checkpoint", "step": step, "path": path, "manifest_sha256": digest, "bytes": len(shard)}
    with open(os.environ["OARLOCK_REPORT"] + "/events-0.jsonl", "a") as events:
        events.write(json.dumps(event) + "\\n")
    return path
def wait(name):
    import time
    for _ in range(30000):
        os.path.exists(os.environ["OUTSIDE"] + "/" + name) or time.sleep(0.01)
"""


class Bucket:
    def __init__(self, rig: rigs.Rig) -> None:
        self.root = rig.outside / "store"
        (self.root / "bucket").mkdir(parents=True)
        (rig.outside / "helper.py").write_text(HELPER)
        (rig.outside / "saving.py").write_text(SAVE)
        self.local = rig.outside / "checkpoints"
        self.fields: dict[str, Any] = {
            "helper": [sys.executable, str(rig.outside / "helper.py")],
            "checkpoint_copies": {"to": "s3://bucket/ckpt/j", "keep": 2},
            "env": {"STORE": str(self.root), "OARLOCK_CHECKPOINTS": str(self.local)},
        }

    def said(self) -> list[list[str]]:
        path = self.root / "said"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def script(self, rig: rigs.Rig, text: str) -> list[str]:
        (rig.outside / "script.py").write_text(
            f"import sys; sys.path.insert(0, {str(rig.outside)!r})\nimport os\nfrom saving import save, wait\n{text}\n"
        )
        return [sys.executable, str(rig.outside / "script.py")]


@pytest.fixture
def bucket(rig: rigs.Rig) -> Bucket:
    return Bucket(rig)


def checkpoint(folder: Path, step: int, weights: bytes = b"weights", torn: bool = False) -> Path:
    path = folder / f"attempt-1-round-1-step-{step}"
    path.mkdir(parents=True)
    (path / "rank-0.pt").write_bytes(weights[:3] if torn else weights)
    shards = [{"file": "rank-0.pt", "bytes": len(weights), "sha256": hashlib.sha256(weights).hexdigest()}]
    (path / "manifest.json").write_text(json.dumps({"format": 1, "step": step, "shards": shards}))
    return path


def test_a_checkpoint_is_copied_before_the_server_hears_of_it(rig, bucket):
    """The last one too, though the process ends at once after it: a good end waits."""
    record = rig.run(bucket.script(rig, "save(5)"), **bucket.fields)
    assert (record["reason"], record["code"]) == ("exited", 0)
    name = "attempt-1-round-1-step-5"
    (posted,) = rig.server.checkpoints
    assert (posted["path"], posted["step"], posted["manifest"]["step"]) == (f"s3://bucket/ckpt/j/{name}", 5, 5)
    assert (bucket.root / "bucket/ckpt/j" / name / "rank-0.pt").read_bytes() == b"weights of 5"
    assert [said[0] for said in bucket.said()] == ["store", "prune"]
    assert bucket.said()[0][-1] == f"s3://bucket/ckpt/j/{name}"
    memory = str(bucket.local / ".copies-read.json")
    assert rig.server.kept == [[name]], "and which copies are there"
    assert bucket.said()[1][1:] == ["s3://bucket/ckpt/j", "--keep", "2", "--memory", memory]
    assert [path.name for path in bucket.local.iterdir()] == [name], "nothing of ours is left"
    assert rig.server.exits() == [record]


def test_files_that_the_library_removes_meanwhile_are_copied_all_the_same(rig, bucket):
    """And of those that wait only the newest: an upload that is slower than the saves does not fall behind."""
    (bucket.root / "hold").touch()
    script = """
import shutil
first = save(1)
wait("store/said")
second = save(2); third = save(3)
wait("go")
shutil.rmtree(first); shutil.rmtree(second); shutil.rmtree(third)
print("removed", flush=True)
"""
    rig.begin(bucket.script(rig, script), **bucket.fields)
    rigs.until(lambda: (bucket.local / ".copying-worker-0/attempt-1-round-1-step-1").is_dir(), "links")
    rigs.until(lambda: (bucket.local / "attempt-1-round-1-step-3/manifest.json").exists(), "the third")
    (rig.outside / "go").touch()
    rig.server.wait_for(lambda: b"removed" in rig.server.logs["stdout.0"])
    (bucket.root / "hold").unlink()
    rig.finish()
    posted = [(each["step"], each["path"].partition("://")[0]) for each in rig.server.checkpoints]
    assert posted[0] == (1, "s3")
    assert (bucket.root / "bucket/ckpt/j/attempt-1-round-1-step-1/rank-0.pt").read_bytes() == b"weights of 1"
    assert len([said for said in bucket.said() if said[0] == "store"]) <= 2


def test_a_checkpoint_that_cannot_be_copied_is_reported_where_it_lies(rig, bucket):
    (bucket.root / "broken").touch()
    record = rig.run(bucket.script(rig, "save(5)"), **bucket.fields)
    assert record["code"] == 0, "training is not lost with the bucket"
    assert [each["path"] for each in rig.server.checkpoints] == [str(bucket.local / "attempt-1-round-1-step-5")]
    assert "the bucket is on fire" in (rig.directory / "agent.log").read_text()


def test_a_flipped_shard_is_not_copied(rig, bucket):
    """The server hears of it where it lies, reads it, and refuses it."""
    script = """
path = os.environ["OARLOCK_CHECKPOINTS"] + "/attempt-1-round-1-step-5"
report = os.environ["OARLOCK_REPORT"]
os.environ["OARLOCK_REPORT"] = os.environ["OUTSIDE"]
save(5)
open(path + "/rank-0.pt", "r+b").write(b"W")
os.rename(os.environ["OUTSIDE"] + "/events-0.jsonl", report + "/events-0.jsonl")
"""
    rig.run(bucket.script(rig, script), **bucket.fields)
    assert [said for said in bucket.said() if said[0] == "store"] == []
    assert [each["path"] for each in rig.server.checkpoints] == [str(bucket.local / "attempt-1-round-1-step-5")]
    assert "rank-0.pt does not have the digest" in (rig.directory / "agent.log").read_text()


STOPS = """
import signal, sys
signal.signal(signal.SIGTERM, lambda *_: (save(7), sys.exit(143)))
print("ready", flush=True)
signal.pause()
"""


def test_a_stop_gives_the_last_copy_its_grace(rig, bucket):
    """The helper is not asked to stop: what it brings is what the stop is for."""
    (bucket.root / "hold").touch()
    rig.begin(bucket.script(rig, STOPS), **bucket.fields)
    rig.server.wait_for(lambda: b"ready" in rig.server.logs["stdout.0"])
    rig.server.order(stop={"grace_s": 20})
    rigs.until(lambda: bucket.said(), "the upload")
    (bucket.root / "hold").unlink()
    record = rig.finish()
    assert record["reason"] == "stopped"
    assert [each["path"] for each in rig.server.checkpoints] == ["s3://bucket/ckpt/j/attempt-1-round-1-step-7"]


def test_a_copy_under_way_survives_the_request_to_stop(rig, bucket):
    (bucket.root / "hold").touch()
    script = "import signal; save(6); wait('store/said'); print('ready', flush=True); signal.pause()"
    rig.begin(bucket.script(rig, script), **bucket.fields)
    rig.server.wait_for(lambda: b"ready" in rig.server.logs["stdout.0"])
    rig.server.order(stop={"grace_s": 20})
    rigs.until(lambda: not rig.user_processes(), "the end of the process")
    (bucket.root / "hold").unlink()
    rig.finish()
    assert [each["path"] for each in rig.server.checkpoints] == ["s3://bucket/ckpt/j/attempt-1-round-1-step-6"]


@pytest.mark.parametrize("how", ["stop", "failure"])
def test_a_copy_that_takes_too_long_is_cut_off_and_nothing_is_left(rig, bucket, how):
    (bucket.root / "hold").touch()
    end = "import signal; signal.pause()" if how == "stop" else "sys.exit(9)"
    rig.begin(bucket.script(rig, f"import sys; save(6); wait('store/said'); {end}"), **bucket.fields)
    rigs.until(lambda: bucket.said(), "the upload")
    if how == "stop":
        rig.server.order(stop={"grace_s": 0.5})
    record = rig.finish()
    assert record["reason"] == ("stopped" if how == "stop" else "exited")
    assert record["code"] == (143 if how == "stop" else 9)
    assert [each["path"] for each in rig.server.checkpoints] == [str(bucket.local / "attempt-1-round-1-step-6")]
    assert not rigs.processes_with(rig.key)


RESTORED = "print('restored', *os.environ.get('OARLOCK_RESTORE', 'nothing').split(os.pathsep), flush=True)"


def urls(rig: rigs.Rig) -> list[str]:
    """Copies of the job itself, best first."""
    return [f"s3://bucket/ckpt/{job_of(rig)}/attempt-1-round-1-step-{step}" for step in (9, 8)]


def job_of(rig: rigs.Rig) -> str:
    return rig.key.partition("/")[0]


def restored(rig: rigs.Rig) -> list[str]:
    return rig.server.logs["stdout.0"].decode().split()[1:]


@pytest.mark.parametrize("torn", [None, "here", "there"])
def test_a_checkpoint_that_is_not_here_is_fetched(rig, bucket, torn):
    """A torn one here is replaced; a torn one there is passed over for the next."""
    remote = bucket.root / "bucket/ckpt" / job_of(rig)
    checkpoint(remote, 9, b"weights of 9", torn=torn == "there")
    checkpoint(remote, 8, b"weights of 8")
    if torn == "here":
        checkpoint(bucket.local, 9, b"weights of 9", torn=True)
    rig.server.open_barrier(restore=urls(rig))
    rig.run(bucket.script(rig, RESTORED), **bucket.fields)
    step = 8 if torn == "there" else 9
    assert restored(rig) == [str(bucket.local / f"attempt-1-round-1-step-{step}")]
    assert (bucket.local / f"attempt-1-round-1-step-{step}" / "rank-0.pt").read_text() == f"weights of {step}"
    assert "DOWNLOADING" in rig.server.phases()


def test_a_checkpoint_that_is_here_is_not_fetched(rig, bucket):
    for step in (9, 8):
        checkpoint(bucket.local, step)
    elsewhere = checkpoint(rig.outside / "own", 7)
    rig.server.open_barrier(restore=[*urls(rig), str(elsewhere)])
    rig.run(bucket.script(rig, RESTORED), **bucket.fields)
    assert restored(rig) == [*(str(bucket.local / os.path.basename(url)) for url in urls(rig)), str(elsewhere)]
    assert [said for said in bucket.said() if said[0] == "fetch"] == []


def test_a_checkpoint_of_another_job_comes_before_all_that_is_its_own(rig, bucket):
    """It gets a name that no checkpoint of this job's has: the library removes it first."""
    checkpoint(bucket.root / "bucket/ckpt/j-other", 9, b"weights of the other")
    checkpoint(bucket.local, 9, b"weights of its own")
    rig.server.open_barrier(restore=["s3://bucket/ckpt/j-other/attempt-1-round-1-step-9"])
    rig.run(bucket.script(rig, RESTORED), **bucket.fields)
    assert restored(rig) == [str(bucket.local / "attempt-0-round-1-step-9")]
    assert (bucket.local / "attempt-0-round-1-step-9" / "rank-0.pt").read_text() == "weights of the other"


def test_where_nothing_can_be_had_nothing_begins_again(rig, bucket):
    rig.server.open_barrier(restore=urls(rig))
    record = rig.run(bucket.script(rig, "open(os.environ['OUTSIDE'] + '/ran', 'w')"), **bucket.fields)
    assert record["reason"] == "download_failed"
    assert f"there is nothing at {urls(rig)[0]}" in record["detail"]
    assert not (rig.outside / "ran").exists()


def test_two_tasks_of_one_machine_fetch_once(make_rig):
    one, two = make_rig(), make_rig()
    shared = Bucket(one)
    two.key = one.key.replace("worker/0", "worker/1")
    checkpoint(shared.root / "bucket/ckpt" / job_of(one), 9)
    for each in (one, two):
        each.server.open_barrier(restore=urls(one)[:1])
        each.begin(shared.script(one, RESTORED), **shared.fields)
    for each in (one, two):
        each.finish()
        assert restored(each) == [str(shared.local / "attempt-1-round-1-step-9")]
    assert [said[0] for said in shared.said()] == ["fetch"]


@pytest.mark.parametrize(("each_took_s", "runs"), [(1.0, copies.TRIES), (copies.SOON_S + 1.0, 1)])
def test_a_helper_that_fails_soon_is_started_again(tmp_path, monkeypatch, each_took_s, runs):
    """One that failed late has waited for the store itself: five such waits would hold the task for half an hour."""
    now = [0.0]
    ran: list[list[str]] = []

    class Helper:
        def run(self, arguments, *_):
            ran.append(arguments)
            now[0] += each_took_s
            raise helpercommand.Failed("store_failed", "the bucket is on fire")

    monkeypatch.setattr(copies, "time", types.SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(copies, "TRY_AGAIN_S", 0.0)
    task = types.SimpleNamespace(report=str(tmp_path), nproc=1, checkpoint_copies={"to": "s3://b", "separate": True})
    copying = copies.Copies(task, Helper(), None, types.SimpleNamespace(say=lambda _: None))
    held = types.SimpleNamespace(place="/held", name="attempt-1-round-1-step-5")
    with pytest.raises(helpercommand.Failed):
        copying._store(held, "s3://b/attempt-1-round-1-step-5")
    assert len(ran) == runs
