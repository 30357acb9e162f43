"""The removal of copied checkpoints: never the last good one, never one that is being copied."""

from __future__ import annotations

import hashlib
import json
import uuid
from pathlib import Path
from typing import Any

import fsspec
import pytest
from tests import objectstores

from oarlock.data import __main__ as errands
from oarlock.data.checkpoints import pruning


class Place:
    """Copies below `root` of a file system: `put(3)` is whole, `torn` lacks a byte, `open` has no manifest yet.

    The size of a `flipped` one holds and the digest does not.
    """

    def __init__(self, system: Any, root: str) -> None:
        self.system, self.root = system, root

    def put(self, step: int, state: str = "whole", attempt: int = 1) -> None:
        place = f"{self.root}/attempt-{attempt}-round-1-step-{step}"
        content = {"torn": b"1234", "flipped": b"12344"}.get(state, b"12345")
        self.system.pipe_file(f"{place}/rank-0.pt", content)
        shard = {"file": "rank-0.pt", "bytes": 5, "sha256": hashlib.sha256(b"12345").hexdigest()}
        manifest = {"format": 1, "step": step, "attempt": attempt, "round": 1, "world_size": 1, "time": 0.0}
        if state != "open":
            text = "{}" if state == "garbage" else json.dumps({**manifest, "shards": [shard]})
            self.system.pipe_file(f"{place}/manifest.json", text.encode())

    def names(self) -> set[str]:
        return {path.removeprefix(self.root).lstrip("/").partition("/")[0] for path in self.system.find(self.root)}

    def prune(self, keep: int, memory: Path | None = None) -> list[str]:
        """Names that went, in order."""
        reader = pruning.Reader(self.system, pruning.Memory(memory))
        doomed = pruning.spare(pruning.listed(self.system, self.root), keep, reader)
        for copy in doomed:
            pruning.remove(self.system, copy)
        return [copy.name.replace("attempt-", "").replace("-round-1-step-", "/") for copy in doomed]


@pytest.fixture
def place() -> Place:
    return Place(fsspec.filesystem("memory"), f"/{uuid.uuid4().hex}/j")


@pytest.mark.parametrize(
    ("copies", "keep", "gone"),
    [
        ([(1, "whole"), (2, "whole"), (10, "whole")], 2, ["1/1"]),
        ([(1, "whole"), (2, "whole")], 5, []),
        ([(1, "whole"), (2, "whole"), (3, "torn")], 1, ["1/1"]),
        ([(1, "whole"), (2, "torn"), (3, "open")], 1, []),
        ([(1, "open"), (2, "torn"), (3, "garbage"), (4, "whole")], 3, ["1/1", "1/2", "1/3"]),
        ([(1, "torn"), (2, "open")], 1, []),
        ([(1, "whole"), (2, "whole")], 0, ["1/1"]),
        ([(1, "whole"), (2, "flipped"), (3, "flipped")], 2, []),
        ([(1, "whole"), (2, "whole"), (3, "flipped"), (4, "flipped")], 2, ["1/1"]),
        ([(1, "flipped"), (2, "flipped"), (3, "flipped")], 1, []),
    ],
)
def test_the_checkpoints_that_are_deleted(
    place: Place, copies: list[tuple[int, str]], keep: int, gone: list[str]
) -> None:
    for step, state in copies:
        place.put(step, state)
    assert place.prune(keep) == gone
    assert len(place.names()) == len(copies) - len(gone)
    assert place.prune(keep) == [], "again: nothing"


def test_a_later_attempt_is_better_whatever_its_step(place: Place) -> None:
    place.put(100)
    place.put(20, attempt=2)
    assert place.prune(1) == ["1/100"]


def test_a_copy_is_downloaded_once_and_again_when_it_has_changed(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    digest = pruning.digest

    def counted(system: Any, path: str) -> str:
        read.append(path.removeprefix(place.root).split("-")[5].partition("/")[0])
        return digest(system, path)

    monkeypatch.setattr(pruning, "digest", counted)
    monkeypatch.setattr(pruning, "state", lambda files: str(sorted((n, i["created"]) for n, i in files.items())))
    memory = tmp_path / "memory.json"
    for step in (1, 2, 3):
        place.put(step)
    assert (place.prune(2, memory), read) == (["1/1"], ["3", "2"])
    place.put(4)
    assert (place.prune(2, memory), read) == (["1/2"], ["3", "2", "4"])
    place.put(4, "flipped")
    place.put(5)
    assert (place.prune(2, memory), read[3:]) == (["1/3"], ["5", "4"])


def test_other_files_are_left_alone(place: Place) -> None:
    place.put(1)
    place.put(2)
    for name in ("notes.txt", "attempt-1-round-1-step-0", "attempt-1-round-1-step-0b/x", "other/manifest.json"):
        place.system.pipe_file(f"{place.root}/{name}", b"mine")
    assert place.prune(1) == ["1/1"]
    assert {"notes.txt", "other", "attempt-1-round-1-step-0", "attempt-1-round-1-step-0b"} < place.names()


def test_the_manifest_goes_first(place: Place) -> None:
    """After a kill in between, the rest is not taken for a checkpoint."""
    place.put(1)
    place.put(2)
    reader = pruning.Reader(place.system, pruning.Memory(None))
    (doomed,) = pruning.spare(pruning.listed(place.system, place.root), 1, reader)

    class Killed(Exception):
        pass

    class Dying:
        def rm(self, paths: list[str]) -> None:
            if any(path.endswith(".pt") for path in paths):
                raise Killed
            place.system.rm(paths)

    with pytest.raises(Killed):
        pruning.remove(Dying(), doomed)
    assert [copy.whole for copy in pruning.listed(place.system, place.root) if copy.name == doomed.name] == [False]
    assert place.prune(1) == ["1/1"]


def test_the_verb_in_an_object_store(
    bucket: objectstores.Bucket, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in bucket.env.items():
        monkeypatch.setenv(name, value)
    system = fsspec.filesystem("s3", skip_instance_cache=True)
    place = Place(system, f"{bucket.name}/ckpt/j")
    for step in (2, 20, 3):
        place.put(step)
    assert errands.main(["prune", f"{bucket.url}/ckpt/j", "--keep", "2"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["removed"], set(said["kept"])) == (1, {f"attempt-1-round-1-step-{step}" for step in (3, 20)})
    system.invalidate_cache()
    assert place.names() == {"attempt-1-round-1-step-3", "attempt-1-round-1-step-20"}
    assert errands.main(["prune", f"{bucket.url}/nothing", "--keep", "2"]) == 0


def test_a_web_server_cannot_be_pruned(capsys: pytest.CaptureFixture[str]) -> None:
    assert errands.main(["prune", "http://host/ckpt", "--keep", "1"]) == 2
    assert "invalid_input" in capsys.readouterr().err


def test_a_directory_is_pruned_like_the_servers_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert errands.main(["prune", (tmp_path / "nothing").as_uri(), "--keep", "1"]) == 0
    assert json.loads(capsys.readouterr().out) == {"removed": 0, "kept": []}
