"""The rounds of an elastic world: processes join and leave, and the others go on.

A round is a version of the membership. The server decides it; the agent writes each new one to
`report/rendezvous.json`, where every process finds its new rank. The process groups belong to a round: gloo cannot take
a member in or out. So a process leaves them all, meets the other members of the new round at a store, and makes new
groups. The store of a round is served by its rank 0. Its keys begin with the number of the round, because a store may
serve several.

The death of a process breaks the exchanges of its neighbours in the ring alone. The others would wait for neighbours
that have given up. So a process that notices a loss shuts its connections down, and the news runs through the ring.

gloo does not end every exchange of a broken connection: it forgets one whose bytes are half sent or half received. Its
thread waits until the group's timeout. So a process looks at its connections while it waits (`finish`), and a group is
destroyed in a thread of its own, because its destructor waits for all exchanges.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oarlock.train import errors

ELASTIC = "OARLOCK_ELASTIC"
JOINS = "OARLOCK_JOINS"
FILE = "rendezvous.json"
LOOK_EVERY_S = 0.005
BROKEN_S = 1.0
"""An exchange that goes on for one to two times so long after a connection broke was forgotten by gloo."""
MEET_S = 120.0
"""The time for making the groups of a round, once all its members are there."""
NEWS_S = 120.0
"""The wait for the next round, after a loss. Then the loss counts as an error of this process."""


@dataclass(frozen=True)
class Round:
    """A version of the membership, as one process sees it. `rank` is None if the process is not a member."""

    number: int
    rank: int | None
    world_size: int
    address: str
    port: int

    @classmethod
    def of(cls, number: int, env: Mapping[str, str]) -> Round:
        rank = None if env.get(JOINS) == "1" or "RANK" not in env else int(env["RANK"])
        world_size = int(env.get("WORLD_SIZE", "1"))
        return cls(number, rank, world_size, env.get("MASTER_ADDR", "127.0.0.1"), int(env.get("MASTER_PORT") or 0))


class Rounds:
    """The rounds of this process: the present one, its connections, and the file of the newest one."""

    def __init__(self, environ: Mapping[str, str], timeout_s: float) -> None:
        report = environ.get("OARLOCK_REPORT")
        self.present = Round.of(int(environ.get("OARLOCK_ROUND") or 1), environ)
        self.lost = False  # a member of the present round is gone
        self.keep_waiting: Callable[[], None] = lambda: None
        self._timeout_s = timeout_s
        self._path = Path(report) / FILE if report else None
        self._process = int(environ.get("OARLOCK_PROCESS") or 0)
        self._seen: tuple[int, int] | None = None
        self._newest = self.present
        self._sockets: set[tuple[int, str]] = set()
        self._whole = 0  # connections of a round that is well
        self._served: dict[int, Any] = {}  # the stores of this process, by port

    def newest(self) -> Round:
        """Return the newest round that the agent has told of."""
        if self._path is not None:
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError, IndexError):  # not there yet, or not one
                self._read(self._path)
        return self._newest

    def _read(self, path: Path) -> None:
        status = path.stat()
        if (status.st_ino, status.st_mtime_ns) == self._seen:
            return
        told = json.loads(path.read_bytes())
        found = Round.of(int(told["round"]), told["processes"][self._process]["env"])
        self._seen = status.st_ino, status.st_mtime_ns
        if found.number > self._newest.number:
            self._newest = found

    def later(self, cause: BaseException | None) -> Round:
        """Wait for a later round than the present one. Raises PeersLost, for `cause`, if none comes."""
        deadline = time.monotonic() + NEWS_S
        while self.newest().number <= self.present.number:
            if cause is not None and time.monotonic() > deadline:
                raise errors.PeersLost(f"{cause}. No new round came within {NEWS_S:.0f} s") from cause
            self.keep_waiting()
            time.sleep(LOOK_EVERY_S)
        return self._newest

    def meet(self, later: Round) -> Any:
        """Make the process groups of `later`; return the one for small exchanges, None in a world of one process.

        All its members must call this. Raises PeersLost if one of them is lost meanwhile.
        """
        self.present, self.lost = later, False
        if later.rank is None or later.world_size == 1:
            return None
        try:
            return self._meet(later, later.rank)
        except RuntimeError as cause:  # also torch's DistError
            self.lost = True
            raise errors.PeersLost(f"round {later.number} could not begin: {cause}") from cause

    def _meet(self, later: Round, rank: int) -> Any:
        from torch import distributed

        store = distributed.PrefixStore(f"round-{later.number}", self._store(later))
        store.set(f"here-{rank}", "1")
        here = [f"here-{each}" for each in range(later.world_size)]
        deadline = time.monotonic() + self._timeout_s
        while not store.check(here):
            if time.monotonic() > deadline:
                raise RuntimeError(f"not all {later.world_size} processes came within {self._timeout_s:.0f} s")
            self._go_on_waiting(later)
        ports = {*self._served, later.port}
        before = _connections(ports)
        soon = dt.timedelta(seconds=MEET_S)
        distributed.init_process_group("gloo", store=store, rank=rank, world_size=later.world_size, timeout=soon)
        control = distributed.new_group(backend="gloo", timeout=soon)
        self._sockets = _connections(ports) - before
        self._whole = min(len(self._sockets), 2 * (later.world_size - 1))  # other threads may have opened some, too
        for group in (distributed.group.WORLD, control):
            distributed.distributed_c10d._set_pg_timeout(dt.timedelta(seconds=self._timeout_s), group)
        return control

    def _store(self, later: Round) -> Any:
        """Serve the store of the round as its rank 0, or connect to it. The server may be late."""
        from torch import distributed

        soon = dt.timedelta(seconds=MEET_S)
        deadline = time.monotonic() + NEWS_S
        while later.rank == 0 and later.port not in self._served:
            try:
                self._served[later.port] = distributed.TCPStore(
                    later.address, later.port, is_master=True, wait_for_workers=False, timeout=soon
                )
            except RuntimeError:  # a connection of another program has the port, mostly for a moment only
                if time.monotonic() > deadline:
                    raise
                self._go_on_waiting(later)
        if later.rank == 0:
            return self._served[later.port]
        while True:
            try:
                socket.create_connection((later.address, later.port), 1.0).close()
                return distributed.TCPStore(later.address, later.port, is_master=False, timeout=soon)
            except OSError:
                self._go_on_waiting(later)

    def _go_on_waiting(self, later: Round) -> None:
        if self.newest().number > later.number:
            raise errors.PeersLost(f"round {later.number} is over before it began")
        self.keep_waiting()
        time.sleep(LOOK_EVERY_S)

    def lose(self) -> None:
        """End all exchanges of the present round, here and so at all other members."""
        if not self.lost:
            self.lost = True
            self._cut()

    def leave(self) -> None:
        """Leave the process groups of the present round. The caller holds no reference to them."""
        from torch import distributed

        self._cut()
        if distributed.is_initialized():
            groups = list(distributed.distributed_c10d._world.pg_map)
            distributed.destroy_process_group()
            threading.Thread(target=groups.clear, name="oarlock-groups", daemon=True).start()

    def _cut(self) -> None:
        """Shut the groups' connections down. To destroy a group with an exchange under way would wait for its end."""
        for descriptor, name in self._sockets:
            with contextlib.suppress(OSError):
                if _is_open(descriptor, name):
                    ended = socket.socket(fileno=descriptor)
                    try:
                        ended.shutdown(socket.SHUT_RDWR)
                    finally:
                        ended.detach()
        self._sockets, self._whole = set(), 0

    def finish(self, work: Any) -> None:
        """Wait for an exchange. Raises RuntimeError if it fails, also where gloo has forgotten it."""
        soon = dt.timedelta(seconds=BROKEN_S)
        broken = False
        while True:
            try:
                work.wait(soon)
                return
            except RuntimeError:
                if work.is_completed():
                    work.wait()  # raises if that was more than the end of `soon`
                    return
                if broken:
                    raise
                broken = self._is_broken()

    def _is_broken(self) -> bool:
        return sum(_is_open(descriptor, name) for descriptor, name in self._sockets) < self._whole

    @contextlib.contextmanager
    def exchanging(self) -> Iterator[None]:
        """Run an exchange. Raises PeersLost, in place of torch's error, if another member is gone."""
        if self.lost:
            raise errors.PeersLost("a member of this round is gone")
        try:
            yield
        except RuntimeError as cause:
            self.lose()
            raise errors.PeersLost(f"a member of round {self.present.number} is gone: {cause}") from cause


def _connections(ports: set[int]) -> set[tuple[int, str]]:
    """Return this process's connected sockets, each with its name, except those from or to `ports`, the stores'. A
    listening socket must not be shut down: gloo would abort the process.
    """
    found = set()
    for entry in list(Path("/proc/self/fd").iterdir()):
        with contextlib.suppress(OSError):
            name = str(entry.readlink())
            if not name.startswith("socket:"):
                continue
            each = socket.socket(fileno=int(entry.name))
            try:
                if each.family in (socket.AF_INET, socket.AF_INET6):
                    ends = each.getsockname()[1], each.getpeername()[1]
                    if not ports & set(ends):
                        found.add((int(entry.name), name))
            finally:
                each.detach()
    return found


def _is_open(descriptor: int, name: str) -> bool:
    with contextlib.suppress(OSError):
        return str(Path(f"/proc/self/fd/{descriptor}").readlink()) == name
    return False
