"""A connection whose bodies lie in memory that both sides share; heads and the end of it travel by the socket.

A body is written into the segment before its head is sent, and read after the head has arrived. One request is under
way at a time, so that the two sides take turns with the memory. A side may keep its tensors in the segment: such a body
is in its place already, and is not copied. A body that is sent may also have some of these tensors at other places. One
that is received must not: its pieces would be written over each other.

The lengths come from the head, which is bounded as on every connection. The memory itself holds numbers alone, so a
worker that writes there at a wrong time spoils its own gradient.
"""

from __future__ import annotations

import ctypes
import itertools
import mmap
from collections.abc import Sequence
from typing import Any

import torch

from oarlock.train.servers.wire import frames, memory, transport

LEAST_BYTES = 64 << 10
"""Smaller bodies go by the socket, and models that are smaller share no memory."""


class Shared:
    """A connection by `socket`, with the memory of a segment."""

    def __init__(self, socket: transport.Tcp, segment: mmap.mmap) -> None:
        self._socket = socket
        self._bytes = torch.frombuffer(segment, dtype=torch.uint8)  # keeps the segment
        self._memory = memory.view(self._bytes)
        self._address = self._bytes.data_ptr()
        self._is_here = False  # the body that was announced is in the segment

    def tensors(self, flats: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return tensors like these in the segment, in the order of a body. Raises ValueError where they do not fit."""
        return tensors(self._bytes, flats)

    def send(self, kind: frames.Kind, fields: dict[str, Any], body: Sequence[memoryview] = ()) -> None:
        size = sum(each.nbytes for each in body)
        if not self.shares(size):
            self._socket.send(kind, fields, body)
            return
        places = list(itertools.accumulate((each.nbytes for each in body), initial=0))[:-1]
        moved = [(place, piece) for place, piece in zip(places, body) if self._offset(piece) != place]
        # What leaves its place in the segment is copied out first: another piece may be written over it.
        for place, piece in [(place, self._outside(piece)) for place, piece in moved]:
            self._memory[place : place + piece.nbytes] = piece
        self._socket.announce(kind, fields, size)

    def shares(self, body_bytes: int) -> bool:
        return LEAST_BYTES <= body_bytes <= len(self._memory)

    def head(self, most_json_bytes: int = frames.MOST_JSON_BYTES) -> frames.Head:
        head = self._socket.head(most_json_bytes, shared_bytes=len(self._memory))
        self._is_here = head.shared
        return head

    def body(self, into: Sequence[memoryview]) -> None:
        if not self._is_here:
            self._socket.body(into)
            return
        taken = 0
        for piece in into:
            if piece.nbytes and self._offset(piece) != taken:
                piece[:] = self._memory[taken : taken + piece.nbytes]
            taken += piece.nbytes

    @property
    def is_whole(self) -> bool:
        """Return whether the announced body is there as a whole: it cannot break off any more."""
        return self._is_here

    def waits(self, within_s: float) -> bool:
        return self._socket.waits(within_s)

    def is_broken(self) -> bool:
        return self._socket.is_broken()

    def close(self) -> None:
        self._socket.close()

    def _offset(self, piece: memoryview) -> int | None:
        """Return where this memory begins in the segment, or None where it lies outside."""
        if piece.readonly or not piece.nbytes:
            return None
        offset = ctypes.addressof(ctypes.c_char.from_buffer(piece)) - self._address
        return offset if 0 <= offset < len(self._memory) else None

    def _outside(self, piece: memoryview) -> memoryview:
        """Return the piece, or a copy of it if it lies in the segment."""
        return piece if self._offset(piece) is None else memoryview(bytes(piece))


def tensors(segment: torch.Tensor, flats: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return tensors like these, one after the other in the segment. Raises ValueError where they do not fit."""
    made, taken = [], 0
    for flat in flats:
        size = flat.numel() * flat.element_size()
        if taken % flat.element_size() or taken + size > len(segment):
            raise ValueError("the tensors of a body do not fit into the segment")
        made.append(segment[taken : taken + size].view(flat.dtype))
        taken += size
    return made
