"""How long this process waits for another process to restart, or to join its round."""

from __future__ import annotations

from collections.abc import Callable


def without_end() -> None:
    """Wait on: outside a session nobody asks this process to stop."""


keep_waiting: Callable[[], None] = without_end
"""Called again and again while this process waits, within a session. It raises an exception where this process was
asked to stop, and should wait no more.
"""
check_round: Callable[[], None] = without_end
"""Called likewise where this process waits at parameter servers. It raises PeersLost where its round is over."""
