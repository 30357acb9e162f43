"""The number of rows that are read as one run: those alike in kind, length and schema."""

from __future__ import annotations

import struct

import pytest

from oarlock.data.metrics import frames


def row(schema: int, *, values: int = 1, kind: int = frames.ROW) -> bytes:
    return frames.ROW_HEADER.pack(kind, 2 + 16 + 8 * values, schema) + struct.pack("<qd", 7, 3.0) + bytes(8 * values)


@pytest.mark.parametrize("before", [b"", row(1), row(256, values=3)], ids=["first", "second", "after a longer one"])
@pytest.mark.parametrize(
    ("rows", "count"),
    [
        ([row(1)], 1),
        ([row(1), row(1), row(1)], 3),
        ([row(1), row(2), row(1)], 1),
        ([row(1), row(257)], 1),
        ([row(1), row(1), row(1, values=2)], 2),
        ([row(1), row(1, kind=frames.SCHEMA)], 1),
        ([row(1), row(1), row(1)[:-1]], 2),
    ],
)
def test_a_run_ends_before_the_first_row_that_is_not_alike(before: bytes, rows: list[bytes], count: int) -> None:
    assert frames.alike(before + b"".join(rows), len(before), len(rows[0])) == count
