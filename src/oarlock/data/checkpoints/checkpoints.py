"""Checkpoints on disk (docs/agent-protocol.md section 4), as the server sees them: manifests and digests.

The server never interprets the content of the shards.

A directory with a manifest is a checkpoint. A directory without one is a save that is under way or was cut short.
`look` trusts the manifest and compares sizes, which is fast enough for every report; `verify` reads every byte. Pruning
renames a checkpoint before it deletes it, so that a kill leaves no half deleted checkpoint. It never deletes the best
valid one.
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
from oarlock.spec import errors
from oarlock.spec.checkpoints import keeping

FORMAT = 1
MANIFEST = "manifest.json"
DELETED = ".deleted-"
MAX_MANIFEST_BYTES = 16 << 20
BLOCK_BYTES = 1 << 20


class Shard(msgspec.Struct, frozen=True):
    """The file of one rank. `sha256` is 64 hexadecimal digits."""

    file: str
    bytes: int
    sha256: str


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The manifest of a checkpoint. `time` is in Unix seconds; `meta` is information for people."""

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
        """The sort key: the best checkpoint has the latest attempt and round, and then the greatest step."""
        return (self.manifest.attempt, self.manifest.round, self.manifest.step)


def look(path: Path, *, manifest_sha256: str | None = None) -> Checkpoint:
    """Return the checkpoint at `path`, after its files' sizes are compared with the manifest.

    NotFound if there is no manifest, InvalidInput if a file differs.
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
    """Return the checkpoint as `look` does, after every digest is checked. Reads all files, block by block."""
    checkpoint = look(path, manifest_sha256=manifest_sha256)
    for shard in checkpoint.manifest.shards:
        if digest_of(path / shard.file) != shard.sha256:
            raise broken(path, f"{shard.file} does not have the digest that the manifest gives")
    return checkpoint


def read(path: Path) -> Checkpoint:
    """Return the checkpoint from its manifest alone. NotFound, InvalidInput."""
    try:
        with (path / MANIFEST).open("rb") as file:
            raw = file.read(MAX_MANIFEST_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise errors.NotFound(
            f"{path} is not a checkpoint: it has no {MANIFEST}", hint="its save has not ended, or was cut short"
        ) from error
    except OSError as error:
        raise broken(path, f"{MANIFEST} cannot be read: {error.strerror}") from error
    if len(raw) > MAX_MANIFEST_BYTES:
        raise broken(path, f"{MANIFEST} is larger than {MAX_MANIFEST_BYTES:,} bytes")
    try:
        manifest = msgspec.json.decode(raw, type=Manifest)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise broken(path, f"{MANIFEST} is not a valid manifest: {error}") from error
    check(path, manifest)
    return Checkpoint(path=path, manifest=manifest, manifest_sha256=hashlib.sha256(raw).hexdigest())


def check(path: Path, manifest: Manifest) -> None:
    if manifest.format != FORMAT:
        raise broken(path, f"its format is {manifest.format}, but this version reads format {FORMAT}")
    names = [shard.file for shard in manifest.shards]
    if len(set(names)) != len(names) or len(names) != manifest.world_size:
        raise broken(path, f"its manifest names {len(set(names))} shards for {manifest.world_size} ranks")
    for shard in manifest.shards:
        # Even in a forged manifest, a shard's name must not lead out of the directory.
        if not shard.file or Path(shard.file).name != shard.file or "\0" in shard.file or shard.bytes < 0:
            raise broken(path, f"its manifest names {shard.file!r}, which is not a valid shard name")


def listed(directory: Path) -> list[Checkpoint]:
    """Return the checkpoints in a directory whose sizes match, best first."""
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
    """Delete old checkpoints as `keeping.spare` decides, and the remains of earlier prunings; return the deleted paths.

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
    """Make a durable duplicate of the checkpoint at `place`: hard links, or copies if links fail; the manifest last.

    NotFound and InvalidInput as for `look`; Unavailable if the disk fails.
    """
    found = look(path, manifest_sha256=manifest_sha256)
    try:
        durable.make_folder(place)
        for name in (*(shard.file for shard in found.manifest.shards), MANIFEST):
            _duplicate_file(path / name, place / name)
        durable.sync_folder(place)
    except FileNotFoundError as error:  # it was removed meanwhile
        raise broken(path, f"{error.filename} no longer exists") from error
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
    """Delete the checkpoint. A rename first makes it disappear in one step."""
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
    return errors.InvalidInput(
        f"the checkpoint {path} is not valid: {why}", hint="the checkpoint before it is used instead"
    )
