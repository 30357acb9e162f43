"""The chief's agent stores a checkpoint with shards of several tasks. The manifest follows last."""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import fsspec
import pytest
from tests import objectstores

from oarlock.data.checkpoints import checkpoints, completing, pruning
from oarlock.data.transfers import places
from oarlock.spec import errors

NAME = "attempt-1-round-1-step-10"
NEWER = "attempt-1-round-1-step-20"
SHARDS = {"rank-0.pt": b"of the chief", "rank-1.pt": b"of the other"}
KEPT = [f"kept/{NAME}/{file}" for file in ("manifest.json", *SHARDS)]


@pytest.fixture(autouse=True)
def _reached(bucket: objectstores.Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in bucket.env.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """The chief's directory: its own shard, and the manifest."""
    place = tmp_path / NAME
    place.mkdir()
    (place / "rank-0.pt").write_bytes(SHARDS["rank-0.pt"])
    shards = [
        {"file": file, "bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        for file, content in SHARDS.items()
    ]
    manifest = {"format": 1, "step": 10, "attempt": 1, "round": 1, "world_size": 2, "time": 0.0, "shards": shards}
    (place / "manifest.json").write_text(json.dumps(manifest))
    return place


class Clock:
    """A clock that is put on by the waiting. `then` is done at the first wait."""

    def __init__(self, then: Callable[[], object] = lambda: None) -> None:
        self.now_s = 0.0
        self._then: Iterator[Callable[[], object]] = iter([then])

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, wait_s: float) -> None:
        self.now_s += wait_s
        next(self._then, lambda: None)()


def complete(here: Path, bucket: objectstores.Bucket, clock: Clock, memory: Path | None = None) -> int:
    return completing.run(str(here), f"{bucket.url}/kept/{NAME}", memory, monotonic=clock.monotonic, sleep=clock.sleep)


def test_the_manifest_follows_once_the_other_shard_is_there(here: Path, bucket: objectstores.Bucket) -> None:
    def other() -> None:
        assert bucket.keys("kept/") == [f"kept/{NAME}/rank-0.pt"], "no manifest yet"
        bucket.put(f"kept/{NAME}/rank-1.pt", SHARDS["rank-1.pt"])

    memory = here.parent / "memory"
    assert complete(here, bucket, Clock(other), memory) == 2
    assert bucket.keys("kept/") == KEPT
    system, root = places.filesystem(f"{bucket.url}/kept")
    (copy,) = pruning.listed(system, root)
    assert pruning.Memory(memory).knows(copy), "the removal of old copies need not read it again"


def test_a_shard_of_an_earlier_try_is_not_taken(here: Path, bucket: objectstores.Bucket) -> None:
    """It has the same name and size. The right one replaces it."""
    bucket.put(f"kept/{NAME}/rank-1.pt", b"of an before")

    def other() -> None:
        assert f"kept/{NAME}/manifest.json" not in bucket.keys("kept/")
        bucket.put(f"kept/{NAME}/rank-1.pt", SHARDS["rank-1.pt"])

    complete(here, bucket, Clock(other))
    assert bucket.keys("kept/") == KEPT


def test_a_shard_that_does_not_come_ends_the_wait(
    here: Path, bucket: objectstores.Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(completing, "PATIENCE_S", 20.0)  # each look asks the store
    clock = Clock()
    with pytest.raises(errors.Conflict, match=r"rank-1\.pt did not come"):
        complete(here, bucket, clock)
    assert clock.now_s == pytest.approx(completing.PATIENCE_S, abs=2)
    assert bucket.keys("kept/") == [f"kept/{NAME}/rank-0.pt"], "no manifest names a shard that is not there"


def test_a_task_that_has_gone_on_to_a_newer_one_ends_the_wait_soon(
    here: Path, bucket: objectstores.Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(completing, "SETTLE_S", 10.0)
    clock = Clock(lambda: bucket.put(f"kept/{NEWER}/rank-1.pt", b"newer"))
    with pytest.raises(errors.Conflict, match="did not become whole"):
        complete(here, bucket, clock)
    assert clock.now_s == pytest.approx(completing.SETTLE_S, abs=3)


def test_a_store_without_versions_is_not_read_at_each_look(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The object of an earlier try has the right size, and may have gigabytes."""
    system, root = fsspec.filesystem("memory"), f"/{uuid.uuid4().hex}"
    for name, content in (("manifest.json", (here / "manifest.json").read_bytes()), ("rank-1.pt", b"of an before")):
        system.pipe_file(f"{root}/{NAME}/{name}", content)
    read: list[str] = []
    really = pruning.digest
    monkeypatch.setattr(pruning, "digest", lambda system, path: (read.append(path), really(system, path))[1])
    waiting = completing.Waiting(system, root, NAME, checkpoints.read(here))
    del waiting.missing["rank-0.pt"]
    assert not any(waiting.over() for _ in range(100))
    assert 1 < len(read) < 10
    system.pipe_file(f"{root}/{NAME}/rank-1.pt", SHARDS["rank-1.pt"])
    assert any(waiting.over() for _ in range(completing.LOOKS_OF_A_VERSION)), "the right one is found in time"
