"""Checkpoints on disk (docs/agent-protocol.md section 4), as the server sees them: manifests and digests.

What the shards hold is never looked at.

A directory with a manifest is a checkpoint, one without is a save that has not ended, or never will. `look` believes
the manifest and compares sizes, which is quick enough for every report; `verify` reads every byte. Pruning renames
before it deletes, so that what a kill leaves half deleted is no checkpoint any more, and never deletes the best one
that verifies.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
from pathlib import Path
from typing import Any

import msgspec

from oarlock.data import durable
from oarlock.spec import errors, keeping

FORMAT = 1
MANIFEST = "manifest.json"
DELETED = ".deleted-"
MAX_MANIFEST_BYTES = 16 << 20
BLOCK_BYTES = 1 << 20


class Shard(msgspec.Struct, frozen=True):
    """One rank's file; `sha256` is 64 hexadecimal digits."""

    file: str
    bytes: int
    sha256: str


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """`time` is Unix seconds, `meta` whatever the library wants to tell people."""

    format: int
    step: int
    attempt: int
    round: int
    world_size: int
    time: float
    shards: tuple[Shard, ...]
    meta: dict[str, Any] = {}

    @property
    def bytes(self) -> int:
        return sum(shard.bytes for shard in self.shards)


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    path: Path
    manifest: Manifest
    manifest_sha256: str

    @property
    def order(self) -> tuple[int, int, int]:
        """The best checkpoint is of the latest attempt and round, and in it of the greatest step."""
        return (self.manifest.attempt, self.manifest.round, self.manifest.step)


def look(path: Path, *, manifest_sha256: str | None = None) -> Checkpoint:
    """The checkpoint at `path`, its sizes compared.

    Raises NotFound (no manifest), InvalidInput (not as the manifest says).
    """
    checkpoint = read(path)
    if manifest_sha256 is not None and checkpoint.manifest_sha256 != manifest_sha256:
        raise broken(path, "its manifest is not the one that was reported")
    for shard in checkpoint.manifest.shards:
        try:
            found = (path / shard.file).lstat()
        except OSError as error:
            raise broken(path, f"{shard.file} cannot be read: {error.strerror}") from error
        if not stat.S_ISREG(found.st_mode):
            raise broken(path, f"{shard.file} is not a regular file")
        if found.st_size != shard.bytes:
            raise broken(path, f"{shard.file} has {found.st_size:,} bytes, not {shard.bytes:,}")
    return checkpoint


def verify(path: Path, *, manifest_sha256: str | None = None) -> Checkpoint:
    """As `look`, and every digest holds. Reads everything, a block at a time."""
    checkpoint = look(path, manifest_sha256=manifest_sha256)
    for shard in checkpoint.manifest.shards:
        if digest_of(path / shard.file) != shard.sha256:
            raise broken(path, f"{shard.file} does not have the digest that the manifest gives")
    return checkpoint


def read(path: Path) -> Checkpoint:
    """The manifest alone. Raises NotFound, InvalidInput."""
    try:
        with (path / MANIFEST).open("rb") as file:
            raw = file.read(MAX_MANIFEST_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise errors.NotFound(
            f"{path} is no checkpoint: it has no {MANIFEST}", hint="its save has not ended, or was cut short"
        ) from error
    except OSError as error:
        raise broken(path, f"{MANIFEST} cannot be read: {error.strerror}") from error
    if len(raw) > MAX_MANIFEST_BYTES:
        raise broken(path, f"{MANIFEST} is larger than {MAX_MANIFEST_BYTES:,} bytes")
    try:
        manifest = msgspec.json.decode(raw, type=Manifest)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise broken(path, f"{MANIFEST} is not one: {error}") from error
    check(path, manifest)
    return Checkpoint(path=path, manifest=manifest, manifest_sha256=hashlib.sha256(raw).hexdigest())


def check(path: Path, manifest: Manifest) -> None:
    if manifest.format != FORMAT:
        raise broken(path, f"its format is {manifest.format}, and this version reads {FORMAT}")
    names = [shard.file for shard in manifest.shards]
    if len(set(names)) != len(names) or len(names) != manifest.world_size:
        raise broken(path, f"its manifest names {len(set(names))} shards for {manifest.world_size} ranks")
    for shard in manifest.shards:
        # A shard's name never leads out of the directory, even in a forged manifest.
        if not shard.file or Path(shard.file).name != shard.file or "\0" in shard.file or shard.bytes < 0:
            raise broken(path, f"its manifest names {shard.file!r}, which no shard is called")


def listed(directory: Path) -> list[Checkpoint]:
    """The checkpoints in a directory whose sizes hold, best first."""
    found = []
    for path in directory.iterdir() if directory.is_dir() else ():
        if path.name.startswith(DELETED):
            continue
        try:
            found.append(look(path))
        except (errors.NotFound, errors.InvalidInput):
            continue
    return sorted(found, key=lambda checkpoint: checkpoint.order, reverse=True)


def prune(directory: Path, keep: int) -> list[Path]:
    """Delete old checkpoints as `keeping.spare` decides, and what earlier prunings left; return what was deleted.

    Saves that have not ended stay.
    """
    for path in directory.glob(f"{DELETED}*"):
        shutil.rmtree(path, ignore_errors=True)
    doomed = keeping.settle(keeping.spare(listed(directory), keep), lambda question: verifies(question.checkpoint))
    for one in doomed:
        delete(one.path)
    return [one.path for one in doomed]


def verifies(checkpoint: Checkpoint) -> bool:
    try:
        verify(checkpoint.path)
    except (errors.NotFound, errors.InvalidInput):
        return False
    return True


def duplicate(path: Path, place: Path, *, manifest_sha256: str | None = None) -> None:
    """Make `place` the same checkpoint, durably, by hard links or, where there are none, copies; its manifest last.

    Raises NotFound and InvalidInput as `look` does, Unavailable where the disk refuses.
    """
    found = look(path, manifest_sha256=manifest_sha256)
    try:
        durable.make_folder(place)
        for name in (*(shard.file for shard in found.manifest.shards), MANIFEST):
            _duplicate_file(path / name, place / name)
        durable.sync_folder(place)
    except FileNotFoundError as error:  # it was removed meanwhile
        raise broken(path, f"{error.filename} is not there any more") from error
    except OSError as error:
        raise durable.unavailable(error, f"the checkpoint {path}", place.parent) from error


def _duplicate_file(source: Path, target: Path) -> None:
    try:
        os.link(source, target, follow_symlinks=False)
    except FileNotFoundError:
        raise
    except OSError:  # another file system, one without links, or too many of them
        shutil.copyfile(source, target, follow_symlinks=False)
        with target.open("rb") as file:
            os.fsync(file.fileno())


def delete(path: Path) -> None:
    """Gone in one step, whatever happens while its files are deleted."""
    doomed = path.with_name(f"{DELETED}{path.name}")
    path.rename(doomed)
    durable.sync_folder(path.parent)
    shutil.rmtree(doomed)


def digest_of(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()


def broken(path: Path, why: str) -> errors.InvalidInput:
    return errors.InvalidInput(f"the checkpoint {path} does not hold: {why}", hint="the one before it is used instead")
