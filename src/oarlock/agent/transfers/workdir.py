"""The record of the working directory before the user's processes start, to tell new and changed files afterwards.

`baseline` in the task's directory has a record for each file, `SIZE MTIME_NS CTIME_NS INODE PATH` and a NUL: names are
bytes and may hold anything else. The helper (`oarlock.data.transfers.workfiles`) reads it too. This module only decides
whether the helper is worth a process. The helper decides which files are kept.
"""

from __future__ import annotations

import os
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Iterator

    from oarlock.agent.assignment import Assignment

BASELINE = "baseline"
CACHES = (b"__pycache__",)  # every Python script leaves them, and the helper does not keep them


def write_baseline(task: Assignment) -> None:
    """Record the files of the working directory. OSError if the baseline cannot be written."""
    with open(task.path(BASELINE), "wb") as file:
        file.writelines(_record(path, info) for path, info in _files(os.fsencode(task.workdir)))


def has_new_files(task: Assignment) -> bool:
    """Return whether a file outside the caches is new or changed. True if the baseline cannot be read."""
    try:
        with open(task.path(BASELINE), "rb") as file:
            known = set(file.read().split(b"\0"))
    except OSError:
        return True
    return any(_record(path, info)[:-1] not in known for path, info in _files(os.fsencode(task.workdir), CACHES))


def _record(path: bytes, info: os.stat_result) -> bytes:
    return b"%d %d %d %d %s\0" % (info.st_size, info.st_mtime_ns, info.st_ctime_ns, info.st_ino, path)


def _files(root: bytes, without: tuple[bytes, ...] = ()) -> Iterator[tuple[bytes, os.stat_result]]:
    """Yield each entry that is not a folder, by its path below `root`. Entries that cannot be read are skipped."""
    pending = [b""]
    while pending:
        prefix = pending.pop()
        try:
            with os.scandir(os.path.join(root, prefix) if prefix else root) as found:
                for entry in found:
                    try:
                        info = entry.stat(follow_symlinks=False)
                    except OSError:
                        continue  # it was deleted meanwhile
                    if not stat.S_ISDIR(info.st_mode):
                        yield prefix + entry.name, info
                    elif entry.name not in without:
                        pending.append(prefix + entry.name + b"/")
        except OSError:
            continue
