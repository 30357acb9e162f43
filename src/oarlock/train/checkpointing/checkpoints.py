"""The saving and restoring of checkpoints, by all ranks together.

The chief's shard holds the state that all ranks share (model, optimizer, position in the data). Every rank's shard
holds the rank's own state (random generators, the state of a strategy). The steps of a save are: check the free space
(if there is too little, nothing is written), make the directory, write shards under temporary names, sync, rename, sync
the directory, read back. When every rank has confirmed its shard, the chief writes the manifest in the same way. Only
then are older checkpoints removed. After a kill at any point, the previous checkpoint is still the newest valid one
(failpoints.py).

A save that fails (a full disk) is reported and abandoned. Training continues, and the next save tries again. A file is
loaded only if its size and digest match, and only as tensors and plain values (`weights_only`).
"""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import torch

from oarlock.train import errors, failpoints
from oarlock.train.checkpointing import manifests
from oarlock.train.worlds import World

_PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.Size, torch.dtype, torch.device)
_MAPPINGS = (dict, OrderedDict, Counter)
_SEQUENCES = (list, tuple, set)
_PER_TENSOR_BYTES = 512  # the header and the alignment of one entry of torch's file format
_SLACK_BYTES = 64 << 10  # a manifest, and values that are not tensors


@dataclass(frozen=True)
class Saved:
    """A checkpoint just saved: complete and verified."""

    path: Path
    step: int
    bytes: int
    manifest_sha256: str


@dataclass(frozen=True)
class Restored:
    """The content of a checkpoint.

    `own` is None if the number of ranks has changed, so that no shard fits this rank. `inherited` are the shards of
    which this rank then takes care, each rank of others.
    """

    path: Path
    step: int
    shared: dict[str, Any]
    own: dict[str, Any] | None
    world_size: int
    noise: float | None = None  # of the gradients, when it was saved
    chiefs: dict[str, Any] = field(default_factory=dict)  # the chief's own state
    inherited: tuple[Path, ...] = ()

    def inherited_states(self) -> Iterator[dict[str, Any]]:
        """Read the own states of the inherited shards, one after the other."""
        for path in self.inherited:
            yield _read_shard(path)["own"]


class Checkpoints:
    """The checkpoints in `directory`, for one attempt and round. All ranks must call each method."""

    def __init__(
        self, directory: Path, world: World, *, attempt: int, round_number: int, keep: int, say: Callable[[str], None]
    ) -> None:
        if keep < 1:
            raise errors.StateError(f"keep={keep}: at least one checkpoint must be kept")
        self.directory = directory
        self._world = world
        self._attempt, self._round = attempt, round_number
        self._keep = keep
        self._say = say
        self._good: Path | None = None  # restored, or verified when it was written

    def save(
        self, step: int, shared: Mapping[str, Any], own: Mapping[str, Any], meta: Mapping[str, object]
    ) -> Saved | None:
        """Save this step. Return None if that failed; the failure was then reported.

        Only the chief's `shared` counts. StateError, on every rank, if a value in it cannot be stored.
        """
        failpoints.hit("train.before_save")
        path = self.directory / manifests.directory_name(self._attempt, self._round, step)
        shard = {"step": step, "own": dict(own), **({"shared": dict(shared)} if self._world.is_chief else {})}
        trouble = self._make_room(path, shard)
        if trouble is None:
            written = _attempt(lambda: _write_shard(path / f"rank-{self._world.rank}.pt", shard))
            told = self._world.gather(astuple(written) if isinstance(written, manifests.Shard) else written)
            everyone = [each if isinstance(each, str) else manifests.Shard(*each) for each in told]
            failpoints.hit("train.after_shards_gathered")
            trouble = next(
                (f"rank {rank}: {each}" for rank, each in enumerate(everyone) if isinstance(each, str)), None
            )
        if trouble is None:
            done = _attempt(lambda: self._complete(path, step, everyone, meta)) if self._world.is_chief else None
            saved = self._world.gather((done.bytes, done.manifest_sha256) if isinstance(done, Saved) else done)[0]
            if not isinstance(saved, str):
                return Saved(path, step, *saved)
            trouble = saved
        self._give_up(path, trouble)
        return None

    def prune(self, keep: int | None = None) -> None:
        """Remove checkpoints older than the newest `keep` complete ones, but never the one that was verified.

        Checkpoints of later attempts are not touched.
        """
        if not self._world.is_chief or self._good is None:
            return
        ours = [path for path in manifests.attempted(self.directory) if _key(path)[:2] <= (self._attempt, self._round)]
        kept = [path for path in ours if (path / manifests.FILE).is_file()][: keep or self._keep]
        for path in ours:
            if path not in kept and _key(path) < _key(self._good):
                _attempt(functools.partial(manifests.remove, path))

    def restore(self, candidates: Sequence[Path]) -> Restored | None:
        """Load the first valid candidate, the same on every rank. Return None if there are no candidates.

        CheckpointError if there are candidates but none is valid: only a person may decide to start again.
        """
        agreed = [Path(each) for each in self._world.gather([str(path) for path in candidates])[0]]
        for path in agreed:
            faults = [each for each in self._world.gather(self._fault(path)) if each is not None]
            if not faults:
                return self._load(path)
            self._say(f"checkpoint {path} is not valid: {faults[0]}; trying the one before it")
        if agreed:
            raise errors.CheckpointError(
                f"none of the {len(agreed)} checkpoints is valid (the first is {agreed[0]}). Restore a "
                "good copy, or remove them or pass Session(resume=False) to begin again from the first step."
            )
        return None

    def _fault(self, path: Path) -> str | None:
        """Return a fault that any rank found, or None.

        Each rank checks the shards it will load, and a part of the rest.
        """
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
        shards = manifest.shards[self._world.rank :: self._world.world_size]
        inherited = tuple(path / shard.file for shard in shards) if own is None else ()
        return Restored(
            path, manifest.step, chiefs["shared"], own, manifest.world_size, known, chiefs["own"], inherited
        )

    def _make_room(self, path: Path, shard: Mapping[str, Any]) -> str | None:
        """Let the chief make the directory, if all shards fit on the disk.

        Return the reason if it cannot, else None.
        """
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
        """Return the least free space in bytes that any rank sees, after all ranks have finished the step before."""
        return min(self._world.gather(free_bytes(self.directory)))

    def _complete(
        self, path: Path, step: int, shards: Sequence[manifests.Shard | str], meta: Mapping[str, object]
    ) -> Saved:
        """Check the sizes of all shards, then write the manifest. Only the chief does this."""
        manifests.sync_directory(path)
        parts = tuple(shard for shard in shards if isinstance(shard, manifests.Shard))
        manifest = manifests.Manifest(
            step, self._attempt, self._round, self._world.world_size, time.time(), parts, dict(meta)
        )
        sha256 = manifests.write(path, manifest)
        for shard in manifests.read(path).shards:
            size = (path / shard.file).stat().st_size
            if size != shard.bytes:
                raise OSError(f"{shard.file} has {size} bytes, but {shard.bytes} were written")
        self._good = path
        return Saved(path, step, manifest.bytes, sha256)

    def _give_up(self, path: Path, trouble: str) -> None:
        if self._world.is_chief and path.is_dir():
            _attempt(lambda: manifests.remove(path))
        self._say(
            f"checkpoint {path.name} was not saved: {trouble}. "
            "Training continues with the previous checkpoint; free some space for the next one"
        )


def stored_bytes(tree: Any, where: str = "state", seen: set[int] | None = None) -> int:
    """Return an upper estimate of the size of `tree` on disk, in bytes.

    StateError for a value that could not be loaded again without running foreign code.
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
    """A file that computes the digest and the number of the bytes written to it."""

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
        raise OSError(f"{path} has other content than was written")
    return written


def _read_shard(path: Path) -> dict[str, Any]:
    try:
        content: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as cause:
        raise errors.CheckpointError(
            f"{path} is complete, but torch {torch.__version__} cannot load it ({cause}). "
            "Restore with the version that wrote it."
        ) from cause
    return content


def _attempt(work: Callable[[], Any]) -> Any:
    """Return the result of `work`, or the reason as a string if the disk (or torch's writer) failed."""
    try:
        return work()
    except (OSError, RuntimeError) as error:
        cause = (
            error.__context__ if isinstance(error.__context__, OSError) else error
        )  # torch's writer wraps the disk's own error
        return f"{cause}" or type(cause).__name__
