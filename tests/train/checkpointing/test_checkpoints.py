"""Checkpoints on disk: how they are written and read, and the faults of a bad disk."""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests import needs

from oarlock.train import errors
from oarlock.train.checkpointing import checkpoints, manifests
from oarlock.train.worlds import World

ALONE = World(0, 1, 0, torch.device("cpu"))


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def store(tmp_path: Path, said: list[str]) -> checkpoints.Checkpoints:
    return opened(tmp_path / "checkpoints", said)


def opened(directory: Path, said: list[str], keep: int = 3) -> checkpoints.Checkpoints:
    return checkpoints.Checkpoints(directory, ALONE, attempt=1, round_number=1, keep=keep, say=said.append)


def saved(store: checkpoints.Checkpoints, step: int) -> Path:
    made = store.save(step, {"model": {"weight": torch.full((1000,), float(step))}}, {"rng": step}, {"note": "x"})
    assert made is not None
    return made.path


def restored_step(store: checkpoints.Checkpoints) -> int | None:
    found = store.restore(manifests.complete(store.directory))
    if found is None:
        return None
    assert torch.equal(found.shared["model"]["weight"], torch.full((1000,), float(found.step)))
    return found.step


def test_a_checkpoint_is_laid_out_as_the_protocol_says(store: checkpoints.Checkpoints) -> None:
    path = saved(store, 7)
    assert path.name == "attempt-1-round-1-step-7"
    assert sorted(each.name for each in path.iterdir()) == ["manifest.json", "rank-0.pt"]
    manifest = json.loads((path / "manifest.json").read_text())
    assert isinstance(manifest.pop("time"), float)
    assert manifest == {
        "format": 1,
        "step": 7,
        "attempt": 1,
        "round": 1,
        "world_size": 1,
        "shards": [
            {
                "file": "rank-0.pt",
                "bytes": (path / "rank-0.pt").stat().st_size,
                "sha256": subprocess.check_output(["sha256sum", path / "rank-0.pt"], text=True).split()[0],
            }
        ],
        "meta": {"note": "x"},
    }


def test_nothing_is_named_before_it_is_synced_and_the_manifest_is_last(
    store: checkpoints.Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGKILL cannot show a missing fsync: only the order of the calls can."""
    calls: list[str] = []
    fsync, rename = os.fsync, Path.rename

    def seen_fsync(descriptor: int) -> None:
        calls.append(f"sync {Path(f'/proc/self/fd/{descriptor}').readlink().name}")
        fsync(descriptor)

    def seen_rename(path: Path, target: Path) -> Path:
        calls.append(f"rename {path.name} {target.name}")
        return rename(path, target)

    monkeypatch.setattr(os, "fsync", seen_fsync)
    monkeypatch.setattr(Path, "rename", seen_rename)
    saved(store, 7)
    assert calls == [
        "sync checkpoints",
        "sync rank-0.pt.tmp",
        "rename rank-0.pt.tmp rank-0.pt",
        "sync attempt-1-round-1-step-7",
        "sync attempt-1-round-1-step-7",
        "sync manifest.json.tmp",
        "rename manifest.json.tmp manifest.json",
        "sync attempt-1-round-1-step-7",
    ]


def torn(path: Path) -> None:
    (path / "manifest.json").unlink()


def shortened(path: Path) -> None:
    content = (path / "rank-0.pt").read_bytes()
    (path / "rank-0.pt").write_bytes(content[:-1])


def flipped(path: Path) -> None:
    content = bytearray((path / "rank-0.pt").read_bytes())
    content[len(content) // 2] ^= 1
    (path / "rank-0.pt").write_bytes(content)


def lost(path: Path) -> None:
    (path / "rank-0.pt").unlink()


def garbled(path: Path) -> None:
    (path / "manifest.json").write_text("{")


def astray(path: Path) -> None:
    """A manifest that points out of its directory, at a file with the right digest."""
    content = (path / "manifest.json").read_text()
    (path.parent / "elsewhere.pt").write_bytes((path / "rank-0.pt").read_bytes())
    (path / "manifest.json").write_text(content.replace('"rank-0.pt"', '"../elsewhere.pt"'))


@pytest.mark.parametrize("damage", [torn, shortened, flipped, lost, garbled, astray])
def test_a_damaged_checkpoint_is_passed_over_and_never_loaded(
    store: checkpoints.Checkpoints, monkeypatch: pytest.MonkeyPatch, damage: Any
) -> None:
    saved(store, 1)
    newer = saved(store, 2)
    damage(newer)
    loaded: list[Path] = []
    load = torch.load
    monkeypatch.setattr(torch, "load", lambda path, **options: loaded.append(Path(path)) or load(path, **options))
    assert restored_step(store) == 1
    assert not [path for path in loaded if newer in path.parents]


@pytest.mark.parametrize("fellows", [[0, 1, 2, 3], [1, 3], [2]])
def test_the_ranks_that_see_a_directory_check_every_shard_in_it(
    tmp_path: Path, said: list[str], fellows: list[int]
) -> None:
    path = tmp_path / manifests.directory_name(1, 1, 1)
    path.mkdir()
    files = [path / f"rank-{rank}.pt" for rank in range(5)]  # of more ranks than now
    for file in files:
        file.write_bytes(b"a shard")
    shards = tuple(manifests.Shard(file.name, 7, manifests.digest(file)) for file in files)
    manifests.write(path, manifests.Manifest(1, 1, 1, len(files), 0.0, shards, {}))

    def faults() -> set[str | None]:
        worlds = [World(rank, 4, 0, ALONE.device) for rank in fellows]
        stores = [
            checkpoints.Checkpoints(tmp_path, world, attempt=2, round_number=1, keep=1, say=said.append)
            for world in worlds
        ]
        return {store._fault(path, fellows) for store in stores}

    assert faults() == {None}
    for file in files:
        file.write_bytes(b"a shar?")
        assert f"the digest of {file.name} is not the one in its manifest" in faults()
        file.write_bytes(b"a shard")


def test_when_none_holds_a_person_decides(store: checkpoints.Checkpoints, said: list[str]) -> None:
    flipped(saved(store, 1))
    with pytest.raises(errors.CheckpointError, match=r"none of the 1 checkpoints is valid .*resume=False"):
        restored_step(store)
    assert "digest of rank-0.pt is not the one in its manifest" in said[0]


def test_no_checkpoint_is_no_error(store: checkpoints.Checkpoints) -> None:
    assert restored_step(store) is None


def test_the_newest_attempt_comes_first_whatever_its_step(tmp_path: Path) -> None:
    for name in (
        "attempt-2-round-1-step-5",
        "attempt-1-round-1-step-90",
        "attempt-2-round-1-step-30",
        "attempt-10-round-1-step-1",
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "manifest.json").touch()
    (tmp_path / "notes").mkdir()
    (tmp_path / "attempt-11-round-1-step-1").mkdir()
    assert [path.name for path in manifests.complete(tmp_path)] == [
        "attempt-10-round-1-step-1",
        "attempt-2-round-1-step-30",
        "attempt-2-round-1-step-5",
        "attempt-1-round-1-step-90",
    ]


def test_only_the_newest_are_kept_and_files_of_others_are_left_alone(tmp_path: Path, said: list[str]) -> None:
    store = opened(tmp_path, said, keep=2)
    (tmp_path / "attempt-1-round-1-step-1").mkdir()  # what a killed save left
    (tmp_path / "attempt-2-round-1-step-1").mkdir()  # what a later attempt is writing
    (tmp_path / "mine").mkdir()
    for step in (2, 3, 4, 5):
        saved(store, step)
        store.prune()
    names = {"attempt-1-round-1-step-4", "attempt-1-round-1-step-5", "attempt-2-round-1-step-1", "mine"}
    assert {path.name for path in tmp_path.iterdir()} == names


def test_checkpoints_of_a_later_attempt_are_not_counted(tmp_path: Path, said: list[str]) -> None:
    """A process of an attempt that was replaced may live on for a moment. It counts only its own checkpoints."""
    store = opened(tmp_path, said, keep=2)
    ours = [saved(store, step) for step in (10, 20)]
    later = checkpoints.Checkpoints(tmp_path, ALONE, attempt=2, round_number=1, keep=4, say=said.append)
    theirs = [saved(later, step) for step in (30, 40)]
    store.prune()
    assert all(path.is_dir() for path in (*ours, *theirs))


def test_the_checkpoint_that_was_restored_stays_until_a_newer_one_verifies(
    tmp_path: Path, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = opened(tmp_path, said)
    good = saved(first, 1)
    for step in (2, 3):
        flipped(saved(first, step))
    store = opened(tmp_path, said, keep=1)
    assert restored_step(store) == 1
    monkeypatch.setattr(checkpoints, "free_bytes", lambda directory: 0)
    assert store.save(4, {}, {}, {}) is None
    store.prune()
    assert good.is_dir(), "the newer ones are complete, but do not hold"


def test_a_directory_that_is_lost_on_the_way_costs_checkpoints_and_not_the_training(
    store: checkpoints.Checkpoints, said: list[str]
) -> None:
    saved(store, 1)
    store.directory.rename(store.directory.with_name("gone"))
    store.directory.touch()
    assert store.save(2, {}, {}, {}) is None
    assert "File exists" in said[-1]


class Foreign:
    pass


@pytest.mark.parametrize("value", [Foreign(), lambda: 0, {"deep": [torch.zeros(1), {Foreign(): 1} and Foreign()]}])
def test_state_that_could_not_be_loaded_safely_is_refused_when_it_is_saved(
    store: checkpoints.Checkpoints, value: Any
) -> None:
    with pytest.raises(errors.StateError, match=r"state\.shared\.thing.* a checkpoint holds tensors and plain Python"):
        store.save(1, {"thing": value}, {}, {})
    assert restored_step(store) is None


def test_the_state_of_torch_itself_is_plain(store: checkpoints.Checkpoints) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    optimizer = torch.optim.Adam(model.parameters(), amsgrad=True)
    model(torch.randn(4, 3)).sum().backward()
    optimizer.step()
    kept: dict[str, Any] = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    for make in (
        lambda: torch.optim.lr_scheduler.OneCycleLR(torch.optim.SGD(model.parameters(), 0.1), 0.1, total_steps=9),
        lambda: torch.optim.lr_scheduler.MultiStepLR(optimizer, [1, 2]),
        lambda: torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer),
        lambda: torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 1.0),
    ):
        kept[f"scheduler {len(kept)}"] = make().state_dict()
    kept["more"] = {
        "counter": Counter("aab"),
        "ordered": OrderedDict(a=1),
        "numbers": (1, 2.5, True, None, {3}),
        "bytes": b"x",
    }
    assert store.save(1, kept, {}, {}) is not None
    found = store.restore(manifests.complete(store.directory))
    assert found is not None
    assert found.shared["more"] == kept["more"]


@pytest.mark.parametrize("key", [np.int64(3), frozenset([1]), (1, np.int64(3))])
def test_keys_that_could_not_be_loaded_are_refused(store: checkpoints.Checkpoints, key: Any) -> None:
    """They were found at the restart: the checkpoint was complete, and nothing could read it."""
    with pytest.raises(errors.StateError, match=r"the key .*3.* of state\.shared\.counts|the key frozenset"):
        store.begin(1, {"counts": {key: 1.0}}, {}, {})
    assert store.save(1, {"counts": {(1, "a"): 1.0, 2: 3.0, None: 1}}, {}, {}) is not None
    assert store.restore(manifests.complete(store.directory)) is not None


def test_sparse_momentum_is_kept(store: checkpoints.Checkpoints) -> None:
    """That of an embedding with sparse gradients. It was met at the first checkpoint, after minutes of training."""
    table = torch.nn.Embedding(10, 4, sparse=True)
    optimizer = torch.optim.SGD(table.parameters(), 0.1, momentum=0.9)
    for rows in ([1, 2], [2, 7]):
        optimizer.zero_grad()
        table(torch.tensor(rows)).sum().backward()
        optimizer.step()
    store.begin(1, {"optimizer": optimizer.state_dict()}, {}, {})
    assert store.finish() is not None
    found = store.restore(manifests.complete(store.directory))
    assert found is not None
    kept = found.shared["optimizer"]["state"][0]["momentum_buffer"].to_dense()
    assert torch.equal(kept, optimizer.state[table.weight]["momentum_buffer"].to_dense())
    with pytest.raises(errors.StateError, match=r"optimizer is a tensor of layout torch\._mkldnn"):
        store.begin(2, {"optimizer": torch.eye(3).to_mkldnn()}, {}, {})


def test_the_estimate_of_the_size_is_never_too_small(store: checkpoints.Checkpoints) -> None:
    big = torch.zeros(300_000)
    tree = {"whole": big, "view": big[:10], "many": [torch.zeros(3) for _ in range(500)], "text": "x" * 1000}
    made = store.save(1, tree, {}, {})
    assert made is not None
    assert made.bytes <= checkpoints.stored_bytes({"shared": tree}) + checkpoints._SLACK_BYTES
    assert checkpoints.stored_bytes(tree) < 2_000_000, "a storage that two tensors share is stored once"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 2 MB."""
    with needs.small_disk(tmp_path / "disk", "2m") as place:
        yield place


@pytest.mark.parametrize("checked", [True, False], ids=["seen before", "met while writing"])
def test_a_full_disk_costs_one_checkpoint_and_not_the_training(
    small_disk: Path, said: list[str], monkeypatch: pytest.MonkeyPatch, checked: bool
) -> None:
    store = opened(small_disk, said, keep=1)
    large = {"model": {"weight": torch.full((200_000,), 1.0)}}  # 0.8 MB
    assert store.save(1, large, {}, {}) is not None
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(900_000))
    if not checked:  # another program takes the space between the look and the writing
        monkeypatch.setattr(checkpoints, "free_bytes", lambda directory: 1 << 40)

    assert store.save(2, large, {}, {}) is None
    assert ("MB free" if checked else "No space left on device") in said[-1]
    assert "attempt-1-round-1-step-2 was not saved" in said[-1]
    found = store.restore(manifests.complete(small_disk))
    assert found is not None
    assert found.step == 1
    assert {path.name for path in small_disk.iterdir()} == {"attempt-1-round-1-step-1", "ballast"}

    ballast.unlink()
    assert store.save(3, large, {}, {}) is not None
    store.prune()
    assert [path.name for path in small_disk.iterdir()] == ["attempt-1-round-1-step-3"]


def test_older_checkpoints_make_room_when_the_disk_is_short(small_disk: Path, said: list[str]) -> None:
    store = opened(small_disk, said, keep=3)
    large = {"model": {"weight": torch.full((150_000,), 1.0)}}  # 0.6 MB: three of them fit
    for step in (1, 2, 3):
        assert store.save(step, large, {}, {}) is not None
    assert store.save(4, large, {}, {}) is not None, said
    assert sorted(path.name[-1] for path in small_disk.iterdir()) == ["3", "4"]


class Disk:
    """A disk that takes its time: shards wait until it goes on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.goes_on = threading.Event()
        write = checkpoints._write_shard

        def slow(*given: Any) -> manifests.Shard:
            self.goes_on.wait()
            return write(*given)

        monkeypatch.setattr(checkpoints, "_write_shard", slow)


def agreed(store: checkpoints.Checkpoints) -> checkpoints.Saved | None:
    """Go through step boundaries until the save under way is over."""
    while store.under_way:
        saved = store.heard(store.under_way)
        if saved is not None:
            return saved
        time.sleep(0.001)
    return None


def test_the_training_changes_the_state_while_a_copy_is_written(
    store: checkpoints.Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch)
    weight = torch.full((1000,), 1.0)
    store.begin(1, {"model": {"weight": weight}}, {}, {})
    weight.add_(1)
    writing = store.under_way
    assert store.heard(writing) is None
    assert manifests.complete(store.directory) == []
    disk.goes_on.set()
    saved = agreed(store)
    assert saved is not None
    assert saved.step == 1
    assert restored_step(store) == 1
    assert store.under_way == 0


def test_a_save_that_is_abandoned_holds_nothing_up(
    store: checkpoints.Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank was lost meanwhile: the training goes on at once, whatever the disk does."""
    disk = Disk(monkeypatch)
    late = threading.Timer(20.0, disk.goes_on.set)
    late.start()
    store.begin(1, {"model": {"weight": torch.full((1000,), 1.0)}}, {}, {})
    assert store.abandon(), "a save was under way"
    assert not disk.goes_on.is_set(), "it waited for the disk"
    assert not store.abandon()
    late.cancel()
    disk.goes_on.set()
    store.begin(2, {"model": {"weight": torch.full((1000,), 2.0)}}, {}, {})
    assert agreed(store) is not None
    assert [path.name for path in manifests.complete(store.directory)] == ["attempt-1-round-1-step-2"]


class Twin(World):
    """A rank with a fellow that says the same."""

    def gather(self, value: object) -> list[Any]:
        return [value, value]


def test_a_rank_goes_on_only_once_all_have_done_the_present_work(tmp_path: Path, said: list[str]) -> None:
    twin = Twin(0, 2, 0, torch.device("cpu"))
    store = checkpoints.Checkpoints(tmp_path, twin, attempt=1, round_number=1, keep=3, say=said.append)
    store.begin(1, {}, {}, {})
    while store.under_way % 2:
        time.sleep(0.001)
    done = store.under_way
    for other in (done - 2, 0, done + 1):  # an exchange from before, none under way, another rank still writes
        store.heard(other)
        assert store.under_way == done
    assert manifests.complete(tmp_path) == []
    assert store.heard(done) is None
    assert store.under_way > done
    assert store.heard(done) is None, "the end of the first work is not that of the second"
    assert store.under_way > done
    store.abandon()
    assert store.under_way == 0


class Apart(World):
    """A rank with a fellow that writes to a directory of its own."""

    def gather(self, value: object) -> list[Any]:
        return [value, _of_the_fellow(value)]


def _of_the_fellow(value: object) -> object:
    if isinstance(value, tuple):
        return tuple(map(_of_the_fellow, value))
    return value.replace("rank-0", "rank-1") if isinstance(value, str) else value


def test_ranks_without_a_common_directory_are_told_how_to_get_one(tmp_path: Path, said: list[str]) -> None:
    apart = Apart(0, 2, 0, torch.device("cpu"))
    store = checkpoints.Checkpoints(tmp_path, apart, attempt=1, round_number=1, keep=3, say=said.append)
    assert store.save(1, {}, {}, {}) is None
    assert "rank-1.pt is not in the directory of rank 0: the ranks have no common directory" in said[-1]
    assert "checkpoint.to" in said[-1]
    assert "free some space" not in said[-1]
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_fails_behind_the_training_is_told(
    store: checkpoints.Checkpoints, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*given: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(checkpoints, "_write_shard", full)
        store.begin(1, {}, {}, {})
        assert agreed(store) is None
    assert "step-1 was not saved: rank 0: [Errno 28] No space left on device: free some space." in said[-1]
    assert list(store.directory.iterdir()) == []
    store.begin(2, {}, {}, {})
    assert agreed(store) is not None


def test_without_memory_for_a_copy_the_training_waits_for_the_disk(
    store: checkpoints.Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lacking(state: object) -> None:
        raise RuntimeError("can't allocate memory")

    monkeypatch.setattr(store._copies, "of", lacking)
    weight = torch.full((1000,), 1.0)
    store.begin(1, {"model": {"weight": weight}}, {}, {})
    weight.add_(1)
    assert agreed(store) is not None
    assert restored_step(store) == 1


def test_a_save_that_not_all_ranks_will_end_is_forgotten(tmp_path: Path, said: list[str]) -> None:
    twin = Twin(0, 2, 0, torch.device("cpu"))
    store = checkpoints.Checkpoints(tmp_path, twin, attempt=1, round_number=1, keep=3, say=said.append)
    store.begin(1, {}, {}, {})
    store.abandon()
    assert store.finish() is None
    assert manifests.complete(tmp_path) == []
    later = opened(tmp_path, said)
    saved(later, 2)
    later.prune()
    assert [path.name for path in tmp_path.iterdir()] == ["attempt-1-round-1-step-2"]
