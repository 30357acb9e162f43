"""The table of a simulation's runs: a column for each run, in groups that fit the terminal."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from oarlock.cli.output import tables, terminal
from oarlock.display.tables import columns


def show(titles: Sequence[str], lines: Sequence[Sequence[str]]) -> None:
    """Print a table whose first column names the lines. Columns that do not fit stand below."""
    widths = [
        max(terminal.cells(title), *(terminal.cells(line[place]) for line in lines))
        for place, title in enumerate(titles)
    ]
    for number, places in enumerate(side_by_side(widths, terminal.columns(sys.stdout))):
        if number:
            terminal.out()
        shown = [columns.Column(titles[0]), *(columns.Column(titles[place], right=True) for place in places)]
        tables.show(shown, [[line[0], *(line[place] for place in places)] for line in lines])


def side_by_side(widths: Sequence[int], room: int) -> list[list[int]]:
    """Return groups of columns (from 1) that fit into `room` beside the first column, which begins each group.

    A column that is too wide is a group of its own.
    """
    groups: list[list[int]] = []
    taken = room
    for place, width in enumerate(widths[1:], 1):
        if taken + 2 + width > room - 1:
            groups.append([])
            taken = widths[0]
        groups[-1].append(place)
        taken += 2 + width
    return groups
