"""Lines of output on stdout, and below them a few rows on stderr that are drawn again and again.

On a terminal the rows are erased before a line is printed and drawn below it afterwards; they must fit (`columns`, less
one), so that they never wrap. Where stderr is no terminal, or a dumb one, there are no rows: what is worth a line is
printed once, by `note`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import IO

from oarlock.cli.output import terminal


class Screen:
    def __init__(self, out: IO[str] | None = None, err: IO[str] | None = None) -> None:
        self._out = sys.stdout if out is None else out
        self._err = sys.stderr if err is None else err
        self.live = terminal.is_terminal(self._err) and not terminal.is_dumb()
        self.colour_out = terminal.wants_colour(self._out)
        self.colour_err = terminal.wants_colour(self._err)
        self.out_is_terminal = terminal.is_terminal(self._out)
        self.err_is_terminal = terminal.is_terminal(self._err)
        self.unicode = terminal.speaks_unicode(self._err)
        self._rows: list[str] = []
        self._drawn = 0

    @property
    def columns(self) -> int:
        return terminal.columns(self._err)

    def print(self, text: str, rows: Sequence[str], *, is_error: bool = False) -> None:
        """Whole lines of output, and the rows that stand below them from now on. `is_error`: they go to stderr."""
        self._erase()
        self._rows = list(rows) if self.live else []
        stream = self._err if is_error else self._out
        stream.write(text)
        stream.flush()
        self._draw()

    def note(self, text: str) -> None:
        """A line about the job, to stay."""
        self._erase()
        self._err.write(text + "\n")
        self._err.flush()
        self._draw()

    def rows(self, rows: Sequence[str]) -> None:
        """What is to be seen at the bottom from now on. Nothing where nothing can be redrawn."""
        if not self.live or list(rows) == self._rows:
            return
        self._erase()
        self._rows = list(rows)
        self._draw()

    def close(self) -> None:
        self.rows([])

    def _erase(self) -> None:
        if self._drawn:
            up = f"\x1b[{self._drawn - 1}A" if self._drawn > 1 else ""
            self._err.write(f"\r{up}\x1b[J")
            self._err.flush()
            self._drawn = 0

    def _draw(self) -> None:
        if self._rows:
            self._err.write("\n".join(self._rows))
            self._err.flush()
            self._drawn = len(self._rows)
