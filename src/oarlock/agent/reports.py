"""What is worth a report, and when: pure but for the clock that comes as an argument.

Changes of phase, a greeting and the exit go at once, details and progress at most once a second, and a sign of life
every few seconds carries the idle time.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SIGN_OF_LIFE_S = 5.0
CHANGE_S = 1.0


class Reports:
    """Remembers what the server has been told. `due` says what to tell it now; `told` that it has heard."""

    def __init__(self) -> None:
        self._told: dict[str, Any] = {}
        self._told_at = -1e9

    def due(self, now: float, idle_s: float | None, **facts: Any) -> dict[str, Any] | None:
        """The body of the next report, or None while it can wait. Facts that are None are not known yet."""
        changed = {name: value for name, value in facts.items() if value is not None and value != self._told.get(name)}
        age_s = now - self._told_at
        urgent = bool(changed.keys() & {"phase", "exit", "hello", "restored", "kept"})
        if not urgent and age_s < (CHANGE_S if changed else SIGN_OF_LIFE_S):
            return None
        if idle_s is not None:
            changed["idle_s"] = round(idle_s, 3)
        return changed

    def has_told(self, name: str, value: Any) -> bool:
        return value is None or self._told.get(name) == value

    def told(self, now: float, body: dict[str, Any]) -> None:
        self._told_at = now
        self._told.update(body)
