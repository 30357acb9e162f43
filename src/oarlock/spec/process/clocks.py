"""How the server's clock stood to the clocks of its machine: kept, so that no step of them spoils a duration."""

from __future__ import annotations

import msgspec


class Anchor(msgspec.Struct, frozen=True, kw_only=True):
    """Written while a server leads. Times are Unix seconds by the server's clock."""

    boot: str  # the machine's present start: its monotonic clock counts from there
    ahead_s: float  # by which the server's clock was ahead of the monotonic clock
    asleep_s: float  # which the machine had slept since its start
    seen_at: float
    stepped_at: float = 0.0  # the last time at which the wall clock was set forward
    stepped_s: float = 0.0  # by how much, with the steps shortly before it

    def before(self, then: float) -> float:
        """Return when something must have happened, by its own date, to be older than `then`.

        Before a step forward dates were earlier than they would be now. The age that is believed is the smaller one.
        """
        return then - self.stepped_s if self.stepped_at > then else then
