"""Wake-ups at the end of processes: one pidfd each in the event loop, and nothing to do until then."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
from collections.abc import Iterable

from oarlock.backends.local import processes

MAX_WATCHED = 4096


def _room() -> int:
    """Return a quarter of our descriptors. A process left out is seen at the next look, without a wake."""
    return min(MAX_WATCHED, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4)


class Watch:
    """Level-triggered: a change between two looks is not lost, `wait` then returns at once."""

    def __init__(self) -> None:
        self._fds: dict[int, int] = {}  # pidfd by pid
        self._children: set[int] = set()
        self._changed = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    def looked(self) -> None:
        """Note a look: changes from here on wake."""
        self._changed.clear()

    def changed(self) -> None:
        self._changed.set()

    def child(self, pid: int) -> None:
        """Add a child of ours: it is reaped as well."""
        self._children.add(pid)

    def follow(self, watched: Iterable[processes.Stat]) -> None:
        """Watch these processes, and go on with earlier ones until they end."""
        self._loop = asyncio.get_running_loop()
        room = _room()
        for one in watched:
            if one.pid in self._fds or len(self._fds) >= room:
                continue
            fd = processes.open_pidfd(one.pid, one.start)
            if fd is None:
                self._changed.set()  # it has ended by now
                continue
            self._fds[one.pid] = fd
            self._loop.add_reader(fd, self._ended, one.pid)
        self._reap()

    async def wait(self, timeout_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()

    def close(self) -> None:
        for pid in list(self._fds):
            self._forget(pid)

    def _ended(self, pid: int) -> None:
        processes.reap(self._fds[pid])
        self._children.discard(pid)
        self._forget(pid)
        self._changed.set()

    def _forget(self, pid: int) -> None:
        fd = self._fds.pop(pid)
        if self._loop is not None:
            self._loop.remove_reader(fd)
        os.close(fd)

    def _reap(self) -> None:
        """Reap the children for which there was no descriptor."""
        for pid in [pid for pid in self._children if pid not in self._fds]:
            try:
                done, _ = os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:
                done = pid
            if done:
                self._children.discard(pid)
