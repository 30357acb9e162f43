"""Sums over the ranks of one host, in memory that they share.

Every rank writes its numbers into a segment. When all have done so, each adds up a part of them, in the order of the
ranks, and writes the sums into the segments of all, piece by piece, while a piece is in its core's cache. When all
parts are there, the sum is over. So it has one order of additions, and the same bits on every rank.

With several hosts, each part is summed over the hosts by gloo, before the others of the host get it, by the ranks that
have the same place on their hosts: a host sends each number once, however many ranks it has.

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
"""Smaller tensors are summed as fast by gloo: a sum in memory needs two meetings of the ranks."""
_ALIGNED = 64
_CHUNK = 1 << 16
"""So many numbers at a time are added up, within a core's cache."""


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

    def sum_hosts(self, part: torch.Tensor) -> None:
        if part.numel():
            distributed.all_reduce(part, group=self._across)

    def close(self) -> None:
        """Let go of the groups. Their threads end with the last reference to them."""
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
    """The sum of one tensor: `everyones` are those of all ranks of the host, in the segment. `within`: it ends at the
    host, and other hosts have sums of their own.
    """

    def __init__(self, crew: Crew, everyones: Sequence[torch.Tensor], *, within: bool = False) -> None:
        self._crew, self._everyones = crew, everyones
        self._hosts = 1 if within else len(crew.hosts)
        self.ours = everyones[crew.index]
        size = self.ours.numel()
        cuts = [size * place // crew.size // _ALIGNED * _ALIGNED for place in range(crew.size)] + [size]
        self._mine = slice(cuts[crew.index], cuts[crew.index + 1])  # the part that this rank adds up
        # each piece of it, of all ranks; views are made once, because making them anew takes as long as the sums
        self._pieces = list(zip(*(each[self._mine].split(_CHUNK) for each in everyones)))

    @property
    def sent_bytes(self) -> float:
        """The bytes that this rank sends to other hosts: its part, by a ring."""
        hosts, part = self._hosts, self._mine
        return 2 * (hosts - 1) / hosts * (part.stop - part.start) * self.ours.element_size()

    def start(self) -> Work:
        """Start to replace `ours` by the sum. It must not be touched before the end of the work."""
        return self._crew.start(self._add)

    def _add(self) -> None:
        crew = self._crew
        others = [rank for rank in range(crew.size) if rank != crew.index]
        crew.meet()
        with torch.no_grad():
            if self._hosts == 1:
                _add_up(self._pieces, [crew.index, *others])
            else:
                _add_up(self._pieces, [crew.index])
                crew.sum_hosts(self.ours[self._mine])
                for rank in others:
                    self._everyones[rank][self._mine].copy_(self.ours[self._mine])
        crew.meet()


def _add_up(pieces: Sequence[Sequence[torch.Tensor]], ranks: Sequence[int]) -> None:
    """Add up each piece, in the order of its ranks, and write the sum into the pieces of these ranks."""
    first, *others = ranks
    for piece in pieces:
        if len(piece) == 2:
            torch.add(*piece, out=piece[first])
        else:
            total = piece[0] + piece[1]
            for each in piece[2:]:
                total += each
            piece[first].copy_(total)
        for rank in others:
            piece[rank].copy_(piece[first])


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


def shared(
    world: World, crew: Crew, tensors: Sequence[torch.Tensor], *, sparing: bool = True, within: bool = False
) -> list[Sum] | None:
    """Return the sums of tensors like these, with their present values; `within` the host alone. None where there is no
    memory for them, or, where this is `sparing`, too little would be left for others. All ranks must call this
    together.
    """
    sizes = [-(-each.numel() * each.element_size() // _ALIGNED) * _ALIGNED for each in tensors]
    with contextlib.ExitStack() as files:
        rows = _rows(world, crew, sum(sizes), files, sparing=sparing)
    return _laid_out(crew, tensors, sizes, rows, within=within) if rows is not None else None


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
            _keep_from_forks(rows)
    return rows if all(world.gather(bool(rows))) else None


def _keep_from_forks(rows: Sequence[mmap.mmap]) -> None:
    """Let processes that read ahead, which are forks, not hold this memory when the ranks have let go of it."""
    advice: int | None = getattr(mmap, "MADV_DONTFORK", None)  # of Linux
    if advice is not None:
        for row in rows:
            row.madvise(advice)


def _laid_out(
    crew: Crew, tensors: Sequence[torch.Tensor], sizes: Sequence[int], memory: Sequence[mmap.mmap], *, within: bool
) -> list[Sum]:
    rows = [torch.frombuffer(row, dtype=torch.uint8).split(list(sizes)) for row in memory]
    made = []
    for number, tensor in enumerate(tensors):
        length = tensor.numel() * tensor.element_size()
        made.append(Sum(crew, [row[number][:length].view(tensor.dtype) for row in rows], within=within))
        made[-1].ours.copy_(tensor)
    return made
