"""Text for a terminal: without control characters, in colours where they are seen, within its width.

Names and logs come from users. On a terminal they must not move the cursor, set the title or clear the screen. In a
file or a pipe the output is unchanged.
"""

from __future__ import annotations

import os
import re
import sys
import unicodedata
from collections.abc import Iterable
from typing import IO, Any

# Whole escape sequences come first, so that no half of one remains; then every other control character except the tab.
_ESCAPES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[\]PX^_][^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?|\x9b[0-?]*[ -/]*[@-~]|\x1b[ -/]*[0-~]?"
)
_CONTROLS = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")

COLOURS = {"red": 31, "green": 32, "amber": 33, "blue": 34, "violet": 35, "cyan": 36, "bold": 1, "dim": 2}


def clean(text: str) -> str:
    """Return one line without control characters."""
    if text.isprintable():
        return text
    return _CONTROLS.sub("", _ESCAPES.sub("", text))


def shown_line(text: str) -> str:
    """Return a log line as a terminal would finally show it: the text after its last carriage return, cleaned."""
    if "\r" in text:
        parts = [part for part in text.split("\r") if part]
        text = parts[-1] if parts else ""
    return clean(text)


def is_terminal(stream: IO[Any]) -> bool:
    try:
        return stream.isatty()
    except ValueError:  # closed
        return False


def holds_input(stream: IO[Any] | None) -> bool:
    """Return whether a file or a pipe has bytes that no program has read yet. This neither reads nor waits."""
    import array
    import fcntl
    import stat
    import termios

    try:
        if stream is None:
            return False
        handle = stream.fileno()
        status = os.fstat(handle)
        if stat.S_ISREG(status.st_mode):
            return os.lseek(handle, 0, os.SEEK_CUR) < status.st_size
        if not (stat.S_ISFIFO(status.st_mode) or stat.S_ISSOCK(status.st_mode)):
            return False
        count = array.array("i", [0])
        fcntl.ioctl(handle, termios.FIONREAD, count)
        return count[0] > 0
    except (OSError, ValueError):  # not a file of the system, or closed
        return False


def same_place(one: IO[Any], other: IO[Any]) -> bool:
    """Return whether both streams go to the same terminal, file or pipe."""
    try:
        return os.path.sameopenfile(one.fileno(), other.fileno())
    except (OSError, ValueError):  # not a file of the system, or closed
        return False


def is_dumb() -> bool:
    return os.environ.get("TERM", "") in ("", "dumb")


def wants_colour(stream: IO[Any]) -> bool:
    return is_terminal(stream) and not is_dumb() and not os.environ.get("NO_COLOR")


def speaks_unicode(stream: IO[Any]) -> bool:
    return (getattr(stream, "encoding", "") or "").lower().replace("-", "") in ("utf8", "utf8mb4")


def coloured(text: str, *names: str, on: bool) -> str:
    if not on or not text:
        return text
    codes = ";".join(str(COLOURS[name]) for name in names)
    return f"\x1b[{codes}m{text}\x1b[0m"


def columns(stream: IO[Any]) -> int:
    """Return the width in cells: COLUMNS if it is set, else the terminal's width, else 80."""
    said = os.environ.get("COLUMNS", "")
    if said.isdigit() and int(said) > 0:
        return int(said)
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except (OSError, ValueError):
        return 80


def line_width(stream: IO[Any]) -> int | None:
    """Return the width at which lines end; None for a file or a pipe without COLUMNS: programs search whole lines."""
    return columns(stream) if is_terminal(stream) or os.environ.get("COLUMNS") else None


def cells(text: str) -> int:
    """Return the number of cells that `text` takes on a terminal."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(letter) else 2 if unicodedata.east_asian_width(letter) in "WF" else 1
        for letter in text
    )


def cut(text: str, most: int) -> str:
    """Return `text` in at most `most` cells, with dots at the end if a part is missing."""
    if cells(text) <= most:
        return text
    kept: list[str] = []
    room = max(0, most - 3)
    for letter in text:
        room -= cells(letter)
        if room < 0:
            break
        kept.append(letter)
    return "".join(kept) + "..."[: max(0, most)]


def takes_bytes(stream: IO[Any]) -> bool:
    """Return whether UTF-8 may be written to the stream as bytes."""
    return speaks_unicode(stream) and hasattr(stream, "buffer")


def write(stream: IO[Any], text: str | bytes) -> None:
    """Write text, or bytes behind the text that was written before."""
    if isinstance(text, str):
        stream.write(text)
    else:
        stream.flush()
        stream.buffer.write(text)  # type: ignore[attr-defined]  # `takes_bytes` has found it


def out(text: str = "") -> None:
    """Print a line of the result."""
    sys.stdout.write(text + "\n")


def paragraph(text: str, *, indent: int = 2, hang: int = 2) -> None:
    """Print a line of the result `indent` cells from the left.

    On a terminal, a line that is too long is broken between words and continues `hang` cells further right.
    """
    width = line_width(sys.stdout)
    for line in [" " * indent + text] if width is None else broken(text, width, indent=indent, hang=hang):
        out(line)


def broken(text: str, width: int, *, indent: int = 0, hang: int = 0) -> list[str]:
    """Return the lines of `text` within `width` cells."""
    whole = " " * indent + text
    if cells(whole) <= width:
        return [whole]
    import textwrap

    first, later = " " * indent, " " * (indent + hang)
    return textwrap.wrap(
        text,
        max(width, indent + hang + 20),
        initial_indent=first,
        subsequent_indent=later,
        break_on_hyphens=False,
    )


def say(text: str = "") -> None:
    """Print a line about the result, to stderr."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def json_out(value: Any) -> None:
    """Print the result for programs: one JSON document, indented."""
    import msgspec

    sys.stdout.write(msgspec.json.format(msgspec.json.encode(value), indent=2).decode() + "\n")


def json_lines(values: Iterable[Any]) -> None:
    """Print one JSON document per line, each at once."""
    import msgspec

    encoder = msgspec.json.Encoder()
    for value in values:
        sys.stdout.write(encoder.encode(value).decode() + "\n")
        sys.stdout.flush()


def forgiving() -> None:
    """Escape letters that the encoding of stdout or stderr lacks, instead of ending the program."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")
