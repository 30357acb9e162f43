"""Sums over the ranks of one host, in memory that they share.

Every rank writes its numbers into a segment. When all have done so, each adds up a part of them, in the order of the
ranks; when all parts are there, each rank copies those of the others. So a sum has one order of additions, and the same
bits on every rank. No rank changes its numbers before the others have copied their parts (`Sum.ready`).

With several hosts, each part is then summed over the hosts by gloo, by the ranks that have the same place on their
hosts: a host sends each number once, however many ranks it has.

The ranks wait for each other in a gloo group of their own, of which this thread alone is a user. So the death of a rank
ends a wait as it ends any exchange.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import mmap
import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import distributed

from oarlock.train.sharing import segments
from oarlock.train.worlds import TIMEOUT_S, World

LEAST_BYTES = 256 << 10
"""Smaller tensors are summed as fast by gloo: a sum in memory needs three meetings of the ranks."""
_ALIGNED = 64
_CHUNK = 1 << 16
"""So many numbers at a time are added up by more than two ranks, within a core's cache."""


class Work:
    """A sum under way, with the methods of torch's works."""

    def __init__(self) -> None:
        self._done = threading.Event()
        self._failed: BaseException | None = None

    def wait(self, timeout: dt.timedelta | None = None) -> bool:
        """Wait for the end. Raises RuntimeError where it does not come in time, and what the exchange raised."""
        if not self._done.wait(None if timeout is None else timeout.total_seconds()):
            raise RuntimeError("the sum goes on")
        if self._failed is not None:
            raise self._failed
        return True

    def is_completed(self) -> bool:
        return self._done.is_set()

    def end(self, failed: BaseException | None) -> None:
        self._failed = failed
        self._done.set()


class Crew:
    """The ranks of this host: this one is number `index` of `size`. `hosts` are the ranks of each host, `inside` and
    `across` gloo groups.
    """

    def __init__(self, index: int, hosts: list[list[int]], inside: Any, across: Any) -> None:
        self.index, self.size, self.hosts = index, len(hosts[0]), hosts
        self._inside, self._across = inside, across
        self._token = torch.zeros(1, device="cpu")
        self._orders: queue.SimpleQueue[tuple[Callable[[], None], Work] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="oarlock-sums", daemon=True)
        self._thread.start()

    def start(self, action: Callable[[], None]) -> Work:
        """Do this in the crew's thread, after what was started before. All ranks start the same in the same order."""
        work = Work()
        self._orders.put((action, work))
        return work

    def meet(self) -> None:
        """Wait for all ranks of this host."""
        distributed.all_reduce(self._token, group=self._inside)

    def promise(self) -> Any:
        """Tell the others that this rank was here. Return the work that ends when all have been."""
        return distributed.all_reduce(torch.zeros(1, device="cpu"), group=self._inside, async_op=True)

    def sum_hosts(self, part: torch.Tensor) -> None:
        if self._across is not None and part.numel():
            distributed.all_reduce(part, group=self._across)

    def close(self) -> None:
        """Let go of the groups, whose threads end with the last reference to them."""
        self._orders.put(None)
        self._thread.join(1.0)
        self._inside = self._across = None

    def _run(self) -> None:
        while True:
            order = self._orders.get()
            if order is None:
                return
            action, work = order
            try:
                action()
            except BaseException as cause:  # noqa: BLE001  (raised again by the thread that waits for it)
                work.end(cause)
            else:
                work.end(None)
            del order, action, work  # they hold tensors


class Sum:
    """The sum of one tensor: `everyones` are those of all ranks of the host, in the segment."""

    def __init__(self, crew: Crew, everyones: Sequence[torch.Tensor]) -> None:
        self._crew, self._everyones = crew, everyones
        self.ours = everyones[crew.index]
        size = self.ours.numel()
        cuts = [size * place // crew.size // _ALIGNED * _ALIGNED for place in range(crew.size)] + [size]
        self._parts = [slice(begin, end) for begin, end in zip(cuts, cuts[1:])]
        self._over: Any = None

    @property
    def sent_bytes(self) -> float:
        """The bytes that this rank sends to other hosts: its part, by a ring."""
        hosts, part = len(self._crew.hosts), self._parts[self._crew.index]
        return 2 * (hosts - 1) / hosts * (part.stop - part.start) * self.ours.element_size()

    def ready(self) -> None:
        """Wait until the others need the former numbers no more. Then `ours` may be written."""
        over, self._over = self._over, None
        if over is not None:
            over.wait()

    def start(self) -> Work:
        """Start to replace `ours` by the sum. It must not be touched before the end of the work."""
        return self._crew.start(self._add)

    def _add(self) -> None:
        crew = self._crew
        mine = self._parts[crew.index]
        crew.meet()
        with torch.no_grad():
            _add_up([each[mine] for each in self._everyones], self.ours[mine])
            crew.sum_hosts(self.ours[mine])
            crew.meet()
            for part, theirs in zip(self._parts, self._everyones):
                if theirs is not self.ours:
                    self.ours[part].copy_(theirs[part])
        self._over = crew.promise()


def _add_up(parts: Sequence[torch.Tensor], into: torch.Tensor) -> None:
    """Write the sum of these into the last argument, which is one of them."""
    if len(parts) == 2:
        torch.add(*parts, out=into)
        return
    for begin in range(0, len(into), _CHUNK):
        first, *others = (each[begin : begin + _CHUNK] for each in parts)
        total = first.clone()
        for other in others:
            total.add_(other)
        into[begin : begin + _CHUNK].copy_(total)


def gathered(world: World) -> Crew | None:
    """Return the crew of this host. None where a rank shares its memory with no other one, or where hosts have
    different numbers of ranks. All ranks must call this together.
    """
    places = world.gather(segments.place())
    hosts = [[rank for rank, place in enumerate(places) if place == one] for one in dict.fromkeys(places)]
    sizes = {len(host) for host in hosts}
    if "" in places or len(sizes) > 1 or sizes == {1}:
        return None
    inside = across = None
    timeout = dt.timedelta(seconds=TIMEOUT_S)
    for host in hosts:
        made = distributed.new_group(host, backend="gloo", timeout=timeout)
        inside = made if world.rank in host else inside
    for alike in zip(*hosts) if len(hosts) > 1 else ():
        made = distributed.new_group(list(alike), backend="gloo", timeout=timeout)
        across = made if world.rank in alike else across
    host = next(one for one in hosts if world.rank in one)
    return Crew(host.index(world.rank), hosts, inside, across)


def shared(world: World, crew: Crew, tensors: Sequence[torch.Tensor], *, sparing: bool = True) -> list[Sum] | None:
    """Return the sums of tensors like these, with their present values. None where there is no memory for them, or,
    where this is `sparing`, too little would be left for others. All ranks must call this together.
    """
    sizes = [-(-each.numel() * each.element_size() // _ALIGNED) * _ALIGNED for each in tensors]
    with contextlib.ExitStack() as files:
        rows = _rows(world, crew, sum(sizes), files, sparing=sparing)
    return _laid_out(crew, tensors, sizes, rows) if rows is not None else None


def _rows(world: World, crew: Crew, size: int, files: contextlib.ExitStack, *, sparing: bool) -> list[mmap.mmap] | None:
    """Return memory of this size for each rank of the host. Each rank reserves its own."""
    offer: segments.Offer | None = None
    with contextlib.suppress(OSError):
        offer = segments.Offer(size, beside=(crew.size - 1) * size, sparing=sparing)
        files.callback(offer.close)
    told = world.gather(None if offer is None else (offer.name, offer.secret))
    ranks = next(host for host in crew.hosts if world.rank in host)
    opened: dict[int, segments.Opened] = {}
    with contextlib.suppress(OSError):
        for rank in ranks:
            one = told[rank]
            if one is not None and rank != world.rank:
                opened[rank] = segments.Opened(*one)
                files.callback(opened[rank].close)
    reserved = False
    if all(world.gather(offer is not None and len(opened) == crew.size - 1)):
        with contextlib.suppress(OSError):
            assert offer is not None
            offer.reserve()
            reserved = True
    rows: list[mmap.mmap] = []
    if all(world.gather(reserved)):
        with contextlib.suppress(OSError):
            assert offer is not None
            rows = [offer.map() if rank == world.rank else opened[rank].map(size) for rank in ranks]
    return rows if all(world.gather(bool(rows))) else None


def _laid_out(
    crew: Crew, tensors: Sequence[torch.Tensor], sizes: Sequence[int], memory: Sequence[mmap.mmap]
) -> list[Sum]:
    rows = [torch.frombuffer(row, dtype=torch.uint8).split(list(sizes)) for row in memory]
    made = []
    for number, tensor in enumerate(tensors):
        length = tensor.numel() * tensor.element_size()
        made.append(Sum(crew, [row[number][:length].view(tensor.dtype) for row in rows]))
        made[-1].ours.copy_(tensor)
    return made
