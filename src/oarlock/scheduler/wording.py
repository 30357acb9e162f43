"""Amounts and gangs in numbers and in plain words, for sentences that people read: `8 h100 GPUs for 4 tasks`."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from oarlock.scheduler import amounts
from oarlock.spec import holdings, plans
from oarlock.spec.cluster import nodes
from oarlock.spec.input import quantities

NAMED = 3
"""Names of a list that are written out; the others are counted."""


class Cards(NamedTuple):
    """The GPUs that suit a gang: the types (empty: any), the least memory of each, and the constraints on nodes."""

    types: tuple[str, ...] = ()
    memory_bytes: int = 0
    constraints: nodes.Constraints | None = None

    @property
    def choose(self) -> bool:
        """Whether not every type of GPU suits the gang."""
        return bool(self.types or self.memory_bytes)

    def on(self, node: nodes.Node) -> bool:
        """Return whether the GPUs of a node suit the gang. All GPUs of a node are taken to be of one type."""
        return any(
            (not self.types or device.type in self.types) and device.memory_bytes >= self.memory_bytes
            for device in node.devices
        )


ANY = Cards()


def devices(node: nodes.Node, count: float, cards: Cards) -> float:
    """Return `count` if the node's GPUs suit the gang, else 0."""
    return count if not cards.choose or cards.on(node) else 0.0


def total(of: Sequence[nodes.Node], cards: Cards = ANY) -> dict[str, float]:
    """Return the capacity of the nodes that are not closed to the gang, with only the GPUs that suit it."""
    return _suiting(((node, node.capacity) for node in of), cards)


def taken(of: Sequence[nodes.Node], cards: Cards = ANY) -> dict[str, float]:
    """Return the amounts that programs of others take of these nodes; of GPUs those that would do."""
    return _suiting(((node, node.taken) for node in of), cards)


def _suiting(of: Iterable[tuple[nodes.Node, holdings.Resources]], cards: Cards) -> dict[str, float]:
    open_to = [(node, amount) for node, amount in of if node.admits(cards.constraints)]
    found = amounts.numbers(sum((amount for _, amount in open_to), holdings.Resources()))
    if cards.choose:
        found["gpus"] = sum(devices(node, amount.devices, cards) for node, amount in open_to)
    return found


def needed(gang: plans.Gang) -> dict[str, float]:
    """Return the amounts that a gang holds at its smallest size."""
    return _needed(gang.asks)


@functools.lru_cache(maxsize=1 << 14)
def _needed(asks: tuple[plans.Ask, ...]) -> dict[str, float]:
    """Return amounts by name. The result is cached: do not change it."""
    return amounts.numbers(sum((ask.amount.times(ask.min) for ask in asks), holdings.Resources()))


def shown(resource: str, value: float, cards: Cards = ANY) -> str:
    """Return `8 GPUs`, `1 h100 GPU`, `2 GPUs (h100 or a100) with 40 GiB`, `0.5 CPUs`, `16 GiB`."""
    if resource == "memory":
        return quantities.memory_text(value)
    unit = "CPU" if resource == "cpus" else "GPU"
    plural = "" if value == 1 else "s"
    if resource == "cpus":
        return f"{plain(value)} {unit}{plural}"
    kind = f"{cards.types[0]} " if len(cards.types) == 1 else ""
    either = f" ({' or '.join(cards.types)})" if len(cards.types) > 1 else ""
    memory = f" with {quantities.memory_text(cards.memory_bytes)}" if cards.memory_bytes else ""
    return f"{plain(value)} {kind}{unit}{plural}{either}{memory}"


def part(resource: str, value: float, of: float, cards: Cards = ANY) -> str:
    """Return `3 of 16 CPUs`, `1.5 GiB of 4 GiB`."""
    have = quantities.memory_text(value) if resource == "memory" else plain(value)
    return f"{have} of {shown(resource, of, cards)}"


def several(of: Mapping[str, float], cards: Cards = ANY) -> str:
    """Return amounts as text, GPUs first, because they are scarce."""
    order = [name for name in ("gpus", "cpus", "memory") if of.get(name)]
    return listed([shown(name, of[name], cards) for name in order]) or "nothing"


def wanted(gang: plans.Gang) -> str:
    """Return `8 GPUs and 8 CPUs for 4 tasks`; for an elastic gang the amounts of its smallest size."""
    tasks = sum(gang.smallest)
    least = "at least " if gang.elastic else ""
    return f"{least}{several(needed(gang), cards(gang))} for {tasks} task{'' if tasks == 1 else 's'}{_within(gang)}"


def cards(gang: plans.Gang) -> Cards:
    """Return the GPUs that suit the first role of a gang that asks for any, and the gang's constraints."""
    held = gang.constraints
    found = (Cards(ask.gpu_types, ask.gpu_memory_bytes, held) for ask in gang.asks if ask.amount.devices)
    return next(found, ANY if held is None else Cards(constraints=held))


def closed(of: Iterable[nodes.Node], constraints: nodes.Constraints | None) -> str:
    """Return the nodes that are closed to such gangs alone, with the reasons: `n1 and n2 (taint team=b:NoSchedule)`.

    Return an empty text if there are none.
    """
    names: dict[str, list[str]] = {}
    for node in of:
        if not node.admits(constraints):
            names.setdefault(", ".join(node.barriers(constraints)), []).append(node.name)
    return ", ".join(f"{named(sorted(which))} ({why})" for why, which in sorted(names.items()))


def named(names: Iterable[str], others: str = "others") -> str:
    """Return `a, b and 5 others`."""
    found = list(names)
    rest = len(found) - NAMED
    if rest <= 1:
        return listed(found)
    return f"{', '.join(found[:NAMED])} and {rest} {others}"


def listed(parts: Sequence[str]) -> str:
    """Return `a`, `a and b`, `a, b and c`."""
    return " and ".join(filter(None, [", ".join(parts[:-1]), parts[-1]])) if parts else ""


def workers(count: int) -> str:
    return f"{count} worker{'' if count == 1 else 's'}"


def plain(value: float) -> str:
    return f"{round(value, 3):,.10g}"


def about(seconds: float) -> str:
    """Return a duration, as precisely as it is known: `40 s`, `12 min`, `3 h`, `2 d`."""
    size, unit = _unit(seconds)
    return f"{_rounded(seconds / size) if size > 1 else round(seconds)} {unit}"


def span(low_s: float, high_s: float) -> str:
    """Return `12 to 40 min`, `50 min to 2 h`; one duration where the two hardly differ."""
    one, other = about(low_s), about(high_s)
    if one == other or high_s <= 1.05 * low_s:
        return one
    (number, unit), (_, last) = one.split(), other.split()
    return f"{number} to {other}" if unit == last else f"{one} to {other}"


def ordinal(place: int) -> str:
    """Return `1st`, `2nd`, `3rd`, `4th`, `11th`."""
    ending = "th" if 10 < place % 100 < 14 else {1: "st", 2: "nd", 3: "rd"}.get(place % 10, "th")
    return f"{place:,}{ending}"


_UNITS = ((86_400.0, "d"), (3600.0, "h"), (60.0, "min"))


def _unit(seconds: float) -> tuple[float, str]:
    """Return the largest unit of which there are at least 1.5: 80 s, 75 min, 30 h."""
    return next(((size, unit) for size, unit in _UNITS if seconds >= 1.5 * size), (1.0, "s"))


def _rounded(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0") if value < 10 and value != round(value) else f"{value:.0f}"


def _within(gang: plans.Gang) -> str:
    if gang.topology is None or not gang.topology.required:
        return ""
    domain = {"nvlink": "NVLink domain"}.get(gang.topology.same, gang.topology.same)
    return f" within one {domain}"
