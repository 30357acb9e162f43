"""The nodes of a simulation, from a short text: `16x4`, or `16x4:v100,8x8:h100`."""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

from oarlock.spec import errors, holdings
from oarlock.spec.cluster import nodes
from oarlock.spec.input import quantities

MOST_NODES = 100_000
MOST_GPUS = 64  # on one node
DEFAULT_TYPE = "gpu"

_WORD = re.compile(r"(\d{1,12})x(\d{1,4})(?::([A-Za-z0-9_.-]{1,40}))?")


class NodeClass(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`count` identical nodes.

    `per_rack` and `per_zone` nodes are in one domain; without them there are no racks or zones.
    """

    count: int
    gpus: int = 0
    gpu_type: str = DEFAULT_TYPE
    gpu_memory: str | int = "80Gi"
    cpus: float | str = 64
    memory: str | int = "512Gi"
    per_rack: int | None = None
    per_zone: int | None = None
    price_per_h: float = 0.0


def parse(words: Iterable[str]) -> tuple[NodeClass, ...]:
    """Return the node classes of COUNTxGPUS or COUNTxGPUS:TYPE, several of them separated by commas.

    Raises InvalidInput for any other text.
    """
    found = []
    for word in (part for text in words for part in text.split(",")):
        match = _WORD.fullmatch(word.strip())
        if match is None:
            raise errors.InvalidInput(
                f"{word!r} does not describe nodes", hint="Write 16x4 (16 nodes of 4 GPUs), or 16x4:v100,8x8:h100."
            )
        found.append(NodeClass(count=int(match[1]), gpus=int(match[2]), gpu_type=match[3] or DEFAULT_TYPE))
    return tuple(found)


def machines(classes: Iterable[NodeClass]) -> list[nodes.Node]:
    """Return the nodes `n0001`, `n0002`... in the order of their classes. Raises InvalidInput for none, or too many."""
    classes = list(classes)
    total = sum(one.count for one in classes)
    if not 0 < total <= MOST_NODES:
        raise errors.InvalidInput(f"{total:,} nodes", path="nodes", hint=f"Name 1 to {MOST_NODES:,}, as in 16x4.")
    for one in classes:
        for name in ("count", "per_rack", "per_zone"):
            if (said := getattr(one, name)) is not None and said < 1:
                raise errors.InvalidInput(f"{said}", path=f"nodes.{name}", hint="1 or more.")
    made: list[nodes.Node] = []
    width = len(str(total))
    for one in classes:
        if not 0 <= one.gpus <= MOST_GPUS:
            raise errors.InvalidInput(f"{one.gpus} GPUs on a node", path="nodes", hint=f"At most {MOST_GPUS}.")
        made += [_node(one, len(made) + place, place, width) for place in range(one.count)]
    return made


def _node(of: NodeClass, number: int, place: int, width: int) -> nodes.Node:
    domains = {}
    if of.per_rack:
        domains["rack"] = f"{of.gpu_type}-r{place // of.per_rack + 1}"
    if of.per_zone:
        domains["zone"] = f"{of.gpu_type}-z{place // of.per_zone + 1}"
    memory = quantities.memory_bytes(of.gpu_memory)
    return nodes.Node(
        name=f"n{number + 1:0{width}}",
        capacity=holdings.Resources(quantities.cpus_milli(of.cpus), quantities.memory_bytes(of.memory), of.gpus),
        devices=tuple(nodes.Device(index=index, type=of.gpu_type, memory_bytes=memory) for index in range(of.gpus)),
        domains=domains,
        price_per_h=of.price_per_h,
    )
