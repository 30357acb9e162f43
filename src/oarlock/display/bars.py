"""Bars and sparklines, made of characters.

A bar is a row of cells, and each cell has a kind. The caller gives every kind its glyph and its colour.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

OPEN = "open"
"""The kind of the cells that nothing reaches."""
WIDEST = 30
NARROWEST = 8
COURSE = "▁▂▃▄▅▆▇█"
PLAIN_COURSE = "_.-=*#"


class Reach(NamedTuple):
    """A kind of cell, and the part of the bar (0 to 1) at which it ends."""

    kind: str
    end: float


def bar(width: int, reaches: Iterable[Reach], marks: Iterable[Reach] = ()) -> list[str]:
    """Return the kinds of `width` cells.

    Each reach fills the cells from the end of the reach before it to its own end; anything above zero has a cell. A
    mark takes the last cell of its reach.
    """
    kinds = [OPEN] * width
    done = 0
    for kind, end in reaches:
        cell = _cell(end, width)
        kinds[done:cell] = [kind] * max(0, cell - done)
        done = max(done, cell)
    for kind, end in marks:
        kinds[max(0, _cell(end, width) - 1)] = kind
    return kinds


def progress(fraction: float, width: int, *, unicode: bool = True) -> str:
    """Return `[#####-----]` in at most `width` cells and the brackets; empty if that is too narrow for a bar."""
    if width < NARROWEST:
        return ""
    glyphs = {"done": "━", OPEN: "╌"} if unicode else {"done": "#", OPEN: "-"}
    return f"[{''.join(glyphs[kind] for kind in bar(min(width, WIDEST), [Reach('done', fraction)]))}]"


def sparkline(values: Sequence[float], width: int, *, unicode: bool = True) -> str:
    """Return the course of `values` in at most `width` cells: the mean of each part, from the least to the greatest."""
    width = min(width, len(values))
    parts = [values[cell * len(values) // width : (cell + 1) * len(values) // width] for cell in range(width)]
    means = [sum(part) / len(part) for part in parts]
    least, span = min(means, default=0.0), max(means, default=0.0) - min(means, default=0.0)
    levels = COURSE if unicode else PLAIN_COURSE
    return "".join(levels[min(len(levels) - 1, int((mean - least) / (span or 1) * len(levels)))] for mean in means)


def _cell(end: float, width: int) -> int:
    return min(width, max(round(end * width), 1 if end > 0 else 0))
