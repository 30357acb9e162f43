"""The command `prune URL --keep N [--memory FILE]`: remove old copies of checkpoints from a place.

A copy is whole if its manifest is there and every shard has the size that the manifest gives. A copy is good if every
digest matches too, which takes a download. FILE records which copies were read, so that a copy is read again only if
the object store reports a change. The best N whole copies stay, and always a good one (`keeping`). Incomplete
copies older than the best good one are removed too; without a good copy nothing is removed. Files that are not named
like a checkpoint stay. The manifest is removed first, so that a half removed copy is not a checkpoint.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Any

import msgspec

from oarlock.data import durable
from oarlock.data.checkpoints import checkpoints
from oarlock.data.transfers import places, reporting, schemes
from oarlock.spec import errors
from oarlock.spec.checkpoints import keeping

READ_BYTES = 8 << 20
_NAME = re.compile(r"attempt-(\d+)-round-(\d+)-step-(\d+)")


class Copy(msgspec.Struct, frozen=True):
    """A copy. `files` gives each file's path in its file system by its name in the checkpoint.

    `order` is that of `Checkpoint`. `shards` is empty unless the copy is whole. `state` changes with any of its files.
    """

    name: str
    order: tuple[int, ...]
    files: dict[str, str]
    shards: tuple[checkpoints.Shard, ...] = ()
    state: str = ""

    @property
    def whole(self) -> bool:
        return bool(self.shards)


class Kept(msgspec.Struct, frozen=True):
    """The result: the number of removed copies, and the names of those that are left."""

    removed: int
    kept: tuple[str, ...]


def run(url: str, keep: int, memory: Path | None = None, task: str | None = None) -> Kept:
    """Remove old copies. `task`: as in `places`. Errors: those of `places`."""
    kind = "" if schemes.signed(url) else schemes.of(url)
    if kind == "file":
        removed = checkpoints.prune(places.local(url), keep)
        return Kept(len(removed), tuple(one.path.name for one in checkpoints.listed(places.local(url))))
    if kind in ("http", "https"):
        raise errors.InvalidInput(f"{url}: nothing can be removed by {kind}", hint="use file, s3 or gs")
    system, root = places.filesystem(url, task)
    with places.foreign(url):
        copies = listed(system, root)
        doomed = spare(copies, keep, Reader(system, Memory(memory)))
        for copy in doomed:
            reporting.detail(f"removing {copy.name}")
            remove(system, copy)
    gone = {copy.name for copy in doomed}
    return Kept(len(doomed), tuple(copy.name for copy in copies if copy.name not in gone and copy.whole))


class Memory:
    """The file with the states of the good copies that were read. Without it each copy is read again."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._states: dict[str, str] = {}
        try:
            if path is not None:
                self._states = msgspec.json.decode(path.read_bytes(), type=dict[str, str])
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
            pass  # the file only saves work

    def knows(self, copy: Copy) -> bool:
        return bool(copy.state) and self._states.get(copy.name) == copy.state

    def note(self, copy: Copy, *, good: bool) -> None:
        self._states.pop(copy.name, None)
        if good:
            self._states[copy.name] = copy.state
        if self._path is not None:
            durable.write(self._path, msgspec.json.encode(self._states))


class Reader:
    """The check whether a copy is good."""

    def __init__(self, system: Any, memory: Memory) -> None:
        self._system, self.memory = system, memory

    def good(self, question: keeping.Question[Copy]) -> bool:
        copy = question.checkpoint
        if self.memory.knows(copy) and not question.fresh:
            return True
        reporting.detail(f"reading {copy.name}")
        good = all(digest(self._system, copy.files[shard.file]) == shard.sha256 for shard in copy.shards)
        self.memory.note(copy, good=good)
        if not good:
            reporting.detail(f"{copy.name} does not have the digests that its manifest gives")
        return good


def digest(system: Any, path: str) -> str:
    """Return the SHA-256 of an object, in hexadecimal; empty if there is none."""
    sha256 = hashlib.sha256()
    try:
        with system.open(path, "rb", block_size=READ_BYTES, cache_type="readahead") as file:
            while block := file.read(READ_BYTES):
                sha256.update(block)
    except FileNotFoundError:
        return ""
    return sha256.hexdigest()


def spare(copies: list[Copy], keep: int, reader: Reader) -> list[Copy]:
    """Return the copies that may be removed, oldest first."""
    whole = sorted((copy for copy in copies if copy.whole), key=lambda copy: copy.order, reverse=True)
    if not whole:
        return []
    doomed = keeping.settle(keeping.spare(whole, keep, reader.memory.knows), reader.good)
    torn = [copy for copy in copies if not copy.whole and copy.order < whole[0].order]
    return sorted([*doomed, *torn], key=lambda copy: copy.order)


def listed(system: Any, root: str) -> list[Copy]:
    """Return the copies below `root` that are named like a checkpoint."""
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for path, info in system.find(root, detail=True).items():
        name, _, file = path.removeprefix(f"{root.rstrip('/')}/").partition("/")
        if file and _NAME.fullmatch(name):
            found.setdefault(name, {})[file] = {**info, "name": path}
    return [
        Copy(
            name,
            tuple(int(part) for part in _NAME.fullmatch(name).groups()),  # type: ignore[union-attr]  # matched above
            {file: info["name"] for file, info in files.items()},
            shards(system, root, name, files),
            state(files),
        )
        for name, files in found.items()
    ]


def shards(system: Any, root: str, name: str, files: dict[str, dict[str, Any]]) -> tuple[checkpoints.Shard, ...]:
    """Return the shards of a whole copy; none if the manifest is missing or a size differs."""
    info = files.get(checkpoints.MANIFEST)
    if info is None or (info.get("size") or 0) > checkpoints.MAX_MANIFEST_BYTES:
        return ()
    try:
        manifest = msgspec.json.decode(system.cat_file(info["name"]), type=checkpoints.Manifest)
        checkpoints.check(Path(root, name), manifest)
    except (FileNotFoundError, msgspec.MsgspecError, UnicodeDecodeError, errors.InvalidInput):
        return ()
    whole = all(shard.file in files and files[shard.file].get("size") == shard.bytes for shard in manifest.shards)
    return manifest.shards if whole else ()


def state(files: dict[str, dict[str, Any]]) -> str:
    """Return a digest of the store's versions of the files; empty if the store does not report versions."""
    items = [places.item(info, name) for name, info in sorted(files.items())]
    return hashlib.sha256(msgspec.json.encode(items)).hexdigest() if all(item.version for item in items) else ""


def remove(system: Any, copy: Copy) -> None:
    manifest = copy.files.get(checkpoints.MANIFEST)
    rest = [path for file, path in copy.files.items() if file != checkpoints.MANIFEST]
    for paths in ([manifest] if manifest is not None else [], rest):
        if paths:
            system.rm(paths)
