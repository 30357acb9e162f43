"""The content and the time of the next report to the server. Pure: the clock is an argument.

Changes of phase, the hello, restored checkpoints, kept files and the exit are sent at once. Details and progress are
sent at most once a second. A heartbeat every few seconds carries the idle time.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

HEARTBEAT_S = 5.0
CHANGE_S = 1.0


class Reports:
    """The facts that the server knows. `due` returns the next report, and `told` records that it was delivered."""

    def __init__(self) -> None:
        self._told: dict[str, Any] = {}
        self._told_at = -1e9

    def due(self, now: float, idle_s: float | None, **facts: Any) -> dict[str, Any] | None:
        """Return the body of the next report, or None while it can wait. Facts that are None are not known yet."""
        changed = {name: value for name, value in facts.items() if value is not None and value != self._told.get(name)}
        age_s = now - self._told_at
        urgent = bool(changed.keys() & {"phase", "exit", "hello", "restored", "kept"})
        if not urgent and age_s < (CHANGE_S if changed else HEARTBEAT_S):
            return None
        if idle_s is not None:
            changed["idle_s"] = round(idle_s, 3)
        return changed

    def has_told(self, name: str, value: Any) -> bool:
        return value is None or self._told.get(name) == value

    def told(self, now: float, body: dict[str, Any]) -> None:
        self._told_at = now
        self._told.update(body)
