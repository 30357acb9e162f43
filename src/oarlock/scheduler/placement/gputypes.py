"""The order of GPU types by age: low-priority work takes older types first, and leaves the newer ones to other work."""

from __future__ import annotations

from collections.abc import Iterable

ORDINARY_PRIORITY = 50
"""A gang of lower priority that accepts any type of GPU gets the oldest free one; other gangs get the newest."""

OLDEST_FIRST = (
    "k80",
    "m60",
    "p4",
    "p40",
    "p100",
    "v100",
    "t4",
    "rtx6000",
    "rtx2080ti",
    "a10",
    "a10g",
    "rtx3090",
    "a16",
    "a40",
    "a6000",
    "a30",
    "a100",
    "l4",
    "rtx4090",
    "l40",
    "l40s",
    "mi210",
    "mi250",
    "mi250x",
    "h100",
    "gh200",
    "h200",
    "mi300x",
    "b100",
    "b200",
    "gb200",
    "b300",
    "gb300",
)
"""By generation, and within one by training speed. Names as `backends/local/gpus.py` writes them."""

_STANDING = {name: float(place) for place, name in enumerate(OLDEST_FIRST)}
_UNKNOWN = len(OLDEST_FIRST) / 2  # in the middle


def in_order(types: Iterable[str], priority: int) -> list[str]:
    """Return `types` in the order in which a gang of that priority tries them; ties by name."""
    newest_first = -1 if priority >= ORDINARY_PRIORITY else 1
    return sorted(types, key=lambda name: (newest_first * _STANDING.get(name, _UNKNOWN), name))
