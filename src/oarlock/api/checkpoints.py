"""Checkpoints as directories of this machine (docs/agent-protocol.md section 4): a light look, and their end.

Light means: the manifest is in place and is the one that was announced, and every shard has its size. Digests of shards
are checked by whoever restores; reading terabytes is not for a server that answers requests.
"""

from __future__ import annotations

import asyncio
import hashlib
import shutil
from pathlib import Path

import msgspec

MANIFEST_LIMIT_BYTES = 40 << 20


class Shard(msgspec.Struct, frozen=True):
    file: str
    bytes: int


class Manifest(msgspec.Struct, frozen=True):
    shards: tuple[Shard, ...]


class CheckpointDirectories:
    """`services.Checkpoints` over `root/JOB/`, the server's own place."""

    def __init__(self, root: Path) -> None:
        self._root = root

    async def holds(self, path: str, manifest_sha256: str) -> bool | None:
        return await asyncio.to_thread(_holds, path, manifest_sha256)

    async def forget(self, job: str) -> None:
        """`job` is an id that the server has made."""
        await asyncio.to_thread(shutil.rmtree, self._root / job, True)


def _holds(path: str, manifest_sha256: str) -> bool | None:
    place = Path(path)
    if "\0" in path or not place.is_absolute():
        return None
    try:
        if not place.parent.is_dir():
            return None  # on another machine, or under a URL
        with (place / "manifest.json").open("rb") as file:
            raw = file.read(MANIFEST_LIMIT_BYTES)
        if manifest_sha256 and hashlib.sha256(raw).hexdigest() != manifest_sha256.rpartition(":")[2]:
            return False
        shards = msgspec.json.decode(raw, type=Manifest).shards
        return all(_is_key(shard.file) and (place / shard.file).stat().st_size == shard.bytes for shard in shards)
    except (OSError, msgspec.DecodeError):
        return False


def _is_key(name: str) -> bool:
    return bool(name) and "/" not in name and "\0" not in name and name not in (".", "..")
