"""Forms with a file (`multipart/form-data`, RFC 7578), as browsers send them without scripts. Pure.

In `fields` a file is a field like others, with the file's content as its text. A form with an archive is too large for
that: `Parts` takes it piece by piece, as it arrives.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from oarlock.spec import errors

MEDIA = "multipart/form-data"
MOST_PARTS = 2000
MOST_HEAD_BYTES = 1 << 14
_BOUNDARY = re.compile(r'boundary="?([^";]{1,70})"?', re.IGNORECASE)
_NAME = re.compile(rb'content-disposition:\s*form-data;[^\r\n]*?\bname="([^"\r\n]*)"', re.IGNORECASE)
_FILE = re.compile(rb'\bfilename="([^"\r\n]*)"', re.IGNORECASE)


class Head(NamedTuple):
    """The begin of a part: the field, and the name of the file, None for no file; an empty one was not chosen."""

    field: str
    file: bytes | None


class Parts:
    """The parts of a form as it arrives."""

    def __init__(self, media: str) -> None:
        self._delimiter = _delimiter(media)
        self._rest = b"\r\n"
        self._within = False
        self._count = 0
        self.ended = False

    def feed(self, data: bytes) -> Iterator[Head | bytes]:
        """Yield the head of each part that has begun with this data, and after it its content in pieces.

        Raises InvalidInput for a form that is not valid. One that is cut off has not `ended` after its last data.
        """
        self._rest += data
        while not self.ended:
            if self._within:
                found = self._rest.find(self._delimiter)
                ready = found if found >= 0 else max(0, len(self._rest) - len(self._delimiter) + 1)
                if ready:
                    yield self._rest[:ready]
                    self._rest = self._rest[ready:]
                if found < 0:
                    return
                self._within = False
            elif (head := self._head()) is not None:
                yield head
            else:
                return

    def _head(self) -> Head | None:
        """Return the head of the next part; None after the last one, and where it has not arrived yet."""
        begin = len(self._delimiter)
        if len(self._rest) < begin + 2:
            return None
        if not self._rest.startswith(self._delimiter):
            raise _not_valid()
        if self._rest.startswith(b"--", begin):
            self.ended = True
            return None
        if not self._rest.startswith(b"\r\n", begin):
            raise _not_valid()
        end = self._rest.find(b"\r\n\r\n", begin)
        if end < 0 and len(self._rest) <= MOST_HEAD_BYTES:
            return None
        self._count += 1
        if end < 0 or self._count > MOST_PARTS:
            raise _not_valid()
        head, self._rest = self._rest[begin:end], self._rest[end + 4 :]
        self._within = True
        return _head_of(head)


def fields(body: bytes, media: str, *, binary: bool = False) -> dict[str, list[str]]:
    """Return the values of each field. A file that was not chosen is none, and with `binary` one that is not text.

    Raises InvalidInput for a form that is cut off or not valid, and for a file that is not text in UTF-8.
    """
    parts = (b"\r\n" + body).split(_delimiter(media))
    if len(parts) < 2 or not parts[-1].startswith(b"--") or len(parts) > MOST_PARTS:
        raise _not_valid()
    values: dict[str, list[str]] = {}
    for part in parts[1:-1]:
        raw, _, content = part.partition(b"\r\n\r\n")
        head = _head_of(raw)
        if head.file == b"" or (binary and head.file is not None and not _is_text(content)):
            continue
        values.setdefault(head.field, []).append(text(content, b"the form" if head.file is None else head.file))
    return values


def _delimiter(media: str) -> bytes:
    found = _BOUNDARY.search(media)
    if found is None:
        raise _not_valid()
    return b"\r\n--" + found[1].encode("latin-1")


def _head_of(raw: bytes) -> Head:
    name, file = _NAME.search(raw), _FILE.search(raw)
    if name is None:
        raise errors.InvalidInput("A field of the form has no name.", hint="Send it again.")
    return Head(text(name[1], b"the form"), file[1] if file is not None else None)


def _not_valid() -> errors.InvalidInput:
    return errors.InvalidInput("The form is not valid.", hint="Send it again.")


def _is_text(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True


def text(raw: bytes, of: bytes = b"the form") -> str:
    """Return the text of a field, or of the file `of` this name. Raises InvalidInput where it is not UTF-8."""
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        name = of.decode("utf-8", "replace")[:200]
        raise errors.InvalidInput(
            f"{name} is not text: the byte at {error.start:,} is not UTF-8.",
            hint="Save it as UTF-8, and send it again.",
        ) from error
