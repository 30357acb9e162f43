"""Amounts and gangs in plain words, for sentences that people read: `8 h100 GPUs, 64 GiB for 4 tasks`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from oarlock.spec import plans, quantities

NAMED = 3
"""Of a list of names so many are written out; the rest is counted."""


def shown(resource: str, value: float, kinds: Sequence[str] = ()) -> str:
    """`8 GPUs`, `1 h100 GPU`, `2 GPUs (h100 or a100)`, `0.5 CPUs`, `16 GiB`."""
    if resource == "memory":
        return quantities.memory_text(value)
    unit = "CPU" if resource == "cpus" else "GPU"
    plural = "" if value == 1 else "s"
    kind = f"{kinds[0]} " if resource == "gpus" and len(kinds) == 1 else ""
    either = f" ({' or '.join(kinds)})" if resource == "gpus" and len(kinds) > 1 else ""
    return f"{plain(value)} {kind}{unit}{plural}{either}"


def part(resource: str, value: float, total: float, kinds: Sequence[str] = ()) -> str:
    """`3 of 16 CPUs`, `1.5 GiB of 4 GiB`."""
    have = quantities.memory_text(value) if resource == "memory" else plain(value)
    return f"{have} of {shown(resource, total, kinds)}"


def amounts(of: Mapping[str, float], kinds: Sequence[str] = ()) -> str:
    """GPUs first: they are what is short."""
    order = [name for name in ("gpus", "cpus", "memory") if of.get(name)]
    return listed([shown(name, of[name], kinds) for name in order]) or "nothing"


def wanted(gang: plans.Gang, needed: Mapping[str, float]) -> str:
    """`8 GPUs and 8 CPUs for 4 tasks`; of an elastic gang what it cannot do without."""
    tasks = sum(gang.smallest)
    least = "at least " if gang.elastic else ""
    return f"{least}{amounts(needed, kinds(gang))} for {tasks} task{'' if tasks == 1 else 's'}{_within(gang)}"


def kinds(gang: plans.Gang) -> tuple[str, ...]:
    """The GPU types that would do, best first; empty where any does."""
    return next((ask.gpu_types for ask in gang.asks if ask.amount.devices), ())


def named(names: Iterable[str], others: str = "others") -> str:
    """`a, b and 5 others`."""
    found = list(names)
    rest = len(found) - NAMED
    if rest <= 1:
        return listed(found)
    return f"{', '.join(found[:NAMED])} and {rest} {others}"


def listed(parts: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return " and ".join(filter(None, [", ".join(parts[:-1]), parts[-1]])) if parts else ""


def plain(value: float) -> str:
    return f"{round(value, 3):,.10g}"


def about(seconds: float) -> str:
    """A time to come, as precisely as it can be meant: `40 s`, `12 min`, `3 h`, `2 d`."""
    size, unit = _unit(seconds)
    return f"{_rounded(seconds / size) if size > 1 else round(seconds)} {unit}"


def span(low_s: float, high_s: float) -> str:
    """`12 to 40 min`, `50 min to 2 h`; one time where both read the same."""
    one, other = about(low_s), about(high_s)
    if one == other:
        return one
    (number, unit), (_, last) = one.split(), other.split()
    return f"{number} to {other}" if unit == last else f"{one} to {other}"


def ordinal(place: int) -> str:
    """`1st`, `2nd`, `3rd`, `4th`, `11th`."""
    ending = "th" if 10 < place % 100 < 14 else {1: "st", 2: "nd", 3: "rd"}.get(place % 10, "th")
    return f"{place:,}{ending}"


_UNITS = ((86_400.0, "d"), (3600.0, "h"), (60.0, "min"))


def _unit(seconds: float) -> tuple[float, str]:
    """The largest of which there are at least one and a half: 80 s, 75 min, 30 h read better than 1.3 of the next."""
    return next(((size, unit) for size, unit in _UNITS if seconds >= 1.5 * size), (1.0, "s"))


def _rounded(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0") if value < 10 and value != round(value) else f"{value:.0f}"


def _within(gang: plans.Gang) -> str:
    if gang.topology is None or not gang.topology.required:
        return ""
    domain = {"nvlink": "NVLink domain"}.get(gang.topology.same, gang.topology.same)
    return f" within one {domain}"
