"""Lines of output on stdout, and below them a few rows on stderr that are drawn again and again.

On a terminal the rows are erased before a line is printed, and drawn again below it. They must be shorter than
`columns`, so that they never wrap. If stderr is not a terminal, or a dumb one, there are no rows; `note` prints each
change once.
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

    def print(self, text: str | bytes, rows: Sequence[str], *, is_error: bool = False) -> None:
        """Print whole lines, to stderr if `is_error`, and draw `rows` below them from now on."""
        self._erase()
        self._rows = list(rows) if self.live else []
        stream = self._err if is_error else self._out
        terminal.write(stream, text)
        stream.flush()
        self._draw()

    def note(self, text: str) -> None:
        """Print a line about the job, which stays."""
        self._erase()
        self._err.write(text + "\n")
        self._err.flush()
        self._draw()

    def rows(self, rows: Sequence[str]) -> None:
        """Draw `rows` at the bottom from now on, if this is a terminal that can draw again."""
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
