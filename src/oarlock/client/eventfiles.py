"""TensorBoard's event files: scalars in its format, without TensorBoard or protobuf.

A file is a row of TFRecords: length (u64), masked CRC-32C of the length, payload, masked CRC-32C of the payload, all
little-endian. The payload is an `Event` message: wall_time (1, double), step (2, varint), file_version (3, string) or
summary (5) with a `Value` (1) of tag (1, string) and simple_value (2, float).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from oarlock.client import answers

_POLYNOMIAL = 0x82F63B78
_MASK_DELTA = 0xA282EAD8


def _table() -> list[int]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (_POLYNOMIAL if value & 1 else 0)
        table.append(value)
    return table


_TABLE = _table()


def encoded(series: Sequence[answers.Series]) -> bytes:
    """Return the bytes of a file: its version, then all points by step."""
    points = sorted(
        (
            (point.step, point.at, one.name, point.value)
            for one in series
            for point in one.points
            if point.value is not None
        ),
        key=lambda point: point[:3],
    )
    first = points[0][1] if points else 0.0
    version = _double(1, first) + _text(3, b"brain.Event:2")
    return _record(version) + b"".join(_record(_scalar(*point)) for point in points)


def _scalar(step: int, at: float, tag: str, value: float) -> bytes:
    summary = _text(1, _text(1, tag.encode()) + b"\x15" + struct.pack("<f", _single(value)))
    return _double(1, at) + b"\x10" + _varint(step) + _text(5, summary)


def _single(value: float) -> float:
    """Return the value, or infinity where it is too large for a float of 32 bits."""
    try:
        struct.pack("<f", value)
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")
    return value


def _record(payload: bytes) -> bytes:
    length = struct.pack("<Q", len(payload))
    return length + struct.pack("<I", masked_crc(length)) + payload + struct.pack("<I", masked_crc(payload))


def masked_crc(payload: bytes) -> int:
    """Return the masked CRC-32C of a TFRecord."""
    value = 0xFFFFFFFF
    for byte in payload:
        value = _TABLE[(value ^ byte) & 0xFF] ^ value >> 8
    value ^= 0xFFFFFFFF
    return ((value >> 15 | value << 17) + _MASK_DELTA) & 0xFFFFFFFF


def _double(field: int, value: float) -> bytes:
    return bytes([field << 3 | 1]) + struct.pack("<d", value)


def _text(field: int, value: bytes) -> bytes:
    return bytes([field << 3 | 2]) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    value &= 0xFFFFFFFFFFFFFFFF
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)
