"""The rounds of an elastic world: processes join and leave, and the others go on.

A round is a version of the membership. The server decides it; the agent writes each new one to
`report/rendezvous.json`, where every process finds its new rank. The process groups belong to a round: gloo cannot take
a member in or out. So a process leaves them all, meets the other members of the new round at a store, and makes new
groups. The store of a round is served by its rank 0. Its keys begin with the number of the round, because a store may
serve several. In a job with parameter servers the processes meet there instead, and have no groups.

The death of a process breaks the exchanges of its neighbours in the ring alone. The others would wait for neighbours
that have given up. So a process that notices a loss shuts its connections down, and the news runs through the ring.

gloo does not end every exchange of a broken connection: it forgets one whose bytes are half sent or half received. Its
thread waits until the group's timeout. So a process looks at its connections while it waits (`finish`), and a group is
destroyed in a thread of its own, because its destructor waits for all exchanges.

A connection may also break while both its processes live: a link is cut, or a router forgets the connection. The
kernel would try to send for a quarter of an hour. So a process gives up a connection on which nothing is acknowledged
for `SILENT_S`. A peer that is slow, or that was stopped, still acknowledges: its kernel does. Where nobody has died, no
round follows by itself. So the process tells the server of the loss, and the same members meet again.
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

from oarlock.train import errors, silence

ELASTIC = "OARLOCK_ELASTIC"
JOINS = "OARLOCK_JOINS"
LEAST = "OARLOCK_LEAST_RANKS"
FILE = "rendezvous.json"
LOOK_EVERY_S = 0.005
BROKEN_S = 1.0
"""An exchange that goes on for one to two times so long after a connection broke was forgotten by gloo."""
SILENT_S = 20.0
"""The time after which a connection without any acknowledgement counts as broken."""
TELL_S = 2.0
"""The wait for the next round before the loss is told to the server: it may have seen the death of a process."""
MEET_S = 60.0
"""The time for making the groups of a round, once all its members are there."""
NEWS_S = 120.0
"""The wait for the next round, after a loss. Then the loss counts as an error of this process."""


@dataclass(frozen=True)
class Round:
    """A version of the membership, as one process sees it. `rank` is None if the process is not a member.

    `lost` is the newest round of which the server knows that its exchanges cannot end. With fewer members than `least`
    they make no step, and wait for the next round.
    """

    number: int
    rank: int | None
    world_size: int
    address: str
    port: int
    lost: int = 0
    least: int = 1

    @classmethod
    def of(cls, number: int, env: Mapping[str, str], lost: int = 0) -> Round:
        rank = None if env.get(JOINS) == "1" or "RANK" not in env else int(env["RANK"])
        world_size = int(env.get("WORLD_SIZE", "1"))
        address, port = env.get("MASTER_ADDR", "127.0.0.1"), int(env.get("MASTER_PORT") or 0)
        return cls(number, rank, world_size, address, port, lost, int(env.get(LEAST) or 1))


class Rounds:
    """The rounds of this process: the present one, its connections, and the file of the newest one."""

    def __init__(self, environ: Mapping[str, str], timeout_s: float) -> None:
        report = environ.get("OARLOCK_REPORT")
        self.present = Round.of(int(environ.get("OARLOCK_ROUND") or 1), environ)
        self.lost = False  # a member of the present round is gone
        self.is_first = True  # this process began in the present round, or has entered none yet
        self.keep_waiting: Callable[[], None] = lambda: None
        self.tell_lost: Callable[[int], None] = lambda number: None
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
        found = Round.of(int(told["round"]), told["processes"][self._process]["env"], int(told.get("lost") or 0))
        self._seen = status.st_ino, status.st_mtime_ns
        if found.number > self._newest.number:
            self._newest = found

    def later(self, cause: BaseException | None, *, ends: Callable[[], bool] = lambda: False) -> Round:
        """Wait for a later round than the present one, or until the wait `ends`. Return the newest round.

        Raises PeersLost, for `cause`, if no later one comes.
        """
        began, told = time.monotonic(), False
        while self.newest().number <= self.present.number and not ends():
            waited_s = time.monotonic() - began
            if cause is not None and not told and waited_s > TELL_S:
                told = True
                self.tell_lost(self.present.number)
            if cause is not None and waited_s > NEWS_S:
                raise errors.PeersLost(f"{cause}. No new round came within {NEWS_S:.0f} s") from cause
            self.keep_waiting()
            time.sleep(LOOK_EVERY_S)
        return self._newest

    def meet(self, later: Round) -> Any:
        """Make the process groups of `later`; return the one for small exchanges, None in a world of one process.

        All its members must call this. Raises PeersLost if one of them is lost meanwhile.
        """
        self.begin(later)
        if later.rank is None or later.world_size == 1:
            return None
        try:
            return self._meet(later, later.rank)
        except RuntimeError as cause:  # also torch's DistError
            self.lost = True
            raise errors.PeersLost(f"round {later.number} could not begin: {cause}") from cause

    def begin(self, later: Round) -> None:
        """Make `later` the present round."""
        self.is_first = self.is_first and later.number == self.present.number
        self.present, self.lost = later, False

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
        for descriptor, name in self._sockets:
            _probe(descriptor, name)
        self._whole = min(len(self._sockets), 2 * (later.world_size - 1))  # other threads may have opened some, too
        for group in (distributed.group.WORLD, control):
            distributed.distributed_c10d._set_pg_timeout(dt.timedelta(seconds=self._timeout_s), group)
        return control

    def _store(self, later: Round) -> Any:
        """Connect to the store of the round, which its rank 0 serves. The server may be late."""
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
        while True:  # rank 0 too: its first connection may have broken
            try:
                socket.create_connection((later.address, later.port), 1.0).close()
                before = _connections(set())
                store = distributed.TCPStore(later.address, later.port, is_master=False, timeout=soon)
                for descriptor, name in _connections(set()) - before:
                    _probe(descriptor, name, gives_up=True)
                return store
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
            with _borrowed(descriptor, name) as ended:
                if ended is not None:
                    ended.shutdown(socket.SHUT_RDWR)
        self._sockets, self._whole = set(), 0

    def finish(self, work: Any) -> None:
        """Wait for an exchange. Raises RuntimeError if it fails, also where gloo has forgotten it, or where the server
        knows that it cannot end.
        """
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
        if self.newest().lost >= self.present.number:
            return True
        if any(_is_silent(descriptor, name) for descriptor, name in self._sockets):
            return True
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


@contextlib.contextmanager
def _borrowed(descriptor: int, name: str) -> Iterator[socket.socket | None]:
    """Yield a socket that gloo has opened, or None once it is closed. Errors of a connection that ended are ignored."""
    borrowed = None
    with contextlib.suppress(OSError):
        borrowed = socket.socket(fileno=descriptor) if _is_open(descriptor, name) else None
    try:
        with contextlib.suppress(OSError):
            yield borrowed
    finally:
        if borrowed is not None:
            borrowed.detach()


def _probe(descriptor: int, name: str, *, gives_up: bool = False) -> None:
    """Let the kernel notice an idle connection whose link is cut. `gives_up`: one with bytes under way, too. It must
    not be used where a slow peer leaves bytes unread, because the kernel would give that connection up as well.
    """
    with _borrowed(descriptor, name) as connected:
        if connected is not None:
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, int(SILENT_S / 2))
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, int(SILENT_S / 4))
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
            if gives_up:
                connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(SILENT_S * 1000))


def _is_silent(descriptor: int, name: str) -> bool:
    with _borrowed(descriptor, name) as connected:
        return connected is not None and silence.is_silent(connected, SILENT_S)
    return False


def _is_open(descriptor: int, name: str) -> bool:
    with contextlib.suppress(OSError):
        return str(Path(f"/proc/self/fd/{descriptor}").readlink()) == name
    return False
