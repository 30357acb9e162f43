"""Checkpoints on disk, as far as they can be checked without torch.

`CHECKPOINTS/attempt-A-round-R-step-S/` has `rank-K.pt` for each rank and, written last, `manifest.json` with every
shard's size and digest (docs/agent-protocol.md, section 4). A directory without a manifest is not a checkpoint. A
checkpoint whose sizes or digests differ from its manifest must not be loaded. Removal deletes the manifest first, so
that a half removed directory is not a checkpoint.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from oarlock.train import errors, failpoints

FORMAT = 1
FILE = "manifest.json"
_NAME = re.compile(r"attempt-(\d+)-round-(\d+)-step-(\d+)")
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class Shard:
    """The file of one rank in a checkpoint. `sha256` is in hexadecimal."""

    file: str
    bytes: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """The content of a checkpoint. `time` is in Unix seconds; `meta` is plain JSON for people."""

    step: int
    attempt: int
    round: int
    world_size: int
    time: float
    shards: tuple[Shard, ...]
    meta: dict[str, object]

    def encode(self) -> bytes:
        return json.dumps({"format": FORMAT, **asdict(self)}, indent=1).encode() + b"\n"

    @property
    def bytes(self) -> int:
        return sum(shard.bytes for shard in self.shards)


def directory_name(attempt: int, round_number: int, step: int) -> str:
    return f"attempt-{attempt}-round-{round_number}-step-{step}"


def order(path: Path) -> tuple[int, int, int] | None:
    """Return (attempt, round, step) of a checkpoint's directory; None for any other path."""
    match = _NAME.fullmatch(path.name)
    return (int(match[1]), int(match[2]), int(match[3])) if match else None


def complete(directory: Path) -> list[Path]:
    """Return the checkpoints in `directory` that have a manifest, newest first. They are not verified."""
    return [path for path in attempted(directory) if (path / FILE).is_file()]


def attempted(directory: Path) -> list[Path]:
    """Return all directories of checkpoints in `directory`, incomplete ones too, newest first."""
    if not directory.is_dir():
        return []
    found = [(key, path) for path in directory.iterdir() if (key := order(path)) is not None]
    return [path for _, path in sorted(found, reverse=True)]


def read(checkpoint: Path) -> Manifest:
    """Return the manifest of `checkpoint`. CheckpointError if there is none, or if it is not valid."""
    try:
        fields = json.loads((checkpoint / FILE).read_bytes())
        if fields["format"] != FORMAT:
            raise ValueError(f"format {fields['format']}, but this library reads format {FORMAT}")
        shards = tuple(Shard(str(each["file"]), int(each["bytes"]), str(each["sha256"])) for each in fields["shards"])
        if [shard.file for shard in shards] != [f"rank-{rank}.pt" for rank in range(int(fields["world_size"]))]:
            raise ValueError("it does not have one shard for each rank")
        return Manifest(
            step=int(fields["step"]),
            attempt=int(fields["attempt"]),
            round=int(fields["round"]),
            world_size=int(fields["world_size"]),
            time=float(fields["time"]),
            shards=shards,
            meta=dict(fields["meta"]),
        )
    except (OSError, ValueError, KeyError, TypeError) as cause:
        raise errors.CheckpointError(
            f"{checkpoint} has no readable manifest ({cause}); remove the directory to skip it"
        ) from cause


def fault(checkpoint: Path, manifest: Manifest, ranks: Iterable[int] | None = None) -> str | None:
    """Return the first fault of these ranks' shards (default: all), or None if sizes and digests match."""
    for rank in range(manifest.world_size) if ranks is None else ranks:
        shard = manifest.shards[rank]
        path = checkpoint / shard.file
        try:
            size = path.stat().st_size
            if size != shard.bytes:
                return f"{shard.file} has {size} bytes, but its manifest says {shard.bytes}"
            if digest(path) != shard.sha256:
                return f"the digest of {shard.file} is not the one in its manifest"
        except OSError as cause:
            return f"{shard.file} cannot be read ({cause})"
    return None


def digest(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    sha256 = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            sha256.update(chunk)
    return sha256.hexdigest()


def write(checkpoint: Path, manifest: Manifest) -> str:
    """Write the manifest durably, which completes the checkpoint. Return the manifest's SHA-256."""
    content = manifest.encode()
    temporary = checkpoint / f"{FILE}.tmp"
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        failpoints.hit("train.after_manifest_write")
        os.fsync(file.fileno())
    failpoints.hit("train.after_manifest_sync")
    temporary.rename(checkpoint / FILE)
    failpoints.hit("train.after_manifest_rename")
    sync_directory(checkpoint)
    failpoints.hit("train.after_manifest_directory_sync")
    return hashlib.sha256(content).hexdigest()


def remove(checkpoint: Path) -> None:
    """Remove a checkpoint, or the rest of one."""
    (checkpoint / FILE).unlink(missing_ok=True)
    sync_directory(checkpoint)
    failpoints.hit("train.during_removal")
    for path in checkpoint.iterdir():
        path.unlink()
    checkpoint.rmdir()
    failpoints.hit("train.after_removal")


def sync_directory(directory: Path) -> None:
    """Make the names in `directory` durable: a rename is durable once its directory is synced."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
