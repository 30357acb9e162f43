"""Named points at which a test may end this process, to check that the files on the disk can still be used.

The code calls `failpoints.hit("train.before_save")`. The call does nothing unless `OARLOCK_FAILPOINT=NAME:ACTION[:N]`
is in the environment. At the Nth call (default: the first) the process then ends (`kill`: SIGKILL), or gets the error
of a full disk (`full`). A test kills a training run at every name in `NAMES`, and compares the list with the code.
"""

from __future__ import annotations

import errno
import os
import signal

from oarlock.train import environment

NAMES = (
    "train.before_save",  # no file of this checkpoint is on the disk
    "train.after_make_directory",  # an empty directory
    "train.during_shard_write",  # a part of a shard, under a temporary name
    "train.after_shard_write",  # the whole shard, not synced
    "train.after_shard_sync",  # synced
    "train.after_shard_rename",  # renamed, the directory not synced
    "train.after_shards_gathered",  # every rank's shard is in place, there is no manifest
    "train.after_manifest_write",  # a manifest under a temporary name, not synced
    "train.after_manifest_sync",  # synced
    "train.after_manifest_rename",  # in place, the directory not synced
    "train.after_manifest_directory_sync",  # the checkpoint is complete, but not reported
    "train.after_checkpoint_reported",  # the checkpoint is reported, older ones are still there
    "train.during_removal",  # an older one has lost its manifest
    "train.after_removal",  # an older one is gone
)

_times: dict[str, int] = {}


def hit(name: str) -> None:
    """Die or fail here, if this failpoint is armed."""
    wanted = environment.failpoint()
    if wanted is None or wanted.name != name:
        return
    _times[name] = _times.get(name, 0) + 1
    if _times[name] != wanted.visit:
        return
    if wanted.action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), f"failpoint {name}")
