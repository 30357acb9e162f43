r"""The rules of `.gitignore` and `.oarlockignore`: git's rules, compiled to two regular expressions per file.

pathspec does not fit: its patterns match a folder's content together with the folder, while git checks each path alone
(`!kept/` after `*.txt` includes the folder again, but not the text files in it). Its import also takes longer than
packing a small directory. The tests compare with git itself. Source: gitignore(5) and git's wildmatch.c.

Paths are bytes, as the file system has them: git's `?` is one byte.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

CLASSES = {
    b"alnum": b"0-9A-Za-z",
    b"alpha": b"A-Za-z",
    b"blank": b" \\t",
    b"cntrl": b"\\x00-\\x1f\\x7f",
    b"digit": b"0-9",
    b"graph": b"\\x21-\\x7e",
    b"lower": b"a-z",
    b"print": b"\\x20-\\x7e",
    b"punct": b"\\x21-\\x2f\\x3a-\\x40\\x5b-\\x60\\x7b-\\x7e",
    b"space": b" \\t\\n\\r\\f\\v",
    b"upper": b"A-Z",
    b"xdigit": b"0-9A-Fa-f",
}


class Unmatchable(ValueError):
    """A malformed pattern. For git it matches no path."""


class Rules:
    """The rules of one ignore file, for paths relative to its folder."""

    def __init__(self, text: bytes) -> None:
        names: list[tuple[int, bytes]] = []
        paths: list[tuple[int, bytes]] = []
        self._keeps: list[bool] = []
        for line in lines(text):
            place = len(self._keeps)
            keep = line.startswith(b"!")
            pattern = line[1:] if keep else line
            only_folders = pattern.endswith(b"/")
            pattern = pattern[:-1] if only_folders else pattern
            try:
                regex = translated(pattern.removeprefix(b"/")) + (b"/" if only_folders else b"/?")
            except Unmatchable:
                continue
            self._keeps.append(keep)
            (paths if b"/" in pattern else names).append((place, regex))
        self._names = last_of(names)
        self._paths = last_of(paths)

    def __bool__(self) -> bool:
        return bool(self._keeps)

    def ignored(self, path: bytes, name: bytes) -> bool | None:
        """Return True if the path is left out, False if a later `!` includes it again, None if no rule matches.

        `path` is relative to the ignore file's folder; `name` is its last part. Both end in `/` if they name a folder.
        """
        place = -1
        for regex, text in ((self._names, name), (self._paths, path)):
            found = regex.fullmatch(text) if regex is not None else None
            if found is not None and found.lastgroup is not None:
                place = max(place, int(found.lastgroup[1:]))
        return None if place < 0 else not self._keeps[place]


def lines(text: bytes) -> Iterable[bytes]:
    """Yield the patterns, without comments, the byte order mark, and trailing blanks without a backslash."""
    for line in text.removeprefix(b"\xef\xbb\xbf").split(b"\n"):
        line = line.removesuffix(b"\r")
        if line.startswith(b"#"):
            continue
        stripped = line.rstrip(b" ")
        if stripped != line and (len(stripped) - len(stripped.rstrip(b"\\"))) % 2:
            stripped += b" "
        if stripped not in (b"", b"!", b"/", b"!/"):
            yield stripped


def last_of(patterns: Sequence[tuple[int, bytes]]) -> re.Pattern[bytes] | None:
    """Return one regular expression whose `lastgroup` names the last pattern that matches.

    The patterns are reversed, because an alternation takes the first match.
    """
    if not patterns:
        return None
    return re.compile(b"|".join(b"(?P<p%d>%s)" % one for one in reversed(patterns)), re.DOTALL)


def translated(pattern: bytes) -> bytes:
    """Return a wildmatch pattern (WM_PATHNAME) as a regular expression without groups. Unmatchable if malformed."""
    if not pattern or pattern.startswith(b"/") or pattern.endswith(b"/"):
        raise Unmatchable(pattern)
    out = bytearray()
    at = 0
    while at < len(pattern):
        byte = pattern[at : at + 1]
        if byte == b"*":
            stars = len(pattern) - at - len(pattern[at:].lstrip(b"*"))
            regex, taken = starred(pattern, at, stars)
            out += regex
            at += taken
        elif byte == b"?":
            out += b"[^/]"
            at += 1
        elif byte == b"[":
            regex, at = bracket(pattern, at)
            out += regex
        elif byte == b"\\":
            if at + 1 == len(pattern):
                raise Unmatchable(pattern)
            out += re.escape(pattern[at + 1 : at + 2])
            at += 2
        else:
            out += re.escape(byte)
            at += 1
    return bytes(out)


def starred(pattern: bytes, at: int, stars: int) -> tuple[bytes, int]:
    """Return the expression for a run of stars, and its length. Only `**` between slashes matches across folders."""
    starts = at == 0 or pattern[at - 1 : at] == b"/"
    end = at + stars
    if stars > 1 and starts:
        if end == len(pattern):
            return b".+", stars
        if pattern[end : end + 1] == b"/":
            return b"(?:.*/)?", stars + 1
    return b"[^/]*", stars


def bracket(pattern: bytes, at: int) -> tuple[bytes, int]:
    """Return the expression for `[...]` at `at`, and the place after it. Unmatchable if it has no end."""
    at += 1
    negated = pattern[at : at + 1] in (b"!", b"^")
    at += negated
    members = bytearray()
    first = True
    while first or pattern[at : at + 1] != b"]":
        first = False
        if pattern[at : at + 2] == b"[:":
            end = pattern.find(b"]", at + 2)
            if end > at + 2 and pattern[end - 1 : end] == b":":
                members += named_class(pattern[at + 2 : end - 1])
                at = end + 1
                continue
        low, at = member(pattern, at)
        high = low
        if pattern[at : at + 1] == b"-" and pattern[at + 1 : at + 2] not in (b"]", b""):
            high, at = member(pattern, at + 1)
        if low <= high:
            members += b"\\x%02x-\\x%02x" % (low, high)
    # A slash is never a member, because it ends a name.
    if members:
        return b"(?!/)[%s%s]" % (b"^" if negated else b"", members), at + 1
    return (b"[^/]" if negated else b"(?!)"), at + 1


def named_class(name: bytes) -> bytes:
    if name not in CLASSES:
        raise Unmatchable(name)
    return CLASSES[name]


def member(pattern: bytes, at: int) -> tuple[int, int]:
    if pattern[at : at + 1] == b"\\":
        at += 1
    if at >= len(pattern):
        raise Unmatchable(pattern)
    return pattern[at], at + 1
