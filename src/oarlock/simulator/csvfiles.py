"""The rows of a CSV file with a header, and errors that name the line.

Python's own readers have their own errors for a missing file, other bytes than UTF-8, a short line, or text in the
place of a number. Here each of them becomes an InvalidInput or a NotFound.
"""

from __future__ import annotations

import csv
import datetime as dt
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from oarlock.spec import errors

T = TypeVar("T")

NAME_IT = "Name a workload: a YAML or CSV file."
_SHOWN = 40


class Line:
    """The cells of one line by column.

    Each method raises ValueError, with a message, for a cell that it cannot read.
    """

    def __init__(self, cells: dict[str, str | None]) -> None:
        self._cells = cells

    def has(self, column: str) -> bool:
        return column in self._cells

    def optional(self, column: str) -> str:
        """Return the text of a cell; an empty text if there is none."""
        return (self._cells.get(column) or "").strip()

    def text(self, column: str) -> str:
        if column not in self._cells:
            raise ValueError(f"there is no column `{column}`")
        if not self.optional(column):
            raise ValueError(f"`{column}` is empty")
        return self.optional(column)

    def number(self, column: str) -> float:
        return _number(self.text(column), f"`{column}`")

    def whole(self, column: str) -> int:
        found = self.number(column)
        if found != int(found):
            raise ValueError(f"`{column}` is not a whole number: {self.text(column)[:_SHOWN]}")
        return int(found)

    def instant(self, column: str) -> float:
        """Return a time in seconds: a number as it is, or a date and time since 1970.

        It is in UTC unless it names a zone.
        """
        text = self.text(column)
        try:
            at = dt.datetime.fromisoformat(text if "-" in text[1:] else "")  # 20171009 is seconds, too
        except ValueError:
            return _number(text, f"`{column}`", "neither seconds nor a time as 2017-10-09 07:01:55")
        return (at if at.tzinfo is not None else at.replace(tzinfo=dt.UTC)).timestamp()


def header(path: Path) -> list[str]:
    """Return the names of the columns; an empty list for an empty file. Raises NotFound."""
    return next(_cells(path), (0, []))[1]


def lines(path: Path, read: Callable[[Line], T], hint: str) -> list[T]:
    """Return the result of `read` for each line. Raises InvalidInput with the line's number and `hint`."""
    cells = _cells(path)
    _, names = next(cells, (0, []))
    found: list[T] = []
    for number, row in cells:
        told: dict[str, str | None] = dict.fromkeys(names)
        told.update(zip(names, row, strict=False))
        try:
            found.append(read(Line(told)))
        except ValueError as error:
            raise errors.InvalidInput(f"{path}, line {number}: {error}", hint=hint) from error
    return found


def unreadable(path: Path, error: Exception, hint: str) -> errors.NotFound:
    """Return the error for a file that could not be read."""
    return errors.NotFound(f"{path} cannot be read: {errors.words(error)}", hint=hint)


def _cells(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield every line that is not empty, with its number.

    Spreadsheets start a file with a byte order mark, which is skipped.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file)
            for row in reader:
                if row:
                    yield reader.line_num, row
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise unreadable(path, error, NAME_IT) from error


def _number(text: str, cell: str, instead: str = "not a number") -> float:
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not math.isfinite(found):
        raise ValueError(f"{cell} is {instead}: {text[:_SHOWN]}")
    return found
