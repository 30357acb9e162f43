"""The command `complete DIR URL [--memory FILE]`: store a checkpoint of which DIR has the manifest and some shards.

Each task stores the shards of its own ranks. This command stores those that are in DIR, waits for the others, and reads
every shard back. Once all digests match, it stores the manifest, which makes the copy whole. A copy that is cut short
at any moment has no manifest. It is removed with the old copies later (`pruning`).

A shard may never come: its task has died, or has gone on to a newer checkpoint. So the wait ends a while after shards
of a newer one have come, or after ten minutes without a new shard.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from oarlock.data.checkpoints import checkpoints, pruning
from oarlock.data.transfers import patience, places, reporting, upload
from oarlock.spec import errors

POLL_S = 1.0
PATIENCE_S = 600.0
LOOKS_OF_A_VERSION = 30
SETTLE_S = 30.0
"""The time that a slower task has to store its shard, once another task has stored one of a newer checkpoint."""


def run(
    directory: str,
    url: str,
    memory: Path | None = None,
    task: str | None = None,
    *,
    monotonic: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> int:
    """Store the checkpoint and return the number of its files. `task`: as in `places`.

    Conflict if some shards do not come.
    """
    checkpoint = checkpoints.read(Path(directory))
    sent = upload.run(directory, url, task, chosen=lambda path: path.name != checkpoints.MANIFEST)
    root, _, name = url.rstrip("/").rpartition("/")
    system, prefix = places.filesystem(root, task)
    waiting = Waiting(system, prefix, name, checkpoint)
    changed_at, newer_at = monotonic(), None

    def over() -> bool:
        with places.foreign(url):
            return waiting.over()

    while not patience.tried(over, patience.Patience(monotonic, sleep)):
        now = monotonic()
        changed_at = now if waiting.moved else changed_at
        newer_at = newer_at if newer_at is not None or not waiting.newer else now
        if now - changed_at > PATIENCE_S or (newer_at is not None and now - newer_at > SETTLE_S):
            raise errors.Conflict(
                f"{name} did not become whole: {', '.join(sorted(waiting.missing)[:3])} did not come",
                hint="the log of that task's agent tells the reason; the checkpoint before it is still there",
            )
        sleep(POLL_S)
    sent += upload.run(directory, url, task, chosen=lambda path: path.name == checkpoints.MANIFEST)
    with places.foreign(url):
        system.invalidate_cache()
        for copy in pruning.listed(system, prefix):
            if copy.name == name and copy.whole:
                pruning.Memory(memory).note(copy, good=True)
    return sent


class Waiting:
    """The shards that are not in the store yet. `moved`: the last look found one; `newer`: there is a newer copy."""

    def __init__(self, system: Any, prefix: str, name: str, checkpoint: checkpoints.Checkpoint) -> None:
        self._system, self._prefix, self._name = system, prefix, name
        self._order = checkpoint.order
        self._refused: dict[str, str] = {}  # by file, the version that has another digest
        self.missing = {shard.file: shard for shard in checkpoint.manifest.shards}
        self.moved = self.newer = False
        self._looks = 0

    def over(self) -> bool:
        """Look at the store once more; return whether all shards are there."""
        self._system.invalidate_cache()
        self.moved = False
        self._looks += 1
        for copy in pruning.listed(self._system, self._prefix):
            if copy.name == self._name:
                for file in sorted(self.missing.keys() & copy.files.keys()):
                    self._read(file, copy.files[file])
            self.newer = self.newer or copy.order > self._order
        return not self.missing

    def _read(self, file: str, path: str) -> None:
        """Take the shard off the list if its digest matches. An object of an earlier try may have another one."""
        info = self._system.info(path)
        # Some stores do not even tell when an object was written: then it is read again, but not at each look.
        version = places.item(info, file).version or f"look {self._looks // LOOKS_OF_A_VERSION}"
        if info.get("size") != self.missing[file].bytes or self._refused.get(file) == version:
            return
        reporting.detail(f"reading {file}")
        if pruning.digest(self._system, path) == self.missing[file].sha256:
            del self.missing[file]
            self.moved = True
        else:
            self._refused[file] = version
