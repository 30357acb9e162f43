"""The division of a model among parameter servers. Pure: the same on every worker.

`partition` cuts large tensors, so that every server holds about as many bytes; `greedy` gives whole tensors, the
largest first, to the server that holds least; `round_robin` gives them out in turn. A cut lies at a multiple of 64
elements: then vector instructions work on the same groups of elements as without the cut, and give the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

WAYS = ("partition", "greedy", "round_robin")
ALIGNED = 64
LEAST_CUT_BYTES = 64 << 10
"""Smaller tensors stay whole: a part costs some microseconds of work in each step."""


@dataclass(frozen=True)
class Tensor:
    """A parameter: its type by name, its bytes per element, the group of its optimizer.

    A matrix whose rows travel alone has `columns`: cuts lie between its rows. Others have 0.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    itemsize: int
    group: int
    columns: int = 0

    @property
    def size(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True)
class Part:
    """The elements `start` to `stop` of parameter number `tensor`."""

    tensor: int
    start: int
    stop: int

    @property
    def size(self) -> int:
        return self.stop - self.start


def divide(tensors: Sequence[Tensor], servers: int, way: str) -> list[list[Part]]:
    """Return the parts of each server: those of one type side by side, in the order of the tensors."""
    if way == "round_robin":
        parts = [
            [Part(index, 0, tensors[index].size) for index in range(k, len(tensors), servers)] for k in range(servers)
        ]
    else:
        parts = _balanced(tensors, servers, cut=way == "partition")
    types = list(dict.fromkeys(tensor.dtype for tensor in tensors))
    return [
        sorted(each, key=lambda part: (types.index(tensors[part.tensor].dtype), part.tensor, part.start))
        for each in parts
    ]


def _balanced(tensors: Sequence[Tensor], servers: int, *, cut: bool) -> list[list[Part]]:
    parts: list[list[Part]] = [[] for _ in range(servers)]
    held = [0] * servers
    whole = []
    for index, tensor in enumerate(tensors):
        step = math.lcm(ALIGNED, tensor.columns or 1)
        if not cut or tensor.size * tensor.itemsize < LEAST_CUT_BYTES or tensor.size < servers * step:
            whole.append(index)
            continue
        cuts = [tensor.size * k // servers // step * step for k in range(servers)] + [tensor.size]
        for server in range(servers):
            part = Part(index, cuts[server], cuts[server + 1])
            parts[server].append(part)
            held[server] += part.size * tensor.itemsize
    for index in sorted(whole, key=lambda one: (-tensors[one].size * tensors[one].itemsize, one)):
        least = min(range(servers), key=lambda one: (held[one], one))
        parts[least].append(Part(index, 0, tensors[index].size))
        held[least] += tensors[index].size * tensors[index].itemsize
    return parts


def first_server(rank: int, world_size: int, servers: int) -> int:
    """Return the number of the server with which this rank begins an exchange.

    The ranks begin at different servers, so that they do not all send over the link of one server at the same time.
    """
    return rank * servers // world_size % servers if servers else 0
