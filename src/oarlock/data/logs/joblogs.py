"""The log streams of one job: read from its directory, then kept up to date by each append.

Where several servers share the directory, it is read again for each reader: agents append to any of them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

from oarlock.data import storage, taskfolders
from oarlock.data.logs import notifying, streams
from oarlock.spec import attempts, errors

KINDS = (".log", ".lost")
RECOUNT_S = 60.0
"""The time after which a server counts again what others have stored of a job."""


class JobLogs:
    """The streams of one job. `shared`: other servers append to some of them."""

    def __init__(self, root: Path, job: str, short: streams.Shortages, *, shared: bool = False) -> None:
        self.notifier = notifying.Notifier()
        self.forgotten = False
        self._root = root
        self._job = job
        self._short = short
        self._shared = shared
        self._lock = threading.Lock()
        self._streams: dict[tuple[attempts.TaskKey, str], streams.Stream] = {}
        self._bytes: int | None = None
        self._counted_at = 0.0
        self._read()
        self._read_at = time.monotonic()

    def look(self, *, every_s: float = 0.0) -> None:
        """Find the streams that other servers have begun, unless that was done less than `every_s` ago."""
        if self._shared and time.monotonic() >= self._read_at + every_s:
            self._read_at = time.monotonic()
            self._read()

    def stream(self, key: attempts.TaskKey, name: str) -> streams.Stream:
        with self._lock:
            found = self._streams.get((key, name))
            if found is None:
                taskfolders.check_stream(name)
                found = self._add(key, name, taskfolders.folder(self._root, key))
        return found

    def _read(self) -> None:
        """Read the job's directory."""
        for key, folder in taskfolders.folders(self._root, self._job):
            names = {name.rpartition(".")[0] for name in _listed(folder) if name.endswith(KINDS)}
            with self._lock:
                for name in sorted(names):
                    if (key, name) not in self._streams:
                        self._add(key, name, folder)

    def _add(self, key: attempts.TaskKey, name: str, folder: Path) -> streams.Stream:
        self._streams[key, name] = made = streams.Stream(key, name, folder / f"{name}.log", self._shortened)
        return made

    def _shortened(self, one: streams.Stream, shortage: storage.Shortage | None) -> bool:
        """Record that a stream lost bytes, or is whole again.

        Return False if the job's logs were deleted on purpose, by this server or by another one.
        """
        if self.forgotten or (self._shared and not taskfolders.job_folder(self._root, self._job).exists()):
            return False
        with self._lock:
            self._bytes = None
        self._short.note(one.key, one.name, shortage)
        return True

    def listed(self) -> list[streams.Stream]:
        with self._lock:
            return [one for _, one in sorted(self._streams.items())]

    def matching(self, query: storage.LogQuery) -> Iterator[streams.Stream]:
        for one in self.listed():
            wanted = (query.attempt, query.role, query.index)
            if all(
                want is None or want == has
                for want, has in zip(wanted, (one.key.attempt, one.key.role, one.key.index), strict=True)
            ) and query.stream in (None, one.name, one.name.partition(".")[0]):
                yield one

    def check_quota(self, more: int, quota_bytes: int | None) -> None:
        if quota_bytes is None:
            return
        if self._bytes is None or (self._shared and time.monotonic() - self._counted_at > RECOUNT_S):
            self.look()
            self._counted_at = time.monotonic()
            self._bytes = sum(one.length() for one in self.listed())
        if self._bytes + more > quota_bytes:
            raise errors.TooLarge(
                f"the job's logs have reached their quota of {quota_bytes:,} bytes",
                hint="print less, or raise the server's log quota",
                detail={"quota_bytes": quota_bytes},
            )

    def grown(self, more: int) -> None:
        with self._lock:
            if self._bytes is not None:
                self._bytes += more


def _listed(folder: Path) -> list[str]:
    try:
        return [path.name for path in folder.iterdir()]
    except OSError:
        return []  # it was deleted meanwhile
