"""A checkpoint is believed when its manifest and every byte hold, and the last good one is never deleted."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from oarlock.data.checkpoints import checkpoints
from oarlock.spec import errors


def save(directory: Path, step: int, *, attempt: int = 1, round_number: int = 1, ranks: int = 2, **fields: Any) -> Path:
    path = directory / f"attempt-{attempt}-round-{round_number}-step-{step}"
    path.mkdir(parents=True)
    shards = []
    for rank in range(ranks):
        data = f"{step} {rank}".encode() * 1000
        (path / f"rank-{rank}.pt").write_bytes(data)
        shards.append({"file": f"rank-{rank}.pt", "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()})
    manifest = {"format": 1, "step": step, "attempt": attempt, "round": round_number, "world_size": ranks, "time": 1.5}
    (path / "manifest.json").write_text(json.dumps({**manifest, "shards": shards, "meta": {"loss": 0.5}, **fields}))
    return path


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def steps(directory: Path) -> list[int]:
    return [checkpoint.manifest.step for checkpoint in checkpoints.listed(directory)]


def test_a_good_one(tmp_path: Path) -> None:
    path = save(tmp_path, 7)
    found = checkpoints.verify(path)
    assert (found.manifest.step, found.manifest.world_size, found.manifest.bytes) == (7, 2, 6000)
    digest = hashlib.sha256((path / "manifest.json").read_bytes()).hexdigest()
    assert found.manifest_sha256 == digest
    assert checkpoints.verify(path, manifest_sha256=digest) == checkpoints.look(path) == found
    with pytest.raises(errors.InvalidInput, match="reported"):
        checkpoints.look(path, manifest_sha256="0" * 64)


def test_a_flipped_bit_is_found_by_reading(tmp_path: Path) -> None:
    path = save(tmp_path, 7)
    flip(path / "rank-1.pt")
    checkpoints.look(path)
    with pytest.raises(errors.InvalidInput, match=r"rank-1\.pt does not have the digest"):
        checkpoints.verify(path)


def test_a_cut_or_missing_shard_is_found_by_looking(tmp_path: Path) -> None:
    path = save(tmp_path, 7)
    (path / "rank-1.pt").write_bytes(b"short")
    with pytest.raises(errors.InvalidInput, match=r"rank-1\.pt has 5 bytes, not 3,000"):
        checkpoints.look(path)
    (path / "rank-1.pt").unlink()
    with pytest.raises(errors.InvalidInput, match=r"rank-1\.pt cannot be read"):
        checkpoints.look(path)
    (path / "rank-1.pt").symlink_to("rank-0.pt")
    with pytest.raises(errors.InvalidInput, match="not a regular file"):
        checkpoints.look(path)


def test_without_a_manifest_it_is_none(tmp_path: Path) -> None:
    path = save(tmp_path, 7)
    (path / "manifest.json").unlink()
    for place in (path, tmp_path / "missing", path / "rank-0.pt"):
        with pytest.raises(errors.NotFound):
            checkpoints.look(place)


@pytest.mark.parametrize(
    "fields",
    [
        {"format": 2},
        {"time": "7"},
        {"shards": None},
        {"world_size": 3},
        {"shards": [{"file": name, "bytes": 1, "sha256": ""} for name in ("../x", "a")]},
        {"shards": [{"file": name, "bytes": 1, "sha256": ""} for name in ("/etc/passwd", "a")]},
        {"shards": [{"file": name, "bytes": 1, "sha256": ""} for name in ("a", "a")]},
        {"shards": [{"file": name, "bytes": 1, "sha256": ""} for name in ("", "a")]},
        {"shards": [{"file": name, "bytes": -1, "sha256": ""} for name in ("b", "a")]},
    ],
    ids=str,
)
def test_a_manifest_that_is_none(tmp_path: Path, fields: dict[str, Any]) -> None:
    with pytest.raises(errors.InvalidInput, match="is not valid"):
        checkpoints.look(save(tmp_path, 7, **fields))


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"\xff\xfe", b"x" * (checkpoints.MAX_MANIFEST_BYTES + 1)], ids=len)
def test_a_manifest_that_is_not_json(tmp_path: Path, text: bytes) -> None:
    path = save(tmp_path, 7)
    (path / "manifest.json").write_bytes(text)
    with pytest.raises(errors.InvalidInput):
        checkpoints.look(path)


def test_the_best_comes_first(tmp_path: Path) -> None:
    for attempt, round_number, step in [(1, 1, 300), (2, 1, 20), (2, 2, 10), (2, 1, 100)]:
        save(tmp_path, step, attempt=attempt, round_number=round_number)
    (save(tmp_path, 400) / "manifest.json").unlink()
    (tmp_path / "notes.txt").write_text("x")
    assert steps(tmp_path) == [10, 100, 20, 300]
    assert steps(tmp_path / "missing") == []


def test_pruning_keeps_the_best(tmp_path: Path) -> None:
    for step in range(1, 6):
        save(tmp_path, step)
    unfinished = save(tmp_path, 6)
    (unfinished / "manifest.json").unlink()
    assert sorted(path.name[-1] for path in checkpoints.prune(tmp_path, 2)) == ["1", "2", "3"]
    assert steps(tmp_path) == [5, 4]
    assert unfinished.is_dir()
    assert checkpoints.prune(tmp_path, 2) == []
    checkpoints.prune(tmp_path, 0)
    assert steps(tmp_path) == [5]


def test_pruning_never_deletes_the_last_good_one(tmp_path: Path) -> None:
    paths = [save(tmp_path, step) for step in range(1, 6)]
    for path in paths[2:]:
        flip(path / "rank-0.pt")
    checkpoints.prune(tmp_path, 2)
    assert steps(tmp_path) == [5, 4, 3, 2]


def test_a_half_deleted_folder_is_not_a_checkpoint(tmp_path: Path) -> None:
    save(tmp_path, 1)
    save(tmp_path, 2).rename(tmp_path / ".deleted-attempt-1-round-1-step-2")
    assert steps(tmp_path) == [1]
    checkpoints.prune(tmp_path, 1)
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".deleted")] == []
