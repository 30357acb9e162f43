"""The state of a session, from a worker to the successor of one that died.

The successor asks for it and waits. The other workers wait in a step or in an exchange that cannot end without it, and
look here meanwhile. The first to look gives its state: bytes that mean nothing to the server.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Set
from dataclasses import dataclass
from typing import Any

from oarlock.train.servers.wire import frames

MOST_BYTES = 1 << 40


@dataclass
class _Request:
    rank: int
    most: int  # bytes
    weights: bool  # whether the servers have no weights of one version
    value: bytes | None = None
    refused: str = ""


class Handover:
    """The requests of successors. Threads of many workers call the methods."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._requests: dict[int, _Request] = {}
        self._number = 0

    def take(self, rank: int, most: int, *, weights: bool, there: Callable[[], Set[int]]) -> bytes:
        """Return the state that another worker gives. Raises Refused where none can: of the workers that are `there`
        those that wait for a state themselves have none.
        """
        if most > MOST_BYTES:
            raise frames.Refused(f"{most} bytes of a session's state, at most {MOST_BYTES} are kept")
        with self._changed:
            self._number += 1
            number, request = self._number, _Request(rank, most, weights)
            self._requests[number] = request
            self._changed.notify_all()
            try:
                self._changed.wait_for(lambda: request.value is not None or self._refuses(request, there()))
            finally:
                del self._requests[number]
        if request.value is None:
            raise frames.Refused(request.refused)
        return request.value

    def _refuses(self, request: _Request, there: Set[int]) -> bool:
        """Return whether the request is refused, with all others where no worker is left that has a state."""
        if not there - {each.rank for each in self._requests.values()}:
            for each in self._requests.values():
                each.refused = each.refused or "no worker is left that could tell its state"
            self._changed.notify_all()
        return bool(request.refused)

    def wanted(self, rank: int) -> dict[str, Any]:
        """Return the request that this worker should answer: its number, 0 where there is none, and its bounds."""
        with self._changed:
            for number, each in self._requests.items():
                if each.rank != rank and each.value is None and not each.refused:
                    return {"number": number, "most": each.most, "weights": each.weights}
            return {"number": 0}

    def most(self, number: int) -> int:
        """Return the number of bytes that the answer to a request may have: none where it waits no more."""
        with self._changed:
            request = self._requests.get(number)
            return request.most if request is not None else 0

    def give(self, number: int, value: bytes, refused: str) -> None:
        with self._changed:
            request = self._requests.get(number)
            if request is not None and request.value is None:
                request.value, request.refused = (None, refused) if refused else (value, "")
            self._changed.notify_all()

    def look(self) -> None:
        """Look again whether others are left."""
        with self._changed:
            self._changed.notify_all()
