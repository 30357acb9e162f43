"""Files that tasks of other machines send to the server's home: results, and files of their working directories.

A path is `results/JOB/...` or `files/JOB/ROLE-INDEX/LIFE/...`. Each part is decoded as a key (`filekeys`), and the
server checks the job before. A file appears as a whole, under its name, once it is durable. The disk keeps a reserve of
free space, because the server's database may lie on it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

from oarlock.data import durable, filekeys, taskfolders
from oarlock.data.transfers import workfiles
from oarlock.spec import attempts, errors

ROOTS = ("results", "files")
GATHERED_BYTES = 1 << 20
RESERVE_BYTES = 1 << 30
RESERVE_PART = 20
"""The reserve is at most one part in this many of the disk, which may be small."""


class DirectoryReceivedFiles:
    """`storage.ReceivedFiles` in the home."""

    def __init__(self, home: Path, disk_usage: Callable[[Path], tuple[int, int, int]] = shutil.disk_usage) -> None:
        self._home = home
        self._disk_usage = disk_usage

    async def put(
        self,
        task: attempts.TaskKey,
        path: str,
        chunks: AsyncIterator[bytes],
        check: Callable[[], Awaitable[object]],
    ) -> int:
        place = self._place(task, path)
        draft = durable.temporary(place)
        try:
            await asyncio.to_thread(durable.make_folder, place.parent)
            length = await self._receive(draft, chunks)
            await check()
            await asyncio.to_thread(draft.replace, place)
            await asyncio.to_thread(durable.sync_folder, place.parent)
        except OSError as error:
            raise durable.failure(error, f"the file {path[:200]!r}", self._home) from error
        finally:
            with contextlib.suppress(OSError):  # an error of its folder: there is no draft then
                draft.unlink(missing_ok=True)
        return length

    async def delete_older(self, task: attempts.TaskKey, left_bytes: int, left_files: int) -> list[str]:
        place = taskfolders.job_folder(self._home / "files", task.job) / f"{task.role}-{task.index}" / task.life
        return await asyncio.to_thread(workfiles.Folder(place).delete_older, left_bytes, left_files)

    async def _receive(self, draft: Path, chunks: AsyncIterator[bytes]) -> int:
        length = 0
        gathered = bytearray()

        def write() -> None:
            self._check_disk(len(gathered))
            file.write(gathered)
            gathered.clear()

        await asyncio.to_thread(self._check_disk, 0)
        with draft.open("xb") as file:
            async for chunk in chunks:
                length += len(chunk)
                gathered += chunk
                if len(gathered) >= GATHERED_BYTES:
                    await asyncio.to_thread(write)
            await asyncio.to_thread(write)
            await asyncio.to_thread(file.flush)
            await asyncio.to_thread(os.fsync, file.fileno())
        return length

    def _check_disk(self, more_bytes: int) -> None:
        total, _, free = self._disk_usage(self._home)
        reserve = min(RESERVE_BYTES, total // RESERVE_PART)
        if free - more_bytes < reserve:
            raise errors.TooLarge(
                f"the server takes no files of tasks: its disk has {free >> 20} MiB free, and {reserve >> 20} MiB of "
                "them are reserved",
                hint=f"free some space under {self._home}, or store the files in s3 or gs",
            )

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
