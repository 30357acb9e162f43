"""A worker's part in the replacement of another one: it gives its state to the successor, while it waits for it."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import Optional

from oarlock.train import environment, errors, worlds
from oarlock.train.servers import addresses
from oarlock.train.servers.wire import frames, handshake
from oarlock.train.servers.workers import links

CANNOT_S = 10.0
"""A worker that has no state to give now may have one soon. After this time it says no."""

Pack = Callable[[bool], Optional[bytes]]  # evaluated, by a Python that may be 3.9


class Giving:
    """The looks of this worker at the first server, whether a successor waits for a state.

    `pack` returns the state, with weights or without, or None where there is none now. `keep_waiting` raises an
    exception where this worker should not wait for a dead one any more.
    """

    def __init__(
        self, servers: addresses.Addresses, world: worlds.World, pack: Pack, keep_waiting: Callable[[], None]
    ) -> None:
        self._servers, self._pack, self._keep_waiting = servers, pack, keep_waiting
        self._place = handshake.Place.of(environment.Processes.read(), "give")
        self._link: links.Link | None = None
        self._looked_at = monotonic()
        self._asked_at: dict[int, float] = {}  # when each request was seen first
        self._answered = 0

    def look(self) -> None:
        """Look, at most once in WATCH_S."""
        if monotonic() - self._looked_at < links.WATCH_S:
            return
        self._looked_at = monotonic()
        missing = False
        try:
            if self._link is None:
                self._link = links.Link(self._servers, 0, self._place, patient=False)
            told = self._link.ask(frames.Kind.WANTED, {})
            missing = bool(told["missing"])
            number = int(told["number"])
            if number and number != self._answered:
                self._answer(self._link, number, int(told["most"]), weights=bool(told["weights"]))
        except errors.ServerError:  # it died, or will give this worker up: the other connections tell
            self.close()
        if missing:
            self._keep_waiting()

    def close(self) -> None:
        if self._link is not None:
            self._link.close()
        self._link = None

    def _answer(self, link: links.Link, number: int, most: int, *, weights: bool) -> None:
        asked_at = self._asked_at.setdefault(number, monotonic())
        packed = self._pack(weights)
        if packed is not None and len(packed) <= most:
            link.ask(frames.Kind.GIVE, {"number": number}, [memoryview(packed)])
        elif packed is not None or monotonic() - asked_at > CANNOT_S:
            why = "no worker can tell a state from which a successor could go on"
            link.ask(frames.Kind.GIVE, {"number": number, "refused": why})
        else:
            return
        self._answered = number
