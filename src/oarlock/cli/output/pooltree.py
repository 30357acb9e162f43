"""The tree of pools as text: a line for each pool, and below it a bar for each resource.

    research                                                  4 running, 2 waiting
      gpus   ██████████|█████░░░░░··········]       12       16        8       24

A bar's scale is its pool's own (`oarlock.display.pools.poolbars`): compare it with the numbers beside it, not with the
bar of another pool.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from oarlock.cli.output import terminal
from oarlock.display.pools import poolbars
from oarlock.spec.cluster import pools, pooltrees

if TYPE_CHECKING:
    from oarlock.spec import bodies

STEP = 2
"""The cells by which a child is further right than its parent."""

NUMBER_CELLS = 9
LABEL_CELLS = 7
MOST_BAR_CELLS = 36
LEAST_BAR_CELLS = 6

UNICODE = {"used": "█", "borrowed": "▓", "entitled": "░", "open": "·", "reserved": "|", "limit": "]"}
ASCII = {"used": "#", "borrowed": "+", "entitled": "-", "open": ".", "reserved": "|", "limit": "]"}
COLOURS = {"used": "green", "borrowed": "amber", "entitled": "green", "open": "dim"}


def lines(tree: bodies.PoolList, *, columns: int = 80, unicode: bool = True, colour: bool = False) -> Iterator[str]:
    """Yield the lines, each in at most `columns` cells."""
    known = {view.pool.name: view.pool for view in tree}
    depths = {name: len(pooltrees.line(name, known)) - 1 for name in known}
    resources = _resources(tree)
    numbers_cells = NUMBER_CELLS * len(poolbars.NUMBERS)
    left = STEP * (max(depths.values(), default=0) + 1) + LABEL_CELLS
    cells = max(LEAST_BAR_CELLS, min(MOST_BAR_CELLS, columns - 1 - left - numbers_cells))
    glyphs = UNICODE if unicode else ASCII
    there = ", ".join(pooltrees.shown(name, tree.capacity[name]) for name in resources if tree.capacity.get(name))
    yield _ended(f"The nodes that are ready have {there or 'nothing'}.", columns)
    titles = "".join(title.rjust(NUMBER_CELLS) for title in poolbars.NUMBERS)
    yield terminal.coloured(_ended("POOL".ljust(left + cells) + titles, columns), "bold", on=colour)
    for view in tree:
        depth = STEP * depths[view.pool.name]
        yield _ended(_named(view, depth, left + cells + numbers_cells), columns)
        for resource in resources:
            part = stretch(view, resource)
            label = (" " * (depth + STEP) + resource).ljust(left)
            numbers = "".join(text.rjust(NUMBER_CELLS) for text in _numbers(resource, part))
            room = max(0, columns - left - cells)
            yield f"{label}{bar(part, cells, glyphs, colour=colour)}{numbers[:room]}"
    legend = "  ".join(f"{glyphs[kind]} {word}" for kind, word in poolbars.WORDS.items())
    yield terminal.coloured(_ended(legend, columns), "dim", on=colour)
    if any(idle(view) for view in tree):
        yield terminal.coloured(_ended(poolbars.IDLE, columns), "dim", on=colour)


def idle(view: bodies.PoolState) -> bool:
    """Return whether the pool has no jobs, and is entitled to more than its reservation."""
    reserve = view.pool.reserve
    more = any(value > reserve.get(name, 0.0) for name, value in view.entitled.items())
    return more and not (view.running or view.waiting)


def stretch(view: bodies.PoolState, resource: str) -> poolbars.Stretch:
    return poolbars.Stretch(
        used=pools.amounts(view.held)[resource],
        entitled=view.entitled.get(resource, 0.0),
        reserved=view.pool.reserve.get(resource, 0.0),
        limit=view.pool.limit.get(resource),
    )


def bar(of: poolbars.Stretch, cells: int, glyphs: Mapping[str, str], *, colour: bool = False) -> str:
    return "".join(
        terminal.coloured(glyphs[kind], COLOURS.get(kind, "bold"), on=colour) for kind in poolbars.kinds(of, cells)
    )


def _resources(tree: bodies.PoolList) -> list[str]:
    """Return the resources that the nodes have, or that a pool reserves, limits or needs."""
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
    if len(values) == 1 and len(share) == len(pools.RESOURCES):
        return f"{values.pop():g}"
    return " ".join(f"{resource}={value:g}" for resource, value in share.items())


def _numbers(resource: str, of: poolbars.Stretch) -> Sequence[str]:
    return [
        _number(resource, of.used),
        _number(resource, of.entitled),
        _number(resource, of.reserved) if of.reserved else "-",
        _number(resource, of.limit) if of.limit is not None else "-",
    ]


def _number(resource: str, value: float) -> str:
    """Return the number in at most eight cells: `33.3`, `128Gi`, `1.5Ti`."""
    if resource != "memory":
        return f"{value:.1f}".removesuffix(".0") if value < 100_000 else f"{value:.3g}"
    for unit, size in (("Pi", 1 << 50), ("Ti", 1 << 40), ("Gi", 1 << 30), ("Mi", 1 << 20), ("Ki", 1 << 10)):
        if value >= size:
            return f"{value / size:.1f}".removesuffix(".0") + unit
    return f"{value:.0f}"


def _ended(text: str, columns: int) -> str:
    return terminal.cut(text.rstrip(), columns)
