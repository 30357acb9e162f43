"""The compression of a column of numbers: byte planes, differences, then zlib.

A column is 8-byte numbers, little-endian. Neighbours in a series share their sign, exponent and first digits. The
column is split into eight planes (all first bytes, all second bytes, ...), and each byte is replaced by its difference
from the byte before it. Planes of shared bytes are then nearly all zero. The difference is an XOR, so that every bit
can be restored, those of NaN too. Planes are made by strided slices and XORed as one large integer: no loop over
numbers.
"""

from __future__ import annotations

import sys
import zlib
from array import array
from itertools import accumulate, pairwise
from typing import Any

LEVEL = 1
WIDTH = 8
WRAP = (1 << 64) - 1
MICRO = 1_000_000
EXACT, MICROS = b"e", b"m"


def gathered(rows: bytes, offset: int, stride: int, count: int) -> bytes:
    """Return one column of a run of rows as eight planes, one after the other."""
    end = offset + (count - 1) * stride + WIDTH
    return b"".join(rows[offset + place : end : stride] for place in range(WIDTH))


def numbers(kind: str, planes: bytes) -> array[Any]:
    """Return the column of these planes as an array of `d` or `Q`."""
    count = len(planes) // WIDTH
    raw = bytearray(len(planes))
    for place in range(WIDTH):
        raw[place::WIDTH] = planes[place * count : (place + 1) * count]
    column: array[Any] = array(kind)
    column.frombytes(raw)
    if sys.byteorder == "big":
        column.byteswap()
    return column


def planes_of(column: array[Any]) -> bytes:
    """Return the planes of a column: the inverse of `numbers`."""
    if sys.byteorder == "big":
        column = column[:]
        column.byteswap()
    raw = column.tobytes()
    return b"".join(raw[place::WIDTH] for place in range(WIDTH))


def pack_values(planes: bytes) -> bytes:
    return zlib.compress(differences(planes), LEVEL)


def unpack_values(packed: bytes) -> array[float]:
    return numbers("d", sums(zlib.decompress(packed)))


def differences(planes: bytes) -> bytes:
    whole = int.from_bytes(planes, "big")
    return (whole ^ (whole >> 8)).to_bytes(len(planes), "big")


def sums(planes: bytes) -> bytes:
    """Undo `differences`: XOR each byte with all bytes before it, in log2(length) steps."""
    whole = int.from_bytes(planes, "big")
    shift = 8
    while shift < 8 * len(planes):
        whole ^= whole >> shift
        shift *= 2
    return whole.to_bytes(len(planes), "big")


def pack_steps(steps: array[int]) -> bytes:
    """Pack steps as differences of differences: steps mostly grow by the same number, so these are mostly zero."""
    return zlib.compress(planes_of(delta(delta(steps))), LEVEL)


def unpack_steps(packed: bytes) -> array[int]:
    return summed(summed(numbers("Q", zlib.decompress(packed))))


def delta(column: array[int]) -> array[int]:
    return array("Q", [*column[:1], *((after - before) & WRAP for before, after in pairwise(column))])


def summed(column: array[int]) -> array[int]:
    return array("Q", accumulate(column, lambda total, one: (total + one) & WRAP))


def pack_times(times: array[float]) -> bytes:
    """Pack times in microseconds.

    If one is not valid (NaN, before 1970, after the year 10000), keep all as they are.
    """
    try:
        micros = array("Q", [round(at * MICRO) for at in times])
        if any(one > 1 << 58 for one in micros):
            raise OverflowError
    except (ValueError, OverflowError):
        return EXACT + pack_values(planes_of(times))
    moved = delta(micros)
    # Signed differences as small unsigned ones: 0, -1, 1, -2, ...
    folded = array("Q", [moved[0], *(((one << 1) ^ -(one >> 63)) & WRAP for one in moved[1:])])
    return MICROS + zlib.compress(planes_of(folded), LEVEL)


def unpack_times(packed: bytes) -> array[float]:
    if packed[:1] == EXACT:
        return unpack_values(packed[1:])
    folded = numbers("Q", zlib.decompress(packed[1:]))
    moved = array("Q", [folded[0], *(((one >> 1) ^ -(one & 1)) & WRAP for one in folded[1:])])
    return array("d", [one / MICRO for one in summed(moved)])
