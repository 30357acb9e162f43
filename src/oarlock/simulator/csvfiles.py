"""A table that somebody recorded (CSV with a header), line by line; and what is wrong with it, in words that say where.

Files and spreadsheets bring what Python's own readers answer with words of theirs: no file, other bytes than UTF-8, a
short line, text where a number belongs. Here each of them becomes an InvalidInput or NotFound.
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
    """One line's cells by their column. Each method raises ValueError in words for what it cannot be."""

    def __init__(self, cells: dict[str, str | None]) -> None:
        self._cells = cells

    def has(self, column: str) -> bool:
        return column in self._cells

    def said(self, column: str) -> str:
        """Empty where there is nothing."""
        return (self._cells.get(column) or "").strip()

    def text(self, column: str) -> str:
        if column not in self._cells:
            raise ValueError(f"there is no column `{column}`")
        if not self.said(column):
            raise ValueError(f"`{column}` is empty")
        return self.said(column)

    def number(self, column: str) -> float:
        return _number(self.text(column), f"`{column}`")

    def whole(self, column: str) -> int:
        found = self.number(column)
        if found != int(found):
            raise ValueError(f"`{column}` is no whole number: {self.text(column)[:_SHOWN]}")
        return int(found)

    def instant(self, column: str) -> float:
        """Seconds: of what is written so, or since 1970 of a date and time, which is UTC where it does not say."""
        text = self.text(column)
        try:
            at = dt.datetime.fromisoformat(text if "-" in text[1:] else "")  # 20171009 is seconds, too
        except ValueError:
            return _number(text, f"`{column}`", "neither seconds nor a time as 2017-10-09 07:01:55")
        return (at if at.tzinfo is not None else at.replace(tzinfo=dt.UTC)).timestamp()


def header(path: Path) -> list[str]:
    """The names of its columns, none of an empty file. Raises NotFound."""
    return next(_cells(path), (0, []))[1]


def lines(path: Path, read: Callable[[Line], T], hint: str) -> list[T]:
    """What `read` makes of each line. Raises InvalidInput, naming the line; its hint says which columns there are."""
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


def unread(path: Path, error: Exception, hint: str) -> errors.NotFound:
    """Why a file could not be read at all."""
    return errors.NotFound(f"{path} cannot be read: {errors.words(error)}", hint=hint)


def _cells(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Every line that is not empty, with its number in the file. Spreadsheets begin theirs with a byte order mark."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file)
            for row in reader:
                if row:
                    yield reader.line_num, row
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise unread(path, error, NAME_IT) from error


def _number(text: str, what: str, instead: str = "no number") -> float:
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not math.isfinite(found):
        raise ValueError(f"{what} is {instead}: {text[:_SHOWN]}")
    return found
