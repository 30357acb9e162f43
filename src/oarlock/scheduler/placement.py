"""Where the tasks of one gang go: all of them, or none."""

from __future__ import annotations

from collections.abc import Sequence

from oarlock.scheduler import room as rooms
from oarlock.spec import holdings, jobfile, plans

Claims = tuple[holdings.Holding, ...]


def place(
    gang: plans.Gang,
    room: rooms.Room,
    size: plans.Size | None = None,
    *,
    keep: frozenset[str] = frozenset(),
    prefer: Sequence[str] = (),
) -> Claims | None:
    """The holdings of the gang at `size` (None: as it was asked for), all of them, or None. `room` is left as it was:
    the caller takes them.

    A gang has one type of GPU: the first of its acceptable types with which it fits. A required domain of the topology
    is kept; a preferred one is tried first. Nodes named in `keep` are not used; those in `prefer`, where it stood
    before, come first among equals.
    """
    tasks = gang.at(gang.wanted if size is None else size)
    mark = room.mark()
    for gpu_type in gpu_types(gang, room):
        for candidates in _candidates(gang, room):
            free = [node for node in candidates if node.node.name not in keep]
            claims = tuple(_fill(gang, tasks, free, gpu_type, room))
            room.rollback(mark)
            if len(claims) == len(tasks):
                return claims
    return None


def most(gang: plans.Gang, room: rooms.Room) -> int:
    """How many of its tasks would fit now, were it not a gang."""
    counts = [0]
    for gpu_type in gpu_types(gang, room):
        mark = room.mark()
        claims = _fill(gang, gang.tasks, room.ready(), gpu_type, room)
        room.rollback(mark)
        counts.append(len(claims))
    return max(counts)


def gpu_types(gang: plans.Gang, room: rooms.Room) -> list[str | None]:
    """The types to try, in the gang's order of preference; None where it wants no GPU."""
    wanting = [task for task in gang.tasks if task.amount.gpus]
    if not wanting:
        return [None]
    present = sorted({device.type for node in room.nodes.values() for device in node.node.devices})
    acceptable = wanting[0].gpu_types or tuple(present)
    return [
        kind
        for kind in acceptable
        if kind in present and all(not task.gpu_types or kind in task.gpu_types for task in wanting)
    ]


def _candidates(gang: plans.Gang, room: rooms.Room) -> list[list[rooms.NodeRoom]]:
    """Sets of nodes to try, best first."""
    everywhere = room.ready()
    if gang.topology is None and gang.placement is jobfile.Placement.PACK and len(gang.tasks) > 1:
        amount = sum((task.amount for task in gang.tasks), rooms.NOTHING)
        return [*([node] for (node,) in room.domains("node") if amount.fits(node.free)), everywhere]
    if gang.topology is None:
        return [everywhere]
    domains = room.domains(gang.topology.same)
    return domains if gang.topology.required else [*domains, everywhere]


def _fill(
    gang: plans.Gang,
    tasks: Sequence[plans.GangTask],
    candidates: Sequence[rooms.NodeRoom],
    gpu_type: str | None,
    room: rooms.Room,
) -> list[holdings.Holding]:
    """Take room for the tasks one by one, the largest first; stop at the first that does not fit."""
    taken: list[holdings.Holding] = []
    here: dict[str, int] = {}
    for task in sorted(tasks, key=_largest_first):
        best: holdings.Holding | None = None
        for node in sorted(candidates, key=lambda node: _preference(gang, node, here)):
            best = node.claim(gang.job, task, gpu_type if task.amount.gpus else None)
            if best is not None:
                room.take([best])
                break
        if best is None:
            break
        here[best.node] = here.get(best.node, 0) + 1
        taken.append(best)
    return taken


def _largest_first(task: plans.GangTask) -> tuple[int, int, str, int]:
    return -task.amount.gpus, -task.amount.cpus_milli, task.role, task.index


def _preference(gang: plans.Gang, node: rooms.NodeRoom, here: dict[str, int]) -> tuple[int, ...]:
    """Best fit: the node with the least room left that holds it. Spread: the one with the fewest of this gang."""
    free = (node.free.gpus, node.free.cpus_milli, node.free.memory_bytes)
    if gang.placement is jobfile.Placement.SPREAD:
        return (here.get(node.node.name, 0), *(-amount for amount in free))
    return (-here.get(node.node.name, 0), *free)
