"""The files of a job, with those of its checkpoints in the installation's object store.

The server reads them with its own credentials, so that a user needs no way to the store. Only the checkpoints that the
caller names are listed and opened: `checkpoints/NAME/FILE`, as in the server's home.
"""

from __future__ import annotations

from collections.abc import Collection

from oarlock.data import filekeys, jobfiles, storage
from oarlock.data.checkpoints import signing
from oarlock.spec import bodies
from oarlock.spec.checkpoints import checkpointlocations

BLOCK_BYTES = 8 << 20
"""The least that is requested of the store at once."""
FOLDER = "checkpoints"


class StoredJobFiles:
    """`storage.JobFiles`: those of `home`, and the objects of checkpoints."""

    def __init__(self, home: storage.JobFiles, objects: signing.SignedObjects) -> None:
        self._home, self._objects = home, objects

    async def listing(self, job: str, checkpoints: Collection[str] = ()) -> list[bodies.JobFile]:
        """Return all files, ordered by path. Raises Conflict or Unavailable where the store has a checkpoint, and does
        not answer.
        """
        found = await self._home.listing(job, checkpoints)
        if not any(one.startswith(_place(job, "")) for one in checkpoints):
            return found
        for one in await self._objects.listed(job):
            _, name, file = one.key.split("/", 2)
            if _place(job, name) in checkpoints:
                found.append(
                    bodies.JobFile(
                        path="/".join((FOLDER, _key(name), _key(file))),
                        bytes=one.bytes,
                        modified_at=one.modified_at,
                        version=one.version.strip('"'),
                    )
                )
        return sorted(found, key=lambda one: one.path)

    async def open(self, job: str, key: str, checkpoints: Collection[str] = ()) -> storage.OpenFile:
        folder, *names = [name.decode(errors="replace") for name in filekeys.parts(key)]
        if folder != FOLDER or len(names) != 2 or _place(job, names[0]) not in checkpoints:
            return await self._home.open(job, key, checkpoints)
        wanted = "/".join((job, *names))
        for one in await self._objects.listed(wanted):
            if one.key == wanted:
                return OpenObject(self._objects, one)
        raise jobfiles.missing(key)


class OpenObject:
    """An object that is read from its beginning to its end, in blocks."""

    def __init__(self, objects: signing.SignedObjects, one: signing.StoredObject) -> None:
        self.size_bytes, self.version = one.bytes, one.version.strip('"')
        self._objects, self._one = objects, one
        self._block, self._start = b"", 0

    async def read(self, offset: int, size: int) -> bytes:
        """Return this part. Raises Conflict where the object has changed since."""
        at = offset - self._start
        if at < 0 or at + size > len(self._block):
            length = min(max(size, BLOCK_BYTES), self.size_bytes - offset)
            self._block, self._start, at = await self._objects.read(self._one, offset, length), offset, 0
        return self._block[at : at + size]

    def close(self) -> None:
        self._block = b""


def _place(job: str, name: str) -> str:
    return f"{checkpointlocations.STORED}/{job}/{name}"


def _key(name: str) -> str:
    return filekeys.of(name.encode())
