"""The tree of pools as text: for each pool a line, and below it a bar for each resource.

    research                                                  4 running, 2 waiting
      gpus   ██████████|█████░░░░░··········]       12       16        8       24

A bar ends at the most that matters to its pool: its limit, or what it holds, is entitled to or reserves, where that is
more or there is no limit. So bars of one pool can be read against its numbers, and not against another pool's bar.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from oarlock.cli.output import terminal

if TYPE_CHECKING:
    from oarlock.spec import bodies

STEP = 2
"""Cells by which a child stands to the right of its parent."""

NUMBERS = ("USED", "ENTITLED", "RESERVED", "LIMIT")
NUMBER_CELLS = 9
LABEL_CELLS = 7
MOST_BAR_CELLS = 36
LEAST_BAR_CELLS = 6


IDLE = "A pool without jobs is ENTITLED to its part of what no pool wants now."
"""Said where a pool without jobs is entitled to something."""


class Glyphs(NamedTuple):
    used: str
    borrowed: str
    entitled: str
    open: str
    reserved: str
    limit: str


UNICODE = Glyphs("█", "▓", "░", "·", "|", "]")
ASCII = Glyphs("#", "+", "-", ".", "|", "]")
COLOURS = {"used": "green", "borrowed": "yellow", "entitled": "green", "open": "dim"}


class Stretch(NamedTuple):
    """What one bar is made of, in one unit."""

    used: float
    entitled: float
    reserved: float
    limit: float | None


def lines(tree: bodies.PoolList, *, columns: int = 80, unicode: bool = True, colour: bool = False) -> Iterator[str]:
    """At most `columns` cells each."""
    from oarlock.spec import pooltrees

    known = {view.pool.name: view.pool for view in tree}
    depths = {name: len(pooltrees.line(name, known)) - 1 for name in known}
    resources = _resources(tree)
    left = STEP * (max(depths.values(), default=0) + 1) + LABEL_CELLS
    cells = min(MOST_BAR_CELLS, columns - 1 - left - NUMBER_CELLS * len(NUMBERS))
    cells = max(LEAST_BAR_CELLS, cells)
    glyphs = UNICODE if unicode else ASCII
    there = ", ".join(pooltrees.shown(name, tree.capacity[name]) for name in resources if tree.capacity.get(name))
    yield _ended(f"The nodes that are ready have {there or 'nothing'}.", columns)
    titles = "".join(title.rjust(NUMBER_CELLS) for title in NUMBERS)
    yield terminal.coloured(_ended("POOL".ljust(left + cells) + titles, columns), "bold", on=colour)
    for view in tree:
        depth = STEP * depths[view.pool.name]
        yield _ended(_named(view, depth, left + cells + NUMBER_CELLS * len(NUMBERS)), columns)
        for resource in resources:
            part = stretch(view, resource)
            label = (" " * (depth + STEP) + resource).ljust(left)
            numbers = "".join(text.rjust(NUMBER_CELLS) for text in _numbers(resource, part))
            room = max(0, columns - left - cells)
            yield f"{label}{bar(part, cells, glyphs, colour=colour)}{numbers[:room]}"
    yield terminal.coloured(_ended(legend(glyphs), columns), "dim", on=colour)
    if any(idle(view) for view in tree):
        yield terminal.coloured(_ended(IDLE, columns), "dim", on=colour)


def idle(view: bodies.PoolState) -> bool:
    """Whether nothing runs or waits in the pool, and it is entitled to a part of what no pool wants."""
    reserve = view.pool.reserve
    more = any(value > reserve.get(name, 0.0) for name, value in view.entitled.items())
    return more and not (view.running or view.waiting)


def legend(glyphs: Glyphs) -> str:
    return (
        f"{glyphs.used} used  {glyphs.borrowed} used beyond what it is entitled to  {glyphs.entitled} entitled to  "
        f"{glyphs.reserved} reserved  {glyphs.limit} limit"
    )


def stretch(view: bodies.PoolState, resource: str) -> Stretch:
    from oarlock.spec import pools

    return Stretch(
        used=pools.amounts(view.held)[resource],
        entitled=view.entitled.get(resource, 0.0),
        reserved=view.pool.reserve.get(resource, 0.0),
        limit=view.pool.limit.get(resource),
    )


def bar(of: Stretch, cells: int, glyphs: Glyphs, *, colour: bool = False) -> str:
    """`cells` cells. Something that is more than nothing has a cell; a mark takes the last cell of what it marks."""
    full = max(of.used, of.entitled, of.reserved, min(of.limit or 0.0, 4 * max(of.used, of.entitled, of.reserved)))
    if full <= 0:
        return (glyphs.limit if of.limit is not None else glyphs.open).rjust(cells, glyphs.open)

    def reach(value: float) -> int:
        return min(cells, max(round(value / full * cells), 1 if value > 0 else 0))

    used, entitled = reach(of.used), reach(of.entitled)
    kinds = [
        ("used" if place < entitled else "borrowed") if place < used else "entitled" if place < entitled else "open"
        for place in range(cells)
    ]
    if of.reserved:
        kinds[reach(of.reserved) - 1] = "reserved"
    if of.limit is not None:
        kinds[max(0, reach(of.limit) - 1)] = "limit"
    return "".join(terminal.coloured(getattr(glyphs, kind), COLOURS.get(kind, "bold"), on=colour) for kind in kinds)


def _resources(tree: bodies.PoolList) -> list[str]:
    """Those that there are, or that some pool speaks of."""
    from oarlock.spec import pools

    spoken = [tree.capacity]
    for view in tree:
        spoken += [view.pool.reserve, view.pool.limit, view.demand]
    return [name for name in pools.RESOURCES if any(of.get(name) for of in spoken)]


def _named(view: bodies.PoolState, depth: int, width: int) -> str:
    pool = view.pool
    told = [f"{view.running} running", f"{view.waiting} waiting"]
    told += [f"policy {pool.policy}"] if pool.policy else []
    told += [f"share {_shares(pool.share)}"] if any(value != 1 for value in pool.share.values()) else []
    told += [f"static {' '.join(pool.static)}"] if pool.static else []
    facts = terminal.clean(", ".join(told))
    name = " " * depth + terminal.clean(pool.name)
    room = width - terminal.cells(facts) - 2
    return f"{terminal.cut(name, max(12, room)).ljust(room)}  {facts}"


def _shares(share: Mapping[str, float]) -> str:
    values = set(share.values())
    if len(values) == 1 and len(share) == 3:
        return f"{values.pop():g}"
    return " ".join(f"{resource}={value:g}" for resource, value in share.items())


def _numbers(resource: str, of: Stretch) -> Sequence[str]:
    shown = [_number(resource, value) for value in (of.used, of.entitled)]
    return [
        *shown,
        _number(resource, of.reserved) if of.reserved else "-",
        _number(resource, of.limit) if of.limit is not None else "-",
    ]


def _number(resource: str, value: float) -> str:
    """In at most eight cells: `33.3`, `128Gi`, `1.5Ti`."""
    if resource != "memory":
        return f"{value:.1f}".removesuffix(".0") if value < 100_000 else f"{value:.3g}"
    for unit, size in (("Pi", 1 << 50), ("Ti", 1 << 40), ("Gi", 1 << 30), ("Mi", 1 << 20), ("Ki", 1 << 10)):
        if value >= size:
            return f"{value / size:.1f}".removesuffix(".0") + unit
    return f"{value:.0f}"


def _ended(text: str, columns: int) -> str:
    return terminal.cut(text.rstrip(), columns)
