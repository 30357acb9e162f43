"""Saving and restoring, done by all ranks together.

The chief's shard holds what is the same everywhere (model, optimizer, position in the data); every rank's shard holds
what is its own (random generators, what a strategy keeps). A save goes: is there room (else nothing is touched),
directory, shards under temporary names, sync, rename, sync of the directory, read back; when every rank has said that
its shard holds, the chief writes the manifest the same way. Only then are older checkpoints removed. Killed anywhere in
between, the previous checkpoint is still the newest one that verifies (failpoints.py).

A save that fails (a full disk) is said and given up; training goes on, and the next one tries again. Nothing is loaded
before its size and digest hold, and then only as tensors and plain values (`weights_only`).
"""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch

from oarlock.train import errors, failpoints, manifests
from oarlock.train.world import World

_PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.Size, torch.dtype, torch.device)
_MAPPINGS = (dict, OrderedDict, Counter)
_SEQUENCES = (list, tuple, set)
_PER_TENSOR_BYTES = 512  # the header and the alignment of one entry of torch's file format
_SLACK_BYTES = 64 << 10  # a manifest, and what is not a tensor


@dataclass(frozen=True)
class Saved:
    """A checkpoint just made: verified, complete."""

    path: Path
    step: int
    bytes: int
    manifest_sha256: str


@dataclass(frozen=True)
class Restored:
    """What a checkpoint held. `own` is None when the number of ranks has changed since: nothing in it is this rank's
    then.
    """

    path: Path
    step: int
    shared: dict[str, Any]
    own: dict[str, Any] | None
    world_size: int
    noise: float | None = None  # the gradients', when it was saved


class Checkpoints:
    """The checkpoints under `directory`, written by this attempt and round. All methods are called by all ranks."""

    def __init__(
        self, directory: Path, world: World, *, attempt: int, round_number: int, keep: int, say: Callable[[str], None]
    ) -> None:
        if keep < 1:
            raise errors.StateError(f"keep={keep}: at least one checkpoint has to be kept")
        self.directory = directory
        self._world = world
        self._attempt, self._round = attempt, round_number
        self._keep = keep
        self._say = say
        self._good: Path | None = None  # restored, or verified when it was written

    def save(
        self, step: int, shared: Mapping[str, Any], own: Mapping[str, Any], meta: Mapping[str, object]
    ) -> Saved | None:
        """Save this step; None when it could not be saved, which has then been said.

        `shared` counts on the chief only. Raises StateError, on every rank, when something in it cannot be stored.
        """
        failpoints.hit("train.before_save")
        path = self.directory / manifests.directory_name(self._attempt, self._round, step)
        shard = {"step": step, "own": dict(own), **({"shared": dict(shared)} if self._world.is_chief else {})}
        trouble = self._make_room(path, shard)
        if trouble is None:
            written = _attempt(lambda: _write_shard(path / f"rank-{self._world.rank}.pt", shard))
            everyone: list[manifests.Shard | str] = self._world.gather(written)
            failpoints.hit("train.after_shards_gathered")
            trouble = next(
                (f"rank {rank}: {each}" for rank, each in enumerate(everyone) if isinstance(each, str)), None
            )
        if trouble is None:
            saved: Saved | str = self._world.gather(
                _attempt(lambda: self._complete(path, step, everyone, meta)) if self._world.is_chief else None
            )[0]
            if isinstance(saved, Saved):
                return saved
            trouble = saved
        self._give_up(path, trouble)
        return None

    def prune(self, keep: int | None = None) -> None:
        """Remove what is older than the newest `keep` complete checkpoints, but never the one known to be good.

        Only what this attempt and those before it wrote: a later one's is not ours.
        """
        if not self._world.is_chief or self._good is None:
            return
        ours = [path for path in manifests.attempted(self.directory) if _key(path)[:2] <= (self._attempt, self._round)]
        kept = [path for path in ours if (path / manifests.FILE).is_file()][: keep or self._keep]
        for path in ours:
            if path not in kept and _key(path) < _key(self._good):
                _attempt(functools.partial(manifests.remove, path))

    def restore(self, candidates: Sequence[Path]) -> Restored | None:
        """Load the first of these that holds, the same on every rank; None when there are none.

        Raises CheckpointError when there are some and none holds: to begin again is then for a person to decide.
        """
        agreed: list[Path] = self._world.gather(list(candidates))[0]
        for path in agreed:
            faults = [each for each in self._world.gather(self._fault(path)) if each is not None]
            if not faults:
                return self._load(path)
            self._say(f"checkpoint {path} does not hold: {faults[0]}; trying the one before")
        if agreed:
            raise errors.CheckpointError(
                f"none of the {len(agreed)} checkpoints holds (the first is {agreed[0]}). Bring back a good copy, "
                "or remove them or pass Session(resume=False) to begin again from the first step."
            )
        return None

    def _fault(self, path: Path) -> str | None:
        """The ranks share the reading: each checks what it will load itself, and its part of the rest."""
        try:
            manifest = manifests.read(path)
        except errors.CheckpointError as fault:
            return str(fault)
        ranks = {0, *range(self._world.rank, manifest.world_size, self._world.world_size)}
        return manifests.fault(path, manifest, sorted(ranks))

    def _load(self, path: Path) -> Restored:
        manifest = manifests.read(path)
        chiefs = _read_shard(path / manifest.shards[0].file)
        own: dict[str, Any] | None = None
        if manifest.world_size == self._world.world_size:
            ours = chiefs if self._world.is_chief else _read_shard(path / manifest.shards[self._world.rank].file)
            own = ours["own"]
        self._good = path
        noise = manifest.meta.get("noise")
        known = float(noise) if isinstance(noise, (int, float)) else None
        return Restored(path, manifest.step, chiefs["shared"], own, manifest.world_size, known)

    def _make_room(self, path: Path, shard: Mapping[str, Any]) -> str | None:
        """The chief makes the directory, where the shards of all ranks will fit; what keeps it from that, else None."""
        needed, refused = 0, None
        try:
            needed = stored_bytes(shard)
        except errors.StateError as error:
            refused = str(error)
        unreachable: str | None = _attempt(lambda: self.directory.mkdir(parents=True, exist_ok=True))
        offers = self._world.gather((needed, refused, unreachable))
        for _, why, _ in offers:
            if why is not None:
                raise errors.StateError(why)
        for _, _, why in offers:
            if why is not None:
                return str(why)
        total = sum(each for each, _, _ in offers)
        if self._free() < total:
            self.prune(keep=1)
        free = self._free()
        if free < total:
            return f"it needs {total / 1e6:.1f} MB and {self.directory} has {free / 1e6:.1f} MB free"
        made: str | None = _attempt(lambda: _make_directory(path)) if self._world.is_chief else None
        return self._world.gather(made)[0]

    def _free(self) -> int:
        """The least that any rank sees free, after what every rank did before."""
        return min(self._world.gather(free_bytes(self.directory)))

    def _complete(
        self, path: Path, step: int, shards: Sequence[manifests.Shard | str], meta: Mapping[str, object]
    ) -> Saved:
        """The manifest, and a last look at what it promises. The chief's part."""
        manifests.sync_directory(path)
        parts = tuple(shard for shard in shards if isinstance(shard, manifests.Shard))
        manifest = manifests.Manifest(
            step, self._attempt, self._round, self._world.world_size, time.time(), parts, dict(meta)
        )
        sha256 = manifests.write(path, manifest)
        for shard in manifests.read(path).shards:
            size = (path / shard.file).stat().st_size
            if size != shard.bytes:
                raise OSError(f"{shard.file} has {size} bytes, {shard.bytes} were written")
        self._good = path
        return Saved(path, step, manifest.bytes, sha256)

    def _give_up(self, path: Path, trouble: str) -> None:
        if self._world.is_chief and path.is_dir():
            _attempt(lambda: manifests.remove(path))
        self._say(
            f"checkpoint {path.name} was not saved: {trouble}. "
            "Training goes on and the previous one is kept; free some space, the next one tries again"
        )


def stored_bytes(tree: Any, where: str = "state", seen: set[int] | None = None) -> int:
    """How large `tree` will be on disk, about, never less. Raises StateError for what could not be loaded again without
    running foreign code.
    """
    seen = set() if seen is None else seen
    if isinstance(tree, torch.Tensor):
        storage = tree.untyped_storage()
        if storage.data_ptr() in seen:
            return _PER_TENSOR_BYTES
        seen.add(storage.data_ptr())
        return storage.nbytes() + _PER_TENSOR_BYTES
    if type(tree) in _MAPPINGS:
        return sum(stored_bytes(value, f"{where}.{key}", seen) + len(str(key)) for key, value in tree.items())
    if type(tree) in _SEQUENCES:
        return sum(stored_bytes(value, f"{where}[{number}]", seen) for number, value in enumerate(tree))
    if type(tree) not in _PLAIN:
        raise errors.StateError(
            f"{where} is a {type(tree).__module__}.{type(tree).__qualname__}: a checkpoint holds tensors and plain "
            "Python values only. Let its state_dict() give numbers, strings, lists, dicts or tensors, such as float(x)."
        )
    return len(tree) + 16 if isinstance(tree, (str, bytes)) else 16


def free_bytes(directory: Path) -> int:
    return shutil.disk_usage(directory).free - _SLACK_BYTES


class _Hashing:
    """A file that knows the digest and the number of the bytes it was given."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.sha256 = hashlib.sha256()
        self.bytes = 0

    def write(self, data: bytes) -> int:
        self._file.write(data)
        self.sha256.update(data)
        self.bytes += len(data)
        failpoints.hit("train.during_shard_write")
        return len(data)

    def flush(self) -> None:
        self._file.flush()


def _key(path: Path) -> tuple[int, int, int]:
    return manifests.order(path) or (0, 0, 0)


def _make_directory(path: Path) -> None:
    if path.exists():
        manifests.remove(path)
    path.mkdir()
    manifests.sync_directory(path.parent)
    failpoints.hit("train.after_make_directory")


def _write_shard(path: Path, shard: Mapping[str, Any]) -> manifests.Shard:
    temporary = path.with_name(f"{path.name}.tmp")
    with temporary.open("wb") as file:
        hashing = _Hashing(file)
        torch.save(shard, hashing)
        file.flush()
        failpoints.hit("train.after_shard_write")
        os.fsync(file.fileno())
    failpoints.hit("train.after_shard_sync")
    temporary.rename(path)
    failpoints.hit("train.after_shard_rename")
    manifests.sync_directory(path.parent)
    written = manifests.Shard(path.name, hashing.bytes, hashing.sha256.hexdigest())
    if path.stat().st_size != written.bytes or manifests.digest(path) != written.sha256:
        raise OSError(f"{path} does not read back as it was written")
    return written


def _read_shard(path: Path) -> dict[str, Any]:
    try:
        content: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as cause:
        raise errors.CheckpointError(
            f"{path} is whole, but torch {torch.__version__} cannot load it ({cause}). "
            "Restore with the version that wrote it."
        ) from cause
    return content


def _attempt(work: Callable[[], Any]) -> Any:
    """What `work` gives, or the reason as a string where the disk (or torch's writer on it) refused."""
    try:
        return work()
    except (OSError, RuntimeError) as error:
        cause = (
            error.__context__ if isinstance(error.__context__, OSError) else error
        )  # torch's writer wraps the disk's own error
        return f"{cause}" or type(cause).__name__
