"""Log lines as they are shown: behind the name of their task if there are several, in a colour of its own.

On a terminal a line without an end waits in the live rows, elsewhere in memory, until it is whole. A progress bar stays
without an end for long: its program draws the line again and again with carriage returns. In a file or a pipe such a
line comes in pieces, as they arrive, each on a line of its own. If tasks have several processes, the name ends with the
process: `worker-1.0`. Whole lines that need none of this go to a file or a pipe as the bytes that they are.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import msgspec

from oarlock.cli.output import terminal
from oarlock.spec import jobfile, tasklogs

_PALETTE = ("cyan", "green", "violet", "blue", "amber")
MAX_SHOWN_CHARACTERS = 65_536
"""The longest line on a terminal. A longer one is broken."""
MAX_WHOLE_CHARACTERS = 16 << 20
"""The longest line in a file or a pipe. So much of each stream may be in memory."""


class Style(msgspec.Struct, frozen=True, kw_only=True):
    prefix: bool  # print the task's name
    process: bool = False  # and its process's number
    colour: bool
    clean: bool  # remove control characters, for a terminal
    raw: bool = False  # print whole lines as their bytes, if nothing in them changes


def style(spec: jobfile.JobSpec, *, alone: bool, colour: bool, clean: bool, raw: bool = False) -> Style:
    """Return the style of a job's lines. `alone`: the lines are those of one index."""
    process = any(role.nproc > 1 for role in spec.roles.values())
    several = not alone and sum(role.max or role.count for role in spec.roles.values()) > 1
    return Style(prefix=several or process, process=process, colour=colour, clean=clean, raw=raw)


Stream = tuple[str, int, int, str]


class Piece(NamedTuple):
    """Text to print, or the bytes of whole lines, and whether the task wrote it to its stderr."""

    text: str | bytes
    is_error: bool


class Writer:
    """The text of lines for one reader. `errors` is the style of stderr's lines, if it differs."""

    def __init__(self, style: Style, errors: Style | None = None) -> None:
        self._out = style
        self._errors = style if errors is None else errors
        self._pending: dict[Stream, str] = {}
        self._redrawn: set[Stream] = set()  # streams with an open line that was printed in part
        self._colours: dict[str, str] = {}
        self._width = 0

    def piece(self, line: tasklogs.Line) -> Piece:
        """Return the text to print now, and its stream."""
        stream = self._stream(line)
        if isinstance(line, tasklogs.Lines):
            return Piece(self._many(stream, line), _is_error(line.stream))
        return Piece(self._text(stream, line), _is_error(line.stream))

    def _stream(self, line: tasklogs.Line) -> Stream:
        task = f"{line.task}.{line.stream.rpartition('.')[2]}" if self._style(line.stream).process else line.task
        return (task, line.attempt, line.incarnation, line.stream)

    def _text(self, stream: Stream, line: tasklogs.Line) -> str:
        """Return the text to print now: nothing yet for a line without an end, unless it is redrawn."""
        style = self._style(line.stream)
        whole = self._pending.pop(stream, "") + line.text
        if stream in self._redrawn or (line.partial and "\r" in whole and not style.clean):
            (self._redrawn.add if line.partial else self._redrawn.discard)(stream)
            piece = whole.strip("\r")
            return self._shown(stream, piece) if piece else ""
        if line.partial and len(whole) < (MAX_SHOWN_CHARACTERS if style.clean else MAX_WHOLE_CHARACTERS):
            self._pending[stream] = whole
            return ""
        return self._shown(stream, whole)

    @property
    def pending(self) -> str:
        """Return the newest line without an end."""
        if not self._pending:
            return ""
        (task, *_), text = next(reversed(self._pending.items()))
        return (f"{task} | " if self._out.prefix else "") + terminal.shown_line(text)

    def rest(self) -> list[Piece]:
        """Return all lines that never got an end."""
        left, self._pending = self._pending, {}
        return [Piece(self._shown(stream, text), _is_error(stream[-1])) for stream, text in left.items()]

    def _style(self, stream: str) -> Style:
        return self._errors if _is_error(stream) else self._out

    def _many(self, stream: Stream, lines: tasklogs.Lines) -> str | bytes:
        """Return whole lines, unchanged if the style changes none of them."""
        style = self._style(lines.stream)
        plain = not (style.clean or style.prefix or stream in self._pending or stream in self._redrawn)
        if plain and style.raw:
            return lines.data
        text = lines.data.decode(errors="replace")
        if plain:
            return text
        first, *rest = text[:-1].split("\n")
        head = tasklogs.Line(
            task=lines.task,
            attempt=lines.attempt,
            incarnation=lines.incarnation,
            stream=lines.stream,
            offset=lines.offset,
            at=lines.at,
            text=first,
        )
        return self._text(stream, head) + "".join([self._shown(stream, text) for text in rest])

    def _shown(self, stream: Stream, text: str) -> str:
        task, style = stream[0], self._style(stream[-1])
        if style.clean:
            text = terminal.shown_line(text)
        if not style.prefix:
            return text + "\n"
        name = task.ljust(self._width)
        self._width = max(self._width, len(task))
        colour = self._colours.setdefault(task, _PALETTE[len(self._colours) % len(_PALETTE)])
        return f"{terminal.coloured(name + ' |', colour, on=style.colour)} {text}\n"


def joined(pieces: Iterable[Piece]) -> Iterator[str | bytes]:
    """Yield the texts of the pieces, neighbours joined. Bytes are not copied."""
    for kind, group in itertools.groupby((piece.text for piece in pieces if piece.text), type):
        if kind is bytes:
            yield from group
        else:
            yield "".join(text for text in group if isinstance(text, str))


def _is_error(stream: str) -> bool:
    return stream.startswith("stderr")
