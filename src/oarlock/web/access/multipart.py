"""Forms with a file (`multipart/form-data`, RFC 7578), as browsers send them without scripts. Pure.

A file is a field like others, with the file's content as its text: these pages take nothing but text.
"""

from __future__ import annotations

import re

from oarlock.spec import errors

MEDIA = "multipart/form-data"
MOST_PARTS = 2000
_BOUNDARY = re.compile(r'boundary="?([^";]{1,70})"?', re.IGNORECASE)
_NAME = re.compile(rb'content-disposition:\s*form-data;[^\r\n]*?\bname="([^"\r\n]*)"', re.IGNORECASE)
_FILE = re.compile(rb'\bfilename="([^"\r\n]*)"', re.IGNORECASE)


def fields(body: bytes, media: str) -> dict[str, list[str]]:
    """Return the values of each field. A file that was not chosen is none.

    Raises InvalidInput for a form that is cut off or not valid, and for a file that is not text in UTF-8.
    """
    found = _BOUNDARY.search(media)
    parts = (b"\r\n" + body).split(b"\r\n--" + found[1].encode("latin-1")) if found is not None else []
    if len(parts) < 2 or not parts[-1].startswith(b"--") or len(parts) > MOST_PARTS:
        raise errors.InvalidInput("The form is not valid.", hint="Send it again.")
    values: dict[str, list[str]] = {}
    for part in parts[1:-1]:
        head, _, content = part.partition(b"\r\n\r\n")
        name = _NAME.search(head)
        if name is None:
            raise errors.InvalidInput("A field of the form has no name.", hint="Send it again.")
        file = _FILE.search(head)
        if file is None or file[1]:
            values.setdefault(_text(name[1], b"the form"), []).append(_text(content, file[1] if file else b"the form"))
    return values


def _text(raw: bytes, of: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        name = of.decode("utf-8", "replace")[:200]
        raise errors.InvalidInput(
            f"{name} is not text: the byte at {error.start:,} is not UTF-8.",
            hint="Save it as UTF-8, and send it again.",
        ) from error
