"""The nodes that the stock scheduler refused to a claim, each closed to gangs with this claim for a while.

    the scheduler does not find the claim's volume or devices on a node ──> the node is barred to the claim
    the node, its pods or the volume change, or the time is over          ──> the node is open again

The reason of a refusal may not be known to us (devices that others hold, a disk of a late zone, a limit of the driver),
so a bar delays a gang, and says nothing about what is possible at all. The first lasts a minute; each further one in a
row lasts twice as long, up to ten minutes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple

FIRST_S = 60.0
MOST_S = 600.0
FORGOTTEN_S = 2 * MOST_S
"""After so long without a refusal the next bar is a first one again."""


class Seen(NamedTuple):
    """The state on which a refusal depends. Pods that come make no refusal go away; pods that leave may do so.

    Pods of ours are named. `freed` counts those of others that have left with volumes or devices.
    """

    node: object  # the facts of the node
    volume: object  # those of the claim's volume
    pods: frozenset[object]
    freed: int = 0


class _Bar(NamedTuple):
    seen: Seen
    lasts_s: float
    until: float

    def holds(self, now: float, seen: Seen) -> bool:
        same = seen._replace(pods=self.seen.pods) == self.seen
        return now < self.until and same and self.seen.pods <= seen.pods


Look = Callable[[str, str], Seen]
"""Returns the present state of a claim and a node."""


class Bars:
    """Belongs to one event loop."""

    def __init__(self, *, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._bars: dict[str, dict[str, _Bar]] = {}  # by claim, then by node

    def put(self, claims: Iterable[str], names: Iterable[str], look: Look) -> None:
        """Take note that the scheduler did not find these claims on these nodes."""
        now, refused = self._monotonic(), sorted(set(names))
        for claim in claims:
            known = self._bars.setdefault(claim, {})
            for name in refused:
                seen, before = look(claim, name), known.get(name)
                again = before is not None and before.seen.node == seen.node and now - before.until < FORGOTTEN_S
                lasts_s = min(MOST_S, 2 * before.lasts_s) if again and before is not None else FIRST_S
                known[name] = _Bar(seen, lasts_s, now + lasts_s)

    def of(self, name: str, look: Look) -> list[str]:
        """Return the claims to which the node is closed now."""
        now = self._monotonic()
        found: list[str] = []
        for claim in sorted(self._bars):
            bar = self._bars[claim].get(name)
            if bar is None:
                continue
            if bar.holds(now, look(claim, name)):
                found.append(claim)
            elif now < bar.until or now - bar.until >= FORGOTTEN_S:  # after a change the next one is a first one
                self._drop(claim, name)
        return found

    def lift(self, claim: str, names: Collection[str]) -> None:
        """Open all nodes to the claim where the scheduler has refused each of these."""
        now, known = self._monotonic(), self._bars.get(claim, {})
        if all(name in known and known[name].until > now for name in names):
            self._bars[claim] = {name: bar._replace(until=min(now, bar.until)) for name, bar in known.items()}

    def _drop(self, claim: str, name: str) -> None:
        self._bars[claim].pop(name)
        if not self._bars[claim]:
            del self._bars[claim]
