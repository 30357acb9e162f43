"""Chunks of metrics (some thousand rows of one process, column by column) and the file that holds them.

A record is `OMC1`, the body's length and CRC-32, the part of the raw stream that it replaces (start, end), then the
body: the length of a head (MessagePack), the head, the packed columns. The head names the columns and their places, so
that a reader reads only the columns it needs. A record that a kill has cut fails its CRC check, and ends the file.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from oarlock.data.metrics import columns, frames

MAGIC = b"OMC1"
RECORD = struct.Struct("<4sIIQQ")
HEAD = struct.Struct("<I")


class Block(msgspec.Struct, frozen=True, array_like=True):
    """The rows of one schema. `first_step` and `last_step` are the least and the greatest.

    `places` are (offset, length) of the steps, the times and then the values of each name, counted from the head's end.
    """

    names: tuple[str, ...]
    rows: int
    first_step: int
    last_step: int
    places: tuple[tuple[int, int], ...]


class Head(msgspec.Struct, frozen=True, array_like=True):
    """The head of a chunk. `schemas` are those in force after the chunk."""

    schemas: dict[int, tuple[str, ...]]
    blocks: tuple[Block, ...]


class Chunk(NamedTuple):
    """The place of a record in its file, and the part of the raw stream (start, end) that it replaces."""

    at: int
    size: int
    start: int
    end: int


def encoded(raw: bytes, parsed: frames.Parsed, start: int) -> bytes:
    """Return a record for the frames of `raw[: parsed.end]`. The first frame is at `start` of its stream."""
    body = bytearray()
    blocks = []
    for names, rows, count in groups(raw, parsed.runs):
        stride = frames.VALUES_AT + 8 * len(names)
        steps = columns.numbers("Q", columns.gathered(rows, frames.STEP_AT, stride, count))
        times = columns.numbers("d", columns.gathered(rows, frames.TIME_AT, stride, count))
        packed = [columns.pack_steps(steps), columns.pack_times(times)]
        for column in range(len(names)):
            packed.append(columns.pack_values(columns.gathered(rows, frames.VALUES_AT + 8 * column, stride, count)))
        places = []
        for one in packed:
            places.append((len(body), len(one)))
            body += one
        blocks.append(Block(names, count, min(steps), max(steps), tuple(places)))
    head = msgspec.msgpack.encode(Head(parsed.schemas, tuple(blocks)))
    whole = HEAD.pack(len(head)) + head + body
    return RECORD.pack(MAGIC, len(whole), zlib.crc32(whole), start, start + parsed.end) + whole


def groups(raw: bytes, runs: list[frames.Run]) -> Iterator[tuple[tuple[str, ...], bytes, int]]:
    """Yield (names, rows, number of rows) of each schema. The rows keep their order."""
    found: dict[tuple[str, ...], bytearray] = {}
    counts: dict[tuple[str, ...], int] = {}
    for run in runs:
        found.setdefault(run.names, bytearray()).extend(raw[run.start : run.start + run.rows * run.stride])
        counts[run.names] = counts.get(run.names, 0) + run.rows
    for names, rows in found.items():
        yield names, bytes(rows), counts[names]


class Records:
    """A file of chunks for a reader. `length` is the size of the file when the reader began."""

    def __init__(self, path: Path, length: int | None = None) -> None:
        self._path = path
        self._length = length

    def scan(self) -> list[Chunk]:
        """Return the complete chunks. Only headers are read, and the last chunk's body to check its CRC."""
        found: list[Chunk] = []
        try:
            fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return found
        try:
            size = os.fstat(fd).st_size if self._length is None else self._length
            at = 0
            while len(header := os.pread(fd, RECORD.size, at)) == RECORD.size:
                magic, length, crc, start, end = RECORD.unpack(header)
                after = at + RECORD.size + length
                if magic != MAGIC or after > size:
                    break
                if after == size and zlib.crc32(os.pread(fd, length, at + RECORD.size)) != crc:
                    break
                found.append(Chunk(at, RECORD.size + length, start, end))
                at = after
        finally:
            os.close(fd)
        return found

    def head(self, chunk: Chunk) -> tuple[Head, int]:
        """Return the chunk's head, and the place in the file at which its columns begin."""
        with self._path.open("rb") as file:
            file.seek(chunk.at + RECORD.size)
            (length,) = HEAD.unpack(file.read(HEAD.size))
            head = msgspec.msgpack.decode(file.read(length), type=Head)
            return head, file.tell()

    def bytes(self, offset: int, size: int) -> bytes:
        with self._path.open("rb") as file:
            file.seek(offset)
            return file.read(size)
