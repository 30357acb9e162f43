"""TensorBoard's event files, without TensorFlow.

A file is a sequence of TFRecords (length, its checksum, data, its checksum), each an `Event` protobuf of
tensorflow/core/util/event.proto, of which only scalars are written: wall_time (1), step (2), file_version (3), summary
(5) of values (1) with tag (1) and simple_value (2). The checksum is CRC-32C, masked as in
tensorflow/core/lib/hash/crc32c.h.

The checksum in Python costs some 40 us for a row of 20 values, so after the first 1,000 rows of a set of names at most
ten a second are written: TensorBoard itself shows about 1,000 points of a series. The metric frames hold all of them.
"""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Sequence
from pathlib import Path

from oarlock.train.reports import Appender, Row

FULL_ROWS = 1000
EVERY_S = 0.1


class EventFile:
    """Writes rows as scalars into a new event file in `directory`."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        name = f"events.out.tfevents.{time.time():.6f}.{socket.gethostname()}.{os.getpid()}"
        self._file = Appender(directory / name)
        self._written: dict[tuple[str, ...], tuple[int, float]] = {}
        self._skipped: dict[tuple[str, ...], Row] = {}
        self._file.write(_record(_double(1, time.time()) + _bytes(3, b"brain.Event:2")))

    def write(self, rows: Sequence[Row]) -> None:
        self._file.write(b"".join(_record(_event(row)) for row in rows if self._due(row)))

    def close(self) -> None:
        """The last row of every set of names is always written."""
        self._file.write(b"".join(_record(_event(row)) for row in self._skipped.values()))
        self._file.close()

    def _due(self, row: Row) -> bool:
        count, last = self._written.get(row.names, (0, 0.0))
        if count >= FULL_ROWS and 0 <= row.time - last < EVERY_S:
            self._skipped[row.names] = row
            return False
        self._written[row.names] = (count + 1, row.time)
        self._skipped.pop(row.names, None)
        return True


def _event(row: Row) -> bytes:
    values = b"".join(
        _bytes(1, _bytes(1, name.encode()) + b"\x15" + struct.pack("<f", _narrow(value)))
        for name, value in zip(row.names, row.values)
    )
    return _double(1, row.time) + b"\x10" + _varint(row.step) + _bytes(5, values)


def _narrow(value: float) -> float:
    """A number that a 32-bit float can hold: beyond its range it is infinite."""
    return value if abs(value) <= 3.4028234663852886e38 or value != value else value * float("inf")


def _double(field: int, value: float) -> bytes:
    return bytes((field << 3 | 1,)) + struct.pack("<d", value)


def _bytes(field: int, value: bytes) -> bytes:
    return bytes((field << 3 | 2,)) + _varint(len(value)) + value


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def _record(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", _masked_crc(length)) + data + struct.pack("<I", _masked_crc(data))


def _crc_table() -> tuple[int, ...]:
    table = []
    for crc in range(256):
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
        table.append(crc)
    return tuple(table)


_TABLE = _crc_table()


def _masked_crc(data: bytes) -> int:
    crc, table = 0xFFFFFFFF, _TABLE
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
