"""Named points at which a test may end this process, to see that what is on disk then can still be used.

The code says `failpoints.hit("train.before_save")`. That does nothing, unless `OARLOCK_FAILPOINT=NAME:ACTION[:N]` is in
the environment: at the Nth time (the first, unless said) the process then ends (`kill`: SIGKILL), or the disk is full
(`full`: the error that a full disk gives). A test kills a training run at every name in `NAMES`, and compares the list
with the code.
"""

from __future__ import annotations

import errno
import os
import signal

NAMES = (
    "train.before_save",  # nothing of this checkpoint is on disk
    "train.after_make_directory",  # an empty directory
    "train.during_shard_write",  # a part of a shard, under a temporary name
    "train.after_shard_write",  # all of it, not synced
    "train.after_shard_sync",  # synced
    "train.after_shard_rename",  # renamed, the directory not synced
    "train.after_shards_gathered",  # every rank's shard is in place, there is no manifest
    "train.after_manifest_write",  # a manifest under a temporary name, not synced
    "train.after_manifest_sync",  # synced
    "train.after_manifest_rename",  # in place, the directory not synced
    "train.after_manifest_directory_sync",  # the checkpoint is complete, nobody has been told
    "train.after_checkpoint_reported",  # the agent can read of it, older ones are still there
    "train.during_removal",  # an older one has lost its manifest
    "train.after_removal",  # an older one is gone
)

_times: dict[str, int] = {}


def hit(name: str) -> None:
    """The program has come to this point."""
    wanted = os.environ.get("OARLOCK_FAILPOINT", "")
    if not wanted.startswith(f"{name}:"):
        return
    _, action, *count = wanted.split(":")
    _times[name] = _times.get(name, 0) + 1
    if _times[name] != int(count[0] if count else 1):
        return
    if action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), f"failpoint {name}")
