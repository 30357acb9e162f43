"""Tables for people: cut to fit a terminal, and whole in a file or a pipe."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from oarlock.cli.output import terminal
from oarlock.display.tables import columns


def show(titles: Sequence[columns.Column], rows: Sequence[Sequence[str]]) -> None:
    """Print the table, without the columns that are empty in every row."""
    kept = [place for place in range(len(titles)) if not rows or place == 0 or any(row[place] for row in rows)]
    cells = [[terminal.clean(row[place]) for place in kept] for row in rows]
    titles = [titles[place] for place in kept]
    widths = [
        max([len(column.title), *(terminal.cells(row[place]) for row in cells)]) for place, column in enumerate(titles)
    ]
    if terminal.is_terminal(sys.stdout):
        widths = fitted(widths, titles, terminal.columns(sys.stdout))
    on = terminal.wants_colour(sys.stdout)
    terminal.out(terminal.coloured(_line([column.title for column in titles], titles, widths), "bold", on=on))
    for row in cells:
        terminal.out(_line(row, titles, widths, on=on))


def fitted(widths: Sequence[int], titles: Sequence[columns.Column], room: int) -> list[int]:
    """Return widths that fit into `room` with two spaces between the columns.

    The columns of the greatest weight are cut first, to their least width. If that is not enough, the last columns are
    cut off.
    """
    found = list(widths)
    over = sum(found) + 2 * (len(found) - 1) - (room - 1)
    by_weight = sorted(range(len(found)), key=lambda place: -titles[place].weight)
    for place, least in [
        *((place, titles[place].least) for place in by_weight if titles[place].weight),
        *((place, 0) for place in reversed(range(len(found)))),
    ]:
        taken = min(max(0, over), max(0, found[place] - least))
        found[place] -= taken
        over -= taken
    return found


def _line(cells: Sequence[str], titles: Sequence[columns.Column], widths: Sequence[int], *, on: bool = False) -> str:
    parts = []
    for cell, column, width in zip(cells, titles, widths, strict=True):
        text = terminal.cut(cell, width)
        space = " " * max(0, width - terminal.cells(text))
        colour = column.colours.get(cell)
        text = terminal.coloured(text, colour, on=on) if colour else text
        parts.append(space + text if column.right else text + space)
    return "  ".join(parts).rstrip()
