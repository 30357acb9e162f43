"""The reading of whole checkpoints, done once for each state of their files.

A checkpoint is valid if its manifest is the reported one and every shard has the size and the digest that the manifest
gives. A checkpoint whose files still have their device, inode, size and time of change is not read again, unless a
fresh answer is wanted. Its path does not matter, so hard links to it are known too. Callers that ask about the same
checkpoint at once wait for one reading. Readings have their own threads, so that a large checkpoint delays nothing
else; `close` ends them early.
"""

from __future__ import annotations

import asyncio
import collections
import hashlib
import os
import stat
import threading
import time
from concurrent import futures
from pathlib import Path

from oarlock.data.checkpoints import checkpoints
from oarlock.spec import errors

READERS = 2
REMEMBERED = 10_000
SETTLED_S = 0.05
"""A file written less than this time before its reading may change again with the same time of change."""

State = tuple[tuple[int, ...], ...]


class Verifier:
    """The verifier of checkpoints. Threads and event loops may share it."""

    def __init__(self) -> None:
        self._pool = futures.ThreadPoolExecutor(READERS, thread_name_prefix="digests")
        self._known: collections.OrderedDict[tuple[str, State], None] = collections.OrderedDict()
        self._reading: dict[tuple[Path, str, bool], futures.Future[checkpoints.Checkpoint]] = {}
        self._lock = threading.Lock()
        self._closing = threading.Event()

    async def verify(self, path: Path, manifest_sha256: str = "", *, fresh: bool = False) -> checkpoints.Checkpoint:
        """Return the checkpoint after all its digests are checked. NotFound; InvalidInput names the first fault.

        `manifest_sha256` is the digest of the expected manifest; an empty text accepts any.
        """
        return await asyncio.shield(asyncio.wrap_future(self._submit(path, manifest_sha256, fresh)))

    def knows(self, path: Path, manifest_sha256: str = "") -> bool:
        """Return whether it was read before and has not changed since, by its files' sizes and times."""
        try:
            found = checkpoints.look(path, manifest_sha256=manifest_sha256 or None)
            state = _state(found)
        except (errors.OarlockError, OSError):
            return False
        with self._lock:
            return (found.manifest_sha256, state) in self._known

    def close(self) -> None:
        """End the readings under way. Their callers get Unavailable."""
        with self._lock:
            self._closing.set()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _submit(self, path: Path, manifest_sha256: str, fresh: bool) -> futures.Future[checkpoints.Checkpoint]:
        key = (path, manifest_sha256, fresh)
        with self._lock:
            reading = self._reading.get(key)
            if reading is not None:
                return reading
            if self._closing.is_set():
                raise _ending()
            reading = self._reading[key] = self._pool.submit(self._verify, path, manifest_sha256, fresh)
        reading.add_done_callback(lambda _: self._ended(key))
        return reading

    def _ended(self, key: tuple[Path, str, bool]) -> None:
        with self._lock:
            self._reading.pop(key, None)

    def _verify(self, path: Path, manifest_sha256: str, fresh: bool) -> checkpoints.Checkpoint:
        try:
            if path.is_symlink():
                raise checkpoints.broken(path, "it is a link")
            found = checkpoints.look(path, manifest_sha256=manifest_sha256 or None)
            key = found.manifest_sha256, _state(found)
            with self._lock:
                known = key in self._known
            if fresh or not known:
                began_at = time.time()
                self._forget(key)
                self._read(found)
                if _state(found) != key[1]:
                    raise checkpoints.broken(path, "it was changed while it was read")
                if all(changed_ns < (began_at - SETTLED_S) * 1e9 for *_, changed_ns in key[1]):
                    self._remember(key)
        except OSError as error:
            raise checkpoints.broken(path, f"{error.filename or 'a shard'} cannot be read: {error.strerror}") from error
        return found

    def _read(self, checkpoint: checkpoints.Checkpoint) -> None:
        for shard in checkpoint.manifest.shards:
            if self._digest(checkpoint.path / shard.file) != shard.sha256:
                raise checkpoints.broken(
                    checkpoint.path, f"{shard.file} does not have the digest that the manifest gives"
                )

    def _digest(self, path: Path) -> str:
        digest = hashlib.sha256()
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as file:
            while block := file.read(checkpoints.BLOCK_BYTES):
                if self._closing.is_set():
                    raise _ending()
                digest.update(block)
        return digest.hexdigest()

    def _remember(self, key: tuple[str, State]) -> None:
        with self._lock:
            self._known[key] = None
            while len(self._known) > REMEMBERED:
                self._known.popitem(last=False)

    def _forget(self, key: tuple[str, State]) -> None:
        with self._lock:
            self._known.pop(key, None)


def _state(checkpoint: checkpoints.Checkpoint) -> State:
    """Return the device, inode, size and time of the manifest and every shard, which change with the content. OSError.

    The inode's own time (ctime) is left out: each hard link to a checkpoint would change it and cause a reading. A
    caller that decides about a deletion asks for a fresh reading.
    """
    names = [checkpoints.MANIFEST, *(shard.file for shard in checkpoint.manifest.shards)]
    found = [(checkpoint.path / name).lstat() for name in names]
    if not all(stat.S_ISREG(each.st_mode) for each in found):
        raise checkpoints.broken(checkpoint.path, "a shard is not a regular file")
    return tuple((each.st_dev, each.st_ino, each.st_size, each.st_mtime_ns) for each in found)


def _ending() -> errors.Unavailable:
    return errors.Unavailable("The server ends before the checkpoint is read.", hint="Ask again in a moment.")
