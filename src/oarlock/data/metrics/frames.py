"""The parser of metric frames (docs/agent-protocol.md section 3). Pure.

The input is bytes that begin with a frame. The output is runs: consecutive rows of one schema. All rows of a run have
the same length, so a whole column is a slice with a stride, and no number becomes a Python object here.
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
    """Consecutive rows of one schema: `rows` rows of `stride` bytes each, from `start` on."""

    names: tuple[str, ...]
    start: int
    rows: int
    stride: int


class Parsed(NamedTuple):
    """The frames of some bytes.

    `end`: the start of the first incomplete or invalid frame. `bad`: the fault of the latter.
    """

    runs: list[Run]
    end: int
    schemas: dict[int, tuple[str, ...]]
    bad: str = ""


class BadFrame(ValueError):
    """A frame that is not valid."""


def parse(data: bytes, schemas: Schemas) -> Parsed:
    """Return the frames of `data`, which begins with a frame. `schemas` are the schemas of earlier frames."""
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
    """Return the length in bytes of the frame at `at`; 0 if too few bytes are there.

    BadFrame as soon as a fault can be seen.
    """
    if at < len(data) and data[at] not in (SCHEMA, ROW):
        raise BadFrame(f"{data[at]} is not a valid kind of frame")
    if len(data) - at < HEADER.size:
        return 0
    kind, length = HEADER.unpack_from(data, at)
    if kind == SCHEMA:
        if not 0 < length <= MAX_SCHEMA_BYTES:
            raise BadFrame(f"a schema cannot have {length} bytes")
        return HEADER.size + int(length)
    if length > 2 + 16 + 8 * MAX_NAMES:
        raise BadFrame(f"a row cannot have {length} bytes")
    if len(data) - at < ROW_HEADER.size:
        return 0
    _, _, number = ROW_HEADER.unpack_from(data, at)
    names = schemas.get(number)
    if names is None:
        raise BadFrame(f"a row of schema {number}, which was never sent")
    if length != 2 + 16 + 8 * len(names):
        raise BadFrame(f"a row of {length} bytes does not fit its schema of {len(names)} names")
    return HEADER.size + int(length)


def alike(data: bytes, at: int, stride: int) -> int:
    """Return the number of whole frames from `at` on with the kind, length and schema of the first."""
    count = (len(data) - at) // stride
    for place in range(ROW_HEADER.size):
        column = data[at + place : at + count * stride : stride]
        count = count - len(column.lstrip(column[:1]))
    return count


def decoded(payload: bytes) -> SchemaFrame:
    try:
        schema = msgspec.json.decode(payload, type=SchemaFrame)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BadFrame(f"a schema is not valid: {error}") from error
    if not 0 <= schema.id < 1 << 16:
        raise BadFrame(f"{schema.id} is not a valid number of a schema")
    if not 0 < len(schema.names) <= MAX_NAMES or len(set(schema.names)) != len(schema.names):
        raise BadFrame(f"a schema with {len(schema.names)} names, or with one name twice, is not valid")
    if not all(0 < len(name) <= MAX_NAME_LENGTH for name in schema.names):
        raise BadFrame(f"a name is empty or longer than {MAX_NAME_LENGTH} characters")
    return schema
