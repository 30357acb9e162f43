"""Nodes: the ranks that compress their gradients as one. The ranks of a host, which see the same /dev/shm, are a node,
because within a host gradients travel many times faster than between hosts.

The ranks of a node add up their gradients densely: in memory that they share (sharing/crews.py), or by a process group
of their own (on GPUs, where memory is short, and where hosts have different numbers of ranks). Then the first of them,
the sender, exchanges with the senders of the other nodes, and gives the others of its node what it got. So a host has
one stream of sparse gradients, however many ranks it has. One sender is the simplest way that also holds where hosts
have different numbers of ranks, and the selection stays that of whole tensors. The other ranks wait for it, as long as
they would take for the same work.

With OARLOCK_SHARED_MEMORY=0 each rank is a node, wherever it is placed. So it is in an elastic job, too: its groups end
with each round.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Any

import torch
from torch import distributed

from oarlock.train import worlds
from oarlock.train.sharing import crews, segments


class Nodes:
    """The nodes of all ranks: `ranks` are those of each node, `inside` is the group of this rank's node (None where it
    is alone there) and `across` that of the senders (None: of all ranks).
    """

    def __init__(self, rank: int, ranks: list[list[int]], inside: Any = None, across: Any = None) -> None:
        self.ranks = ranks
        self.count = len(ranks)
        self.ours = next(node for node in ranks if rank in node)
        self.sends = rank == self.ours[0]
        self._inside, self._across = inside, across

    @property
    def joint(self) -> bool:
        """Whether this rank's node has other ranks."""
        return len(self.ours) > 1

    def start_sum_inside(self, flat: torch.Tensor) -> Any:
        """Begin to sum `flat` over the ranks of this node, in place."""
        return distributed.all_reduce(flat, group=self._inside, async_op=True)

    def start_share(self, tensor: torch.Tensor) -> Any:
        """Begin to give the sender's tensor to the ranks of its node."""
        return distributed.broadcast(tensor, src=self.ours[0], group=self._inside, async_op=True)

    def start_sum(self, flat: torch.Tensor) -> Any:
        """Begin to sum `flat` over the senders, in place."""
        return distributed.all_reduce(flat, group=self._across, async_op=True)

    def start_gather(self, everyones: torch.Tensor, ours: torch.Tensor) -> Any:
        """Begin to gather the bytes of all senders, in the order of the nodes."""
        return _gather(everyones, ours, group=self._across, async_op=True)

    def close(self) -> None:
        """Let go of the groups. Their threads end with the last reference to them."""
        self._inside = self._across = None


class Sums:
    """Sums of tensors like these over the ranks of each node, in fp32 at least. All ranks must make and start them
    together.

    `in_memory` tells whether they are added up in shared memory. `memory` asks for that, or against it: with three
    ranks or more on a host each way has an order of additions of its own.
    """

    def __init__(
        self, world: worlds.World, nodes: Nodes, tensors: Sequence[torch.Tensor], memory: bool | None = None
    ) -> None:
        self._nodes = nodes
        kinds: dict[tuple[torch.dtype, torch.device], list[int]] = {}
        for place, each in enumerate(tensors):
            kinds.setdefault((wide(each), each.device), []).append(place)
        flats = [
            torch.zeros(sum(tensors[place].numel() for place in places), dtype=dtype, device=device)
            for (dtype, device), places in kinds.items()
        ]
        self._totals = None if memory is False else _shared(world, nodes, flats, sparing=memory is None)
        self.in_memory = self._totals is not None
        self._flats = flats if self._totals is None else [total.ours for total in self._totals]
        self.sums: list[torch.Tensor] = [flats[0]] * len(tensors)
        """The sum of each tensor, flat."""
        for flat, places in zip(self._flats, kinds.values()):
            for place, part in zip(places, flat.split([tensors[place].numel() for place in places])):
                self.sums[place] = part

    @property
    def sent_bytes(self) -> int:
        """The bytes that this rank sends for them: none in memory, else by a ring."""
        ranks = len(self._nodes.ours)
        return (
            0
            if self.in_memory or ranks == 1
            else sum(round(2 * (ranks - 1) / ranks * each.nbytes) for each in self._flats)
        )

    def start(self, tensors: Sequence[torch.Tensor]) -> list[Any]:
        """Begin to sum these tensors. Return the works to wait for."""
        for part, each in zip(self.sums, tensors):
            part.copy_(each.view(-1))
        if not self._nodes.joint:
            return []
        if self._totals is not None:
            return [total.start() for total in self._totals]
        return [self._nodes.start_sum_inside(flat) for flat in self._flats]


def gathered(world: worlds.World) -> Nodes:
    """Return the nodes of this world. All ranks must call this together."""
    places = [""] if worlds.rounds is not None else world.gather(segments.place())
    alone = [[rank] for rank in range(world.world_size)]
    if "" in places:
        return Nodes(world.rank, alone)
    ranks = [[rank for rank, place in enumerate(places) if place == one] for one in dict.fromkeys(places)]
    if ranks == alone:
        return Nodes(world.rank, alone)
    inside = across = None
    timeout = dt.timedelta(seconds=worlds.TIMEOUT_S)
    for node in ranks:
        made = distributed.new_group(node, timeout=timeout) if len(node) > 1 else None
        inside = made if world.rank in node else inside
    if len(ranks) > 1:
        across = distributed.new_group([node[0] for node in ranks], timeout=timeout)
    return Nodes(world.rank, ranks, inside, across)


def _shared(
    world: worlds.World, nodes: Nodes, flats: Sequence[torch.Tensor], *, sparing: bool
) -> list[crews.Sum] | None:
    """Return sums in memory that the ranks of each node share, where each node has such memory."""
    plain = {world.device.type, *(each.device.type for each in flats)} == {"cpu"}
    large = sum(each.nbytes for each in flats) >= crews.LEAST_BYTES
    if not all(world.gather(plain and large and "gloo" in distributed.get_backend())):
        return None
    crew = worlds.crew = worlds.crew or crews.gathered(world)
    if crew is None or crew.hosts != nodes.ranks:
        return None
    return crews.shared(world, crew, flats, sparing=sparing, within=True)


_gather = getattr(distributed, "all_gather_single", None) or distributed.all_gather_into_tensor  # its older name


def wide(tensor: torch.Tensor) -> torch.dtype:
    """Return the type in which numbers of this tensor are added up and kept back."""
    return torch.promote_types(tensor.dtype, torch.float32)
