"""Answers of the API server as structs, however deep the objects of its users are nested.

The API server takes 10,000 levels, and keeps the fields that it does not know. The decoder ends at Python's recursion
limit, also in a field that nothing reads. One such object must not keep a list or a watch from being read, so that its
deep parts are left out: they become `null`.
"""

from __future__ import annotations

import re
from typing import TypeVar

import msgspec

LEVELS = 100
"""Deeper parts are left out, where an answer as a whole cannot be decoded. A job file has fewer than ten levels."""

_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{}]', re.DOTALL)

T = TypeVar("T")


def decode(data: bytes | msgspec.Raw, kind: type[T]) -> T:
    """Return the JSON as a `kind`. Raises `msgspec.MsgspecError` for another content."""
    try:
        return msgspec.json.decode(data, type=kind)
    except RecursionError:
        return msgspec.json.decode(shallow(bytes(data)), type=kind)


def shallow(data: bytes) -> bytes:
    """Return the JSON with `null` in the place of each part below `LEVELS`."""
    kept = bytearray()
    depth = begin = 0
    for token in _TOKEN.finditer(data):
        mark = data[token.start()]
        if mark in b"{[":
            depth += 1
            if depth == LEVELS + 1:
                kept += data[begin : token.start()] + b"null"
        elif mark in b"}]":
            if depth == LEVELS + 1:
                begin = token.end()
            depth -= 1
    return bytes(kept if depth > LEVELS else kept + data[begin:])
