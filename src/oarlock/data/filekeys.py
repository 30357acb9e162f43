r"""Keys of files: the name of a file, which is bytes, written as text, and the way back.

A key is a path of parts joined by `/`. In a part, `%` and every byte that is not printable UTF-8 are percent-encoded,
so that every name has one key and every key one name: `a\xff.bin` is `a%FF.bin`. A key cannot lead out of its tree: the
parts `.` and `..`, empty parts and NUL are refused.
"""

from __future__ import annotations

from urllib.parse import unquote_to_bytes

from oarlock.spec import errors

MAX_KEY_CHARACTERS = 12_000
MAX_PARTS = 200


def of(name: bytes) -> str:
    """Return the key of a path. `/` separates its parts."""
    text = name.decode("utf-8", "surrogateescape")
    if text.isprintable() and "%" not in text:
        return text
    return "".join(_written(letter) for letter in text)


def _written(letter: str) -> str:
    if letter != "%" and letter.isprintable():
        return letter
    return "".join(f"%{byte:02X}" for byte in letter.encode("utf-8", "surrogateescape"))


def parts(key: str) -> list[bytes]:
    """Return the names in a key. InvalidInput if it is not a valid key."""
    found = [unquote_to_bytes(part) for part in key.split("/")] if key else []
    if len(key) > MAX_KEY_CHARACTERS or len(found) > MAX_PARTS:
        raise errors.InvalidInput("the path is too long", path="path", hint="`oarlock files JOB` lists the paths")
    for name in found:
        if name in (b"", b".", b"..") or b"/" in name or b"\0" in name:
            raise errors.InvalidInput(
                f"{key[:200]!r} is not a valid path of a job's file",
                path="path",
                hint="`oarlock files JOB` lists the paths",
            )
    return found


def is_under(key: str, folder: str) -> bool:
    """Return whether the key is the folder or below it; an empty folder contains all keys."""
    return not folder or key == folder or key.startswith(folder + "/")
