"""The colour of a job: made from its id, so that the job has it on every page, whatever else is shown."""

from __future__ import annotations

import zlib

COLOURS, DASHES = 8, 4


def of(text: str) -> int:
    """Return the colour of a name."""
    return _digest(text) % COLOURS


def dash(job: str) -> int:
    """Return the dash of a job's lines: two jobs of one colour rarely have the same."""
    return _digest(job) // COLOURS % DASHES


def _digest(text: str) -> int:
    return zlib.crc32(text.encode("utf-8", "surrogatepass"))
