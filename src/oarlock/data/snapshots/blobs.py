"""Blobs in a directory: content-addressed bytes, each under its digest, complete or absent.

An upload is written to a temporary file and hashed. If the digest matches, the file is synced and renamed to its place,
and the folder is synced. A killed server leaves a temporary file, which `sweep` deletes with the rest. `has` renews the
age of a blob, so that a sweep between the question and the submission of the job does not delete it.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import IO

from oarlock.data import durable
from oarlock.spec import errors

DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
GATHERED_BYTES = 1 << 20
"""The number of bytes that are hashed and written in a thread at a time."""


class DirectoryBlobs:
    """The blobs in one directory of a local file system."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._drafts = root / "drafts"

    async def put(self, digest: str, chunks: AsyncIterator[bytes], *, limit_bytes: int) -> int:
        """Store a blob, as `storage.Blobs` describes. An existing blob is verified and replaced by the same bytes."""
        path = self._place(digest)
        draft = await asyncio.to_thread(self._begin, path)
        try:
            length = await self._receive(draft, digest, chunks, limit_bytes)
            await asyncio.to_thread(self._finish, draft, path)
        except OSError as error:
            raise durable.unavailable(error, "the upload", self._root) from error
        finally:
            draft.unlink(missing_ok=True)
        return length

    async def has(self, digest: str) -> bool:
        try:
            os.utime(self._place(digest))
        except FileNotFoundError:
            return False
        return True

    def path(self, digest: str) -> Path:
        path = self._place(digest)
        if not path.is_file():
            raise errors.NotFound(f"there is no blob {digest}", hint="upload it first")
        return path

    async def sweep(self, keep: set[str], older_than: float) -> int:
        """Delete old blobs, as `storage.Blobs` describes. Abandoned drafts are deleted too, and not counted."""
        return await asyncio.to_thread(self._sweep, {digest.removeprefix("sha256:") for digest in keep}, older_than)

    def _place(self, digest: str) -> Path:
        if DIGEST.fullmatch(digest) is None:
            raise errors.InvalidInput(
                "not a digest", hint="a digest is `sha256:` and 64 hexadecimal digits in lower case", path="digest"
            )
        name = digest.removeprefix("sha256:")
        return self._root / name[:2] / name

    def _begin(self, path: Path) -> Path:
        try:
            durable.make_folder(self._drafts)
            durable.make_folder(path.parent)
            draft = durable.temporary(self._drafts / path.name)
            draft.touch(mode=0o600, exist_ok=False)
        except OSError as error:
            raise durable.unavailable(error, "the upload", self._root) from error
        return draft

    async def _receive(self, draft: Path, digest: str, chunks: AsyncIterator[bytes], limit_bytes: int) -> int:
        found = hashlib.sha256()
        length = 0
        gathered = bytearray()
        with draft.open("wb", buffering=0) as file:
            async for chunk in chunks:
                length += len(chunk)
                if length > limit_bytes:
                    raise errors.TooLarge(
                        f"the upload has more than {limit_bytes:,} bytes",
                        hint="list the files that the job does not need in .oarlockignore, or raise the server's limit",
                        detail={"limit_bytes": limit_bytes},
                    )
                gathered += chunk
                if len(gathered) >= GATHERED_BYTES:
                    await asyncio.to_thread(absorb, file, found, gathered)
                    gathered = bytearray()
            await asyncio.to_thread(absorb, file, found, gathered)
            if f"sha256:{found.hexdigest()}" != digest:
                raise errors.InvalidInput(
                    f"the {length:,} bytes that arrived do not have the digest {digest}",
                    hint="the upload was cut short or changed on the way: send it again",
                    path="digest",
                )
            await asyncio.to_thread(os.fsync, file.fileno())
        return length

    def _finish(self, draft: Path, path: Path) -> None:
        draft.replace(path)
        durable.sync_folder(path.parent)

    def _sweep(self, keep: set[str], older_than: float) -> int:
        swept = 0
        for folder in list(self._root.iterdir()) if self._root.is_dir() else []:
            for path in list(folder.iterdir()):
                if path.name not in keep and path.stat().st_mtime < older_than:
                    path.unlink(missing_ok=True)
                    swept += folder != self._drafts
        return swept


def absorb(file: IO[bytes], found: hashlib._Hash, data: bytearray) -> None:
    found.update(data)
    write_all(file, data)


def write_all(file: IO[bytes], data: bytearray) -> None:
    view = memoryview(data)
    while view:
        view = view[file.write(view) :]
