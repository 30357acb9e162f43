"""Log lines as they are shown: with the task's name in front where there are several, in a colour of its own.

On a terminal a line without an end waits in the live rows until it has one; elsewhere it waits until it is whole.
"""

from __future__ import annotations

import msgspec

from oarlock.cli import terminal
from oarlock.data import port as data

_PALETTE = ("cyan", "green", "magenta", "blue", "yellow")
MAX_PENDING_CHARACTERS = 65_536


class Style(msgspec.Struct, frozen=True, kw_only=True):
    prefix: bool  # name the task
    colour: bool
    clean: bool  # a terminal will show it


class Writer:
    """Turns lines into text for stdout. One for each reader."""

    def __init__(self, style: Style) -> None:
        self._style = style
        self._pending: dict[tuple[str, int, int, str], str] = {}
        self._colours: dict[str, str] = {}
        self._width = 0

    def text(self, line: data.Line) -> str:
        """What is to be printed now: nothing yet for a line without an end."""
        stream = (line.task, line.attempt, line.incarnation, line.stream)
        whole = self._pending.pop(stream, "") + line.text
        if line.partial and len(whole) < MAX_PENDING_CHARACTERS:
            self._pending[stream] = whole
            return ""
        return self._shown(line.task, whole)

    @property
    def pending(self) -> str:
        """The newest line without an end."""
        if not self._pending:
            return ""
        (task, *_), text = next(reversed(self._pending.items()))
        return (f"{task} | " if self._style.prefix else "") + terminal.shown_line(text)

    def rest(self) -> str:
        """Everything that never got an end."""
        left, self._pending = self._pending, {}
        return "".join(self._shown(task, text) for (task, *_), text in left.items())

    def _shown(self, task: str, text: str) -> str:
        if self._style.clean:
            text = terminal.shown_line(text)
        if not self._style.prefix:
            return text + "\n"
        name = task.ljust(self._width)
        self._width = max(self._width, len(task))
        colour = self._colours.setdefault(task, _PALETTE[len(self._colours) % len(_PALETTE)])
        return f"{terminal.coloured(name + ' |', colour, on=self._style.colour)} {text}\n"
