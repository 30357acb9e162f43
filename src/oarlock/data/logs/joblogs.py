"""The log streams of one job: read from its directory once, then kept up to date by each append."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

from oarlock.data import storage, taskfolders
from oarlock.data.logs import notifying, streams
from oarlock.spec import attempts, errors


class JobLogs:
    """The streams of one job: read from its directory once, then updated by each append."""

    def __init__(self, root: Path, job: str, short: streams.Shortages) -> None:
        self.notifier = notifying.Notifier()
        self.forgotten = False
        self._root = root
        self._short = short
        self._lock = threading.Lock()
        self._streams: dict[tuple[attempts.TaskKey, str], streams.Stream] = {}
        self._bytes: int | None = None
        for key, folder in taskfolders.folders(root, job):
            for name in sorted({path.stem for kind in ("*.log", "*.lost") for path in folder.glob(kind)}):
                self._streams[key, name] = streams.Stream(key, name, folder / f"{name}.log", self._shortened)

    def stream(self, key: attempts.TaskKey, name: str) -> streams.Stream:
        with self._lock:
            found = self._streams.get((key, name))
            if found is None:
                taskfolders.check_stream(name)
                path = taskfolders.folder(self._root, key) / f"{name}.log"
                found = self._streams[key, name] = streams.Stream(key, name, path, self._shortened)
        return found

    def _shortened(self, one: streams.Stream, shortage: storage.Shortage | None) -> bool:
        """Record that a stream lost bytes, or is whole again.

        Return False if the job's logs were deleted on purpose.
        """
        if self.forgotten:
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
        if self._bytes is None:
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
