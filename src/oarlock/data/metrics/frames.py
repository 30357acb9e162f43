"""Metric frames (docs/agent-protocol.md section 3), found in a run of bytes without being taken apart.

In come bytes that begin with a frame; out come runs: stretches of rows of one schema, which have one length each, so
that a whole column is a slice with a stride and no number ever becomes a Python object on the way in. Pure.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

SCHEMA, ROW = 1, 2
HEADER = struct.Struct("<BI")
ROW_HEADER = struct.Struct("<BIH")
STEP_AT = ROW_HEADER.size
TIME_AT = STEP_AT + 8
VALUES_AT = TIME_AT + 8
MAX_NAMES = 4096
MAX_NAME_LENGTH = 256
MAX_SCHEMA_BYTES = 1 << 20

Schemas = Mapping[int, tuple[str, ...]]


class SchemaFrame(msgspec.Struct, frozen=True):
    id: int
    names: tuple[str, ...]


class Run(NamedTuple):
    """`rows` rows of one schema, `stride` bytes each, from `start` on."""

    names: tuple[str, ...]
    start: int
    rows: int
    stride: int


class Parsed(NamedTuple):
    """`end`: where the first frame begins that is not whole, or not right; then `bad` says what is wrong with it."""

    runs: list[Run]
    end: int
    schemas: dict[int, tuple[str, ...]]
    bad: str = ""


class BadFrame(ValueError):
    """What a frame may not be."""


def parse(data: bytes, schemas: Schemas) -> Parsed:
    """The frames of `data`, which begins with one; `schemas` are those that were told before."""
    known = dict(schemas)
    runs: list[Run] = []
    at = 0
    try:
        while (length := frame_length(data, at, known)) and at + length <= len(data):
            if data[at] == SCHEMA:
                schema = decoded(data[at + HEADER.size : at + length])
                known[schema.id] = schema.names
                at += length
            else:
                _, _, number = ROW_HEADER.unpack_from(data, at)
                count = alike(data, at, length)
                runs.append(Run(known[number], at, count, length))
                at += count * length
    except BadFrame as error:
        return Parsed(runs, at, known, str(error))
    return Parsed(runs, at, known)


def frame_length(data: bytes, at: int, schemas: Schemas) -> int:
    """The whole length of the frame at `at`; 0 where too little of it is there to tell.

    Raises BadFrame as early as it can.
    """
    if at < len(data) and data[at] not in (SCHEMA, ROW):
        raise BadFrame(f"there is no frame of kind {data[at]}")
    if len(data) - at < HEADER.size:
        return 0
    kind, length = HEADER.unpack_from(data, at)
    if kind == SCHEMA:
        if not 0 < length <= MAX_SCHEMA_BYTES:
            raise BadFrame(f"a schema of {length} bytes")
        return HEADER.size + int(length)
    if length > 2 + 16 + 8 * MAX_NAMES:
        raise BadFrame(f"a row of {length} bytes")
    if len(data) - at < ROW_HEADER.size:
        return 0
    _, _, number = ROW_HEADER.unpack_from(data, at)
    names = schemas.get(number)
    if names is None:
        raise BadFrame(f"a row of schema {number}, which was not told")
    if length != 2 + 16 + 8 * len(names):
        raise BadFrame(f"a row of {length} bytes, where its schema has {len(names)} names")
    return HEADER.size + int(length)


def alike(data: bytes, at: int, stride: int) -> int:
    """How many whole frames from `at` on have the same kind, length and schema as the first."""
    count = (len(data) - at) // stride
    for place in range(ROW_HEADER.size):
        column = data[at + place : at + count * stride : stride]
        count = count - len(column.lstrip(column[:1]))
    return count


def decoded(payload: bytes) -> SchemaFrame:
    try:
        schema = msgspec.json.decode(payload, type=SchemaFrame)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BadFrame(f"a schema that is none: {error}") from error
    if not 0 <= schema.id < 1 << 16:
        raise BadFrame(f"a schema numbered {schema.id}")
    if not 0 < len(schema.names) <= MAX_NAMES or len(set(schema.names)) != len(schema.names):
        raise BadFrame(f"a schema of {len(schema.names)} names, or with one name twice")
    if not all(0 < len(name) <= MAX_NAME_LENGTH for name in schema.names):
        raise BadFrame(f"a name that is empty or longer than {MAX_NAME_LENGTH}")
    return schema
