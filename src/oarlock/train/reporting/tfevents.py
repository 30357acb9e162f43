"""The format of TensorBoard's event files, without TensorFlow or protobuf. The SDK uses it too.

A file is a sequence of TFRecords (length, its checksum, data, its checksum). The data is an `Event` protobuf of
tensorflow/core/util/event.proto: wall_time (1), step (2), file_version (3), summary (5) of values (1), each with tag
(1) and simple_value (2). Only scalars are written. The checksum is CRC-32C, masked as in
tensorflow/core/lib/hash/crc32c.h.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable


def version(at: float) -> bytes:
    """Return the first record of a file. `at` is in Unix seconds."""
    return _record(_double(1, at) + _bytes(3, b"brain.Event:2"))


def scalars(step: int, at: float, values: Iterable[tuple[str, float]]) -> bytes:
    """Return the record of these names and values at one step."""
    summary = b"".join(
        _bytes(1, _bytes(1, name.encode()) + b"\x15" + struct.pack("<f", _single(value))) for name, value in values
    )
    return _record(_double(1, at) + b"\x10" + _varint(step) + _bytes(5, summary))


def _single(value: float) -> float:
    """Return the value, or an infinity if a 32-bit float cannot hold it."""
    try:
        struct.pack("<f", value)
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")
    return value


def _double(field: int, value: float) -> bytes:
    return bytes((field << 3 | 1,)) + struct.pack("<d", value)


def _bytes(field: int, value: bytes) -> bytes:
    return bytes((field << 3 | 2,)) + _varint(len(value)) + value


def _varint(number: int) -> bytes:
    number &= (1 << 64) - 1
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def _record(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", masked_crc(length)) + data + struct.pack("<I", masked_crc(data))


def _crc_table() -> tuple[int, ...]:
    table = []
    for crc in range(256):
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
        table.append(crc)
    return tuple(table)


_TABLE = _crc_table()


def masked_crc(data: bytes) -> int:
    crc, table = 0xFFFFFFFF, _TABLE
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
