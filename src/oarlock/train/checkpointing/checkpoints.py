"""The saving and restoring of checkpoints, by all ranks together.

The chief's shard holds the state that all ranks share (model, optimizer, position in the data). Every rank's shard
holds the rank's own state (random generators, the state of a strategy), and its pieces of tensors that the ranks have
divided among themselves (pieces.py). The steps of a save are: check the free space (if there is too little, nothing is
written), copy the state in memory, make the directory, write shards under temporary names, sync, rename, sync the
directory, read back. When every rank has confirmed its shard, the chief writes the manifest in the same way. Only then
are older checkpoints removed. After a kill at any point, the previous checkpoint is still the newest valid one
(failpoints.py).

Training goes on after the copy: a thread of each rank writes. The ranks agree at later step boundaries that all shards
are there, and that the chief has written the manifest. Each of these two pieces of work has a number, the same on all
ranks. A rank tells twice this number, and one more while its own work is not done. So where the largest of these is
twice the number, all ranks are done. A process that trains alone does both pieces at once. At most one save is under
way, so that memory for one copy is enough.

The ranks may also have a directory for each task (`separate`), from which agents upload the shards to an object store.
Then the first process of each task clears its directory, and tells its agent of the shards. The next save begins once
the chief's agent has dealt with the one before.

A save that fails (a full disk) is reported and abandoned. Training continues, and the next save tries again. A file is
loaded only if its size and digest match, and only as tensors and plain values (`weights_only`).
"""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import os
import shutil
import socket
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import asdict, astuple, dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO

import torch

from oarlock.train import errors, failpoints
from oarlock.train.checkpointing import copies, manifests, pieces
from oarlock.train.worlds import World

_PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.Size, torch.dtype, torch.device)
_MAPPINGS = (dict, OrderedDict, Counter)
_SEQUENCES = (list, tuple, set)
_PER_TENSOR_BYTES = 512  # the header and the alignment of one entry of torch's file format
_SLACK_BYTES = 64 << 10  # a manifest, and values that are not tensors
_COPIED = ".copied"  # the agent writes the name of the checkpoint here that it has dealt with last


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
    shards: tuple[Path, ...] = ()  # of all ranks

    def inherited_states(self) -> Iterator[dict[str, Any]]:
        """Read the own states of the inherited shards, one after the other."""
        for path in self.inherited:
            yield _read_shard(path, mapped=True)["own"]


@dataclass(frozen=True)
class _Save:
    """A save under way. `shards` is empty until all of them are written."""

    path: Path
    step: int
    round_number: int
    meta: dict[str, object]
    shards: tuple[manifests.Shard, ...] = ()


class Checkpoints:
    """The checkpoints in `directory`, for one attempt and round. All ranks must call each method but `close`.

    The chief calls `completed` for each checkpoint that is complete, in the thread that wrote it. If each task has a
    separate directory, `task` names the task of this process. Then the `first` process of each other task reports
    its shards (`written`, with the name of the event and its fields) once all ranks have written theirs.
    """

    def __init__(
        self,
        directory: Path,
        world: World,
        *,
        attempt: int,
        round_number: int,
        keep: int,
        say: Callable[[str], None],
        completed: Callable[[Saved], None] = lambda saved: None,
        task: str | None = None,
        first: bool = False,
        written: Callable[..., None] | None = None,
    ) -> None:
        if keep < 1:
            raise errors.StateError(f"keep={keep}: at least one checkpoint must be kept")
        self.directory = directory
        self._world = world
        self._attempt, self.round_number = attempt, round_number
        self._keep = keep
        self._say, self._completed = say, completed
        self._task, self._first, self._written = task, first, written
        self._separate = task is not None
        self._sent: str | None = None  # the name of the chief's last checkpoint, where the directory is separate
        self._good: Path | None = None  # restored, or verified when it was written
        self._copies = copies.Copies()
        self._writer = ThreadPoolExecutor(1, "oarlock-checkpoint")
        self._number = 0  # of the present work
        self._work: Future[Any] | None = None
        self._save: _Save | None = None
        self._abandoned = threading.Event()  # the save under way

    def save(
        self, step: int, shared: Mapping[str, Any], own: Mapping[str, Any], meta: Mapping[str, object]
    ) -> Saved | None:
        """Save this step, and wait for the disk. Return None if that failed; the failure was then reported."""
        self.begin(step, shared, own, meta, copied=False)
        return self.finish()

    def begin(
        self,
        step: int,
        shared: Mapping[str, Any],
        own: Mapping[str, Any],
        meta: Mapping[str, object],
        *,
        copied: bool = True,
    ) -> None:
        """Begin to save this step. The state may change at once, unless it is not `copied`. A failure is reported.

        Only the chief's `shared` counts. StateError, on every rank, if a value in it cannot be stored.
        """
        assert self._work is None, "at most one save is under way"
        if copied and self._separate and self._world.gather(self.on_its_way)[0]:
            return
        failpoints.hit("train.before_save")
        path = self.directory / manifests.directory_name(self._attempt, self.round_number, step)
        shard = {"step": step, "own": dict(own), **({"shared": dict(shared)} if self._world.is_chief else {})}
        trouble = self._make_room(path, shard)
        if trouble is not None:
            self._give_up(path, trouble)
            return
        self._save = save = _Save(path, step, self.round_number, dict(meta))
        self._abandoned = abandoned = threading.Event()
        kept, lacking = shard, False
        if copied:
            try:
                kept = self._copies.of(shard)
            except (RuntimeError, MemoryError):  # there is no memory for a copy: the training waits for the disk
                lacking = True
        world = replace(self._world)  # another round may come while the thread writes
        write = self._write_alone if world.world_size == 1 else self._write_shard
        work = self._start(lambda: write(save, world, kept, abandoned))
        if lacking:
            wait([work])

    @property
    def under_way(self) -> int:
        """The number that this rank tells the others: 0 if no save is under way, odd while it is writing."""
        return 0 if self._work is None else 2 * self._number + (not self._work.done())

    @property
    def on_its_way(self) -> bool:
        """Whether the agent still uploads the chief's last checkpoint."""
        if self._sent is None:
            return False
        try:
            return (self.directory / _COPIED).read_text() != self._sent
        except OSError:
            return True

    def heard(self, largest: int) -> Saved | None:
        """Go on with the save under way, where `largest`, of the numbers of all ranks, says so. Return it if it is
        complete now.
        """
        return self._go_on() if self._work is not None and largest == 2 * self._number else None

    def finish(self) -> Saved | None:
        """Wait for the save under way. Return it if it is complete, and None if it failed or if there is none."""
        saved = None
        while self._work is not None:
            saved = self._go_on()
        return saved

    def abandon(self) -> bool:
        """Forget the save under way. Return whether there was one. It stays incomplete, unless its manifest was being
        written. Its thread ends it soon, and nothing waits for the disk here.
        """
        lost = self._save is not None
        self._save, self._work, self._number, self._sent = None, None, 0, None
        self._abandoned.set()
        return lost

    def position(self) -> dict[str, Any]:
        """Return, in plain values, the facts that are the same on all ranks between two steps."""
        save = self._save
        under_way = [save.path.name, save.step, save.meta, [astuple(each) for each in save.shards]] if save else None
        return {"attempt": self._attempt, "round": self.round_number, "number": self._number, "save": under_way}

    def go_on(self, position: Mapping[str, Any]) -> None:
        """Go on in the place of a process that died: its part of a save under way is lost, unless it was done."""
        self._attempt, self.round_number = position["attempt"], position["round"]
        self._number = position["number"]
        if position["save"] is not None:
            name, step, meta, shards = position["save"]
            told = tuple(manifests.Shard(*each) for each in shards)
            self._save = save = _Save(self.directory / name, step, self.round_number, meta, told)
            self._number -= 1
            if not told:
                self._start(lambda: "a process died while it was written")
            else:
                self._start(lambda: self._complete(save) if self._world.is_chief else None)

    def close(self) -> None:
        """End the thread. A save under way is completed where that takes no other rank."""
        if self._world.world_size == 1:
            with contextlib.suppress(Exception):  # another error has ended the training
                self.finish()
        self.abandon()
        self._writer.shutdown()

    def _start(self, work: Callable[[], Any]) -> Future[Any]:
        self._number += 1
        self._work = self._writer.submit(_attempt, work)
        return self._work

    def _go_on(self) -> Saved | None:
        """Wait for the present work of all ranks, and begin the next."""
        assert self._work is not None
        assert self._save is not None
        work, save = self._work, self._save
        self._work = None
        outcome = work.result()
        if save.shards or self._world.world_size == 1:
            told = (outcome.bytes, outcome.manifest_sha256) if isinstance(outcome, Saved) else outcome
            saved = self._world.gather(told)[0]
            self._save = None
            if not isinstance(saved, str):
                self._sent = save.path.name if self._separate and self._world.is_chief else None
                return Saved(save.path, save.step, *saved)
            self._give_up(save.path, saved)
            return None
        shards = _of_all(self._world.gather(_told(outcome)))
        if isinstance(shards, str):
            self._save = None
            self._give_up(save.path, shards)
            return None
        self._save = complete = replace(save, shards=shards)
        if self._separate and self._first and not self._world.is_chief:
            self._tell_shards(save.path, save.step, shards)
            self._good = save.path
            self.prune()
        self._start(lambda: self._complete(complete) if self._world.is_chief else None)
        return None

    def _tell_shards(self, path: Path, step: int, shards: Sequence[manifests.Shard]) -> None:
        if self._written is not None:
            told = [asdict(shard) for shard in shards if (path / shard.file).exists()]
            self._written("shards", step=step, path=str(path), shards=told)

    def _write_alone(
        self, save: _Save, world: World, shard: Mapping[str, Any], abandoned: threading.Event
    ) -> Saved | str:
        """Write a checkpoint whole, where there is no other rank to agree with."""
        shards = _of_all([_told(_attempt(lambda: _write(save.path, world, shard, abandoned)))])
        return shards if isinstance(shards, str) else self._complete(replace(save, shards=shards))

    def _write_shard(
        self, save: _Save, world: World, shard: Mapping[str, Any], abandoned: threading.Event
    ) -> manifests.Shard:
        return _write(save.path, world, shard, abandoned)

    def prune(self, keep: int | None = None) -> None:
        """Remove checkpoints older than the newest `keep` complete ones, but never the one that was verified.

        Checkpoints of later attempts are not touched.
        """
        if not self._clears or self._good is None:
            return
        ours = [
            path for path in manifests.attempted(self.directory) if _key(path)[:2] <= (self._attempt, self.round_number)
        ]
        kept = [path for path in ours if (path / manifests.FILE).is_file()][: keep or self._keep]
        for path in ours:
            if path not in kept and _key(path) < _key(self._good):
                _attempt(functools.partial(manifests.remove, path))

    def restore(self, candidates: Sequence[Path]) -> Restored | None:
        """Load the first valid candidate, the same on every rank. Return None if there are no candidates.

        CheckpointError if there are candidates but none is valid: only a person may decide to start again.
        """
        agreed = [Path(each) for each in self._world.gather([str(path) for path in candidates])[0]]
        if self._separate:
            agreed = [self.directory / path.name for path in agreed]
        tasks = self._world.gather(self._task)
        fellows = [rank for rank, task in enumerate(tasks) if task == self._task]  # they see this directory
        for path in agreed:
            faults = [each for each in self._world.gather(self._fault(path, fellows)) if each is not None]
            if not faults:
                return self._load(path)
            self._say(f"checkpoint {path} is not valid: {faults[0]}; trying the one before it")
        if agreed:
            raise errors.CheckpointError(
                f"none of the {len(agreed)} checkpoints is valid (the first is {agreed[0]}). Restore a "
                "good copy, or remove them or pass Session(resume=False) to begin again from the first step."
            )
        return None

    def _fault(self, path: Path, fellows: Sequence[int]) -> str | None:
        """Return a fault that this rank found, or None.

        Each rank checks the chief's shard, which all load, and a part of the rest: together the `fellows`, the ranks
        that see this directory, check all of it. A rank may load pieces of any shard.
        """
        try:
            manifest = manifests.read(path)
        except errors.CheckpointError as fault:
            return str(fault)
        ranks = {0, *range(fellows.index(self._world.rank), manifest.world_size, len(fellows))}
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
        shards = tuple(path / shard.file for shard in manifest.shards)
        inherited = shards[self._world.rank :: self._world.world_size] if own is None else ()
        return Restored(
            path, manifest.step, chiefs["shared"], own, manifest.world_size, known, chiefs["own"], inherited, shards
        )

    def _make_room(self, path: Path, shard: Mapping[str, Any]) -> str | None:
        """Return None if all shards fit on the disk, else the reason why not."""
        needed, refused = 0, None
        try:
            needed = stored_bytes(shard)
        except errors.StateError as error:
            refused = str(error)
        unreachable: str | None = _attempt(lambda: self.directory.mkdir(parents=True, exist_ok=True))
        if self._clears and unreachable is None and path.exists():  # an earlier try at this step
            unreachable = _attempt(lambda: manifests.remove(path))
        offers = self._world.gather((refused, unreachable))
        for why, _ in offers:
            if why is not None:
                raise errors.StateError(why)
        for _, why in offers:
            if why is not None:
                return str(why)
        short = self._short(needed)
        if short is not None:
            self.prune(keep=1)
            self._world.gather(None)  # they are removed
            short = self._short(needed)
        return short

    def _short(self, needed: int) -> str | None:
        """Return None if each disk has room for the shards that go there, else the reason. The same on all ranks."""
        disk = socket.gethostname() if self._separate else ""
        told = self._world.gather((disk, needed, free_bytes(self.directory)))
        for one in sorted({disk for disk, _, _ in told}):
            total = sum(size for disk, size, _ in told if disk == one)
            free = min(free for disk, _, free in told if disk == one)
            if free < total:
                where = f"{self.directory} of {one}" if one else str(self.directory)
                return f"it needs {total / 1e6:.1f} MB and {where} has {free / 1e6:.1f} MB free: free some space"
        return None

    @property
    def _clears(self) -> bool:
        """Whether this process removes what is in the way in its directory."""
        return self._first if self._separate else self._world.is_chief

    def _complete(self, save: _Save) -> Saved:
        """Check the sizes of all shards, then write the manifest. Only the chief does this."""
        manifests.sync_directory(save.path)
        if not self._separate:
            _check_shared(save)
        manifest = manifests.Manifest(
            save.step,
            self._attempt,
            save.round_number,
            len(save.shards),
            time.time(),
            save.shards,
            save.meta,
        )
        sha256 = manifests.write(save.path, manifest)
        for shard in manifests.read(save.path).shards:
            if self._separate and not (save.path / shard.file).exists():
                continue  # on the disk of another task
            size = (save.path / shard.file).stat().st_size
            if size != shard.bytes:
                raise OSError(f"{shard.file} has {size} bytes, but {shard.bytes} were written")
        self._good = save.path
        saved = Saved(save.path, save.step, manifest.bytes, sha256)
        trouble = _attempt(lambda: self._report(saved))
        if trouble is not None:
            self._say(f"checkpoint {save.path.name} is complete, but: {trouble}")
        return saved

    def _report(self, saved: Saved) -> None:
        self._completed(saved)
        failpoints.hit("train.after_checkpoint_reported")
        self.prune()

    def _give_up(self, path: Path, trouble: str) -> None:
        if self._clears and path.is_dir():
            _attempt(lambda: manifests.remove(path))
        self._say(f"checkpoint {path.name} was not saved: {trouble}. Training goes on with the previous checkpoint")


def _check_shared(save: _Save) -> None:
    """Check that the shards of all ranks are in the chief's directory."""
    missing = [shard.file for shard in save.shards if not (save.path / shard.file).exists()]
    if missing:
        raise OSError(
            f"{missing[0]} is not in the directory of rank 0: the ranks have no common directory for checkpoints. Let"
            " checkpoint.to of the job file name a path that all of them see or a URL of an object store, or let the"
            " server's settings name a place for all jobs"
        )


def stored_bytes(tree: Any, where: str = "state", seen: set[int] | None = None) -> int:
    """Return an upper estimate of the size of `tree` on disk, in bytes.

    StateError for a value that could not be loaded again without running foreign code.
    """
    seen = set() if seen is None else seen
    if isinstance(tree, torch.Tensor):
        if pieces.is_divided(tree):
            raise errors.StateError(
                f"{where} is a tensor that ranks have divided (DTensor), in an object of which this is not known: give "
                "the session the model and the optimizer themselves, or an object that has them as attributes."
            )
        if tree.is_sparse:  # the momentum of an embedding
            return stored_bytes([tree._indices(), tree._values()], where, seen) + _PER_TENSOR_BYTES
        if tree.layout is not torch.strided:
            raise errors.StateError(f"{where} is a tensor of layout {tree.layout}: let state_dict() give a dense one.")
        storage = tree.untyped_storage()
        if storage.data_ptr() in seen:
            return _PER_TENSOR_BYTES
        seen.add(storage.data_ptr())
        return storage.nbytes() + _PER_TENSOR_BYTES
    if type(tree) in _MAPPINGS:
        for key in tree:
            if type(key) not in _PLAIN:
                stored_bytes(key, f"the key {key!r} of {where}")
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
    """A file that computes the digest and the number of the bytes written to it. It refuses more once `abandoned`."""

    def __init__(self, file: BinaryIO, abandoned: threading.Event) -> None:
        self._file, self._abandoned = file, abandoned
        self.sha256 = hashlib.sha256()
        self.bytes = 0

    def write(self, data: bytes) -> int:
        if self._abandoned.is_set():
            raise OSError("this save was abandoned")
        self._file.write(data)
        self.sha256.update(data)
        self.bytes += len(data)
        failpoints.hit("train.during_shard_write")
        return len(data)

    def flush(self) -> None:
        self._file.flush()


def _told(written: manifests.Shard | str) -> Any:
    return astuple(written) if isinstance(written, manifests.Shard) else written


def _of_all(told: Sequence[Any]) -> tuple[manifests.Shard, ...] | str:
    """Return the shards of all ranks, or the reason why one is missing."""
    failpoints.hit("train.after_shards_gathered")
    for rank, each in enumerate(told):
        if isinstance(each, str):
            return f"rank {rank}: {each}"
    return tuple(manifests.Shard(*each) for each in told)


def _key(path: Path) -> tuple[int, int, int]:
    return manifests.order(path) or (0, 0, 0)


def _write(directory: Path, world: World, shard: Mapping[str, Any], abandoned: threading.Event) -> manifests.Shard:
    directory.mkdir(exist_ok=True)  # the first rank makes it
    if world.is_chief:
        manifests.sync_directory(directory.parent)
        failpoints.hit("train.after_make_directory")
    return _write_shard(directory / f"rank-{world.rank}.pt", shard, abandoned)


def _write_shard(path: Path, shard: Mapping[str, Any], abandoned: threading.Event) -> manifests.Shard:
    temporary = path.with_name(f"{path.name}.tmp")
    with temporary.open("wb") as file:
        hashing = _Hashing(file, abandoned)
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


def _read_shard(path: Path, *, mapped: bool = False) -> dict[str, Any]:
    """Load a shard. If it is `mapped`, only those of its tensors are read that are looked at."""
    try:
        content: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
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
        room = ": free some space" if getattr(cause, "errno", None) in (errno.ENOSPC, errno.EDQUOT) else ""
        return (f"{cause}" or type(cause).__name__) + room
