"""Files that tasks of other machines send to the server's home: results, and files of their working directories.

A path is `results/JOB/...` or `files/JOB/ROLE-INDEX/LIFE/...`. Each part is decoded as a key (`filekeys`), and the
server checks the job before. A file appears as a whole, under its name, once it is durable.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

from oarlock.data import durable, filekeys, taskfolders
from oarlock.data.transfers import workfiles
from oarlock.spec import attempts, errors

ROOTS = ("results", "files")
GATHERED_BYTES = 1 << 20


class DirectoryReceivedFiles:
    """`storage.ReceivedFiles` in the home."""

    def __init__(self, home: Path) -> None:
        self._home = home

    async def put(self, task: attempts.TaskKey, path: str, chunks: AsyncIterator[bytes]) -> int:
        place = self._place(task, path)
        draft = durable.temporary(place)
        try:
            await asyncio.to_thread(durable.make_folder, place.parent)
            length = await _receive(draft, chunks)
            await asyncio.to_thread(draft.replace, place)
            await asyncio.to_thread(durable.sync_folder, place.parent)
        except OSError as error:
            raise durable.unavailable(error, "a file of the task", self._home) from error
        finally:
            draft.unlink(missing_ok=True)
        return length

    async def delete_older(self, task: attempts.TaskKey, left_bytes: int, left_files: int) -> list[str]:
        place = taskfolders.job_folder(self._home / "files", task.job) / f"{task.role}-{task.index}" / task.life
        return await asyncio.to_thread(workfiles.Folder(place).delete_older, left_bytes, left_files)

    def _place(self, task: attempts.TaskKey, path: str) -> Path:
        """Return the place of the file. InvalidInput where the task may not write it."""
        root, job, *names = [*filekeys.parts(path), b"", b""]
        names = names[:-2]
        own = [os.fsencode(f"{task.role}-{task.index}"), os.fsencode(task.life)]
        allowed = root == b"results" or (root == b"files" and names[:2] == own and len(names) > 2)
        if not allowed or not names or os.fsdecode(job) != task.job:
            raise errors.InvalidInput(
                f"{path[:200]!r} is not a place of this task's files",
                path="path",
                hint="use results/JOB/... or files/JOB/ROLE-INDEX/LIFE/...",
            )
        return taskfolders.job_folder(self._home / os.fsdecode(root), task.job).joinpath(*map(os.fsdecode, names))


async def _receive(draft: Path, chunks: AsyncIterator[bytes]) -> int:
    length = 0
    gathered = bytearray()
    with draft.open("xb", buffering=0) as file:
        async for chunk in chunks:
            length += len(chunk)
            gathered += chunk
            if len(gathered) >= GATHERED_BYTES:
                await asyncio.to_thread(file.write, bytes(gathered))
                gathered.clear()
        await asyncio.to_thread(file.write, bytes(gathered))
        await asyncio.to_thread(os.fsync, file.fileno())
    return length
