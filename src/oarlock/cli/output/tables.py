"""Tables for people: cut to fit a terminal, whole where they go to a file or a pipe."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from oarlock.cli.output import terminal


class Column:
    """`weight`: which columns give way first where there is no room, down to `least` cells; 0 never does."""

    def __init__(
        self, title: str, *, right: bool = False, weight: int = 0, least: int = 8, colours: dict[str, str] | None = None
    ) -> None:
        self.title = title
        self.right = right
        self.weight = weight
        self.least = least
        self.colours = colours or {}


def show(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
    """Columns that are empty in every row are left out."""
    kept = [place for place in range(len(columns)) if not rows or place == 0 or any(row[place] for row in rows)]
    cells = [[terminal.clean(row[place]) for place in kept] for row in rows]
    titles = [columns[place] for place in kept]
    seen = terminal.is_terminal(sys.stdout)
    widths = [
        max([len(column.title), *(terminal.cells(row[place]) for row in cells)]) for place, column in enumerate(titles)
    ]
    if seen:
        widths = fitted(widths, titles, terminal.columns(sys.stdout))
    on = terminal.wants_colour(sys.stdout)
    terminal.out(terminal.coloured(_line([column.title for column in titles], titles, widths), "bold", on=on))
    for row in cells:
        terminal.out(_line(row, titles, widths, on=on))


def fitted(widths: Sequence[int], columns: Sequence[Column], room: int) -> list[int]:
    """Widths whose sum, with two spaces between, fits `room`: the heaviest columns give way first, to what they need at
    least; where even that is too much, the last ones are cut off.
    """
    found = list(widths)
    over = sum(found) + 2 * (len(found) - 1) - (room - 1)
    for place in sorted(range(len(found)), key=lambda place: -columns[place].weight):
        if columns[place].weight == 0:
            break
        taken = min(max(0, over), max(0, found[place] - columns[place].least))
        found[place] -= taken
        over -= taken
    for place in reversed(range(len(found))):
        taken = min(max(0, over), found[place])
        found[place] -= taken
        over -= taken
    return found


def _line(cells: Sequence[str], columns: Sequence[Column], widths: Sequence[int], *, on: bool = False) -> str:
    parts = []
    for cell, column, width in zip(cells, columns, widths, strict=True):
        text = terminal.cut(cell, width)
        space = " " * max(0, width - terminal.cells(text))
        colour = column.colours.get(cell)
        text = terminal.coloured(text, colour, on=on) if colour else text
        parts.append(space + text if column.right else text + space)
    return "  ".join(parts).rstrip()
