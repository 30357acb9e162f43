"""Failures for want of a file that is in the user's directory but not in the snapshot: detection and words.

The job's record lists the files that the snapshot lacks. A task's last lines name the file that it did not find, in the
words of Python, a shell or a library.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from oarlock.spec import jobfile

IGNORED = frozenset({".gitignore", ".oarlockignore"})
MOST_LINES = 20
MOST_WORDS = 200

_MISSING = re.compile(
    r"no such file|not found|filenotfound|does ?n[o']t exist|do(es)? not exist|(can|could) ?n[o']t (find|open|read)"
    r"|unable to (find|open|read)|failed to (find|open|read)",
    re.IGNORECASE,
)
_MODULE = re.compile(r"No module named '([A-Za-z0-9_.]+)'")
_QUOTED = re.compile(r"'([^']+)'|\"([^\"]+)\"|`([^`]+)`")
_AROUND = ":,;()[]{}<>\"'`"
_COPY = "/code/"
"""The end of the path of a task's copy: the rest of an absolute path is within the directory."""


def hint(left_out: Sequence[jobfile.LeftOut], lines: Sequence[str]) -> str:
    """Return which file was left out, and how the job gets it; empty where the lines tell of nothing of that kind."""
    if not left_out:
        return ""
    for line in reversed(lines[-MOST_LINES:]):
        for path in _named(line):
            for one in left_out:
                if covers(one.path, path):
                    return _words(one, path)
    return ""


def covers(left_out: str, path: str) -> bool:
    """Return whether `path` was left out, or is in a folder that was. A `*` in the last part stands for names."""
    if left_out.endswith("/"):
        return path == left_out.rstrip("/") or path.startswith(left_out)
    folder, _, name = left_out.rpartition("/")
    if "*" not in name:
        return path == left_out
    begin, _, end = name.partition("*")
    inner, _, last = path.rpartition("/")
    return inner == folder and len(last) >= len(begin) + len(end) and last.startswith(begin) and last.endswith(end)


def _named(line: str) -> Iterator[str]:
    """Yield the paths that a line says were not found, relative to the directory."""
    module = _MODULE.search(line)
    if module is not None:
        path = module[1].replace(".", "/")
        yield from (f"{path}.py", path, f"{path.partition('/')[0]}/__init__.py")
    elif _MISSING.search(line):
        quoted = ["".join(found) for found in _QUOTED.findall(line)]
        words = [word.strip(_AROUND) for word in line.split()[:MOST_WORDS]]
        yield from (plain for text in (*quoted, *words) if (plain := _plain(text)))


def _plain(text: str) -> str:
    """Return a path without `.` and doubled slashes, relative to the directory; empty for one that is elsewhere."""
    if text.startswith("/"):
        text = text.partition(_COPY)[2]
    parts = [part for part in text.split("/") if part not in ("", ".")]
    return "" if ".." in parts else "/".join(parts)


def _words(one: jobfile.LeftOut, path: str) -> str:
    what = f"files like {one.path} were" if "*" in one.path else f"{one.path} was"
    send = f"Write !{one.path} into .oarlockignore, run" if one.why in IGNORED else "Run"
    return (
        f"{path} is not in the job's copy of your directory: {what} left out ({one.why}). "
        f"{send} with --in-place, or fetch it with --data SOURCE:MOUNT."
    )
