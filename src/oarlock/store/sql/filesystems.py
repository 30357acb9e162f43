"""On which kind of file system a path lies, as far as the kernel tells.

SQLite's write-ahead log is shared memory between the processes of one machine: on a file system that several machines
see, it corrupts.
"""

from __future__ import annotations

import os
from pathlib import Path

MOUNTS = Path("/proc/self/mountinfo")

NETWORKED = frozenset(
    {"afs", "beegfs", "ceph", "cifs", "coda", "glusterfs", "gpfs", "lustre", "ncpfs", "nfs", "nfs4"}
    | {"ocfs2", "orangefs", "pvfs2", "smb2", "smb3", "smbfs"}
)
"""Kinds that several machines may see at once. FUSE's are named `fuse.KIND`."""

NETWORKED_FUSE = frozenset(
    {"blobfuse", "blobfuse2", "ceph", "curlftpfs", "davfs", "gcsfuse", "glusterfs", "goofys", "juicefs"}
    | {"mount-s3", "rclone", "s3fs", "sshfs"}
)


def kind(path: Path, mounts: str) -> str:
    """Return the type of the file system that `path` lies on: of the longest mount point above it.

    `mounts` is a mountinfo file.

    Source: proc(5): ID parent major:minor root MOUNT_POINT options [optional...] - TYPE source options.
    """
    real = os.path.realpath(path)
    best, found = "", ""
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        fields = before.split()
        if len(fields) < 5 or not after:
            continue
        point = fields[4].encode().decode("unicode_escape")  # a blank is written \040
        if (real == point or real.startswith(point.rstrip("/") + "/")) and len(point) >= len(best):
            best, found = point, after.split()[0]
    return found


def networked(path: Path, mounts: str | None = None) -> str | None:
    """Return the type, where it is one that several machines may see; None also where the system does not tell."""
    if mounts is None:
        try:
            mounts = MOUNTS.read_text()
        except OSError:
            return None
    found = kind(path, mounts)
    shared = found in NETWORKED or found.removeprefix("fuse.") in NETWORKED_FUSE
    return found if shared else None
