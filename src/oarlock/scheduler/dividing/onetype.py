"""The division of devices of one type among gangs that could use more or fewer of them.

The method is water-filling: the next devices go to the gang that gains most from each of them. It starts from the
present sizes and not from zero, and `Bidder.value` charges for a change of size. So most sizes stay as they are, and
the work is proportional to the number of changes.

Values need not be concave: two nodes may be slower than one, and four faster. So a bidder looks several sizes ahead,
and compares the gain per device on the way there.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence

LOOK = 3
"""Number of sizes that a bidder looks ahead, up and down."""


class Bidder:
    """A gang that can have any of the sizes `rungs` (units, ascending). `size` is its present size, one of them.

    `value(units)` is in a unit that all bidders share. `grow` and `shrink` say whether the size may rise and fall.
    """

    def __init__(
        self, name: str, rungs: Sequence[int], size: int, value: Callable[[int], float], *, grow: bool, shrink: bool
    ) -> None:
        self.name = name
        self.size = size
        self.gain = 0.0  # per unit, of the last growth
        self._rungs = rungs
        self._at = rungs.index(size)
        self._grow = grow
        self._shrink = shrink
        self._value = value
        self._known: dict[int, float] = {}

    @property
    def least(self) -> int:
        return self._rungs[0]

    def move(self, size: int) -> None:
        self.size = size
        self._at = self._rungs.index(size)

    def value(self, size: int) -> float:
        found = self._known.get(size)
        if found is None:
            found = self._known[size] = self._value(size)
        return found

    def up(self) -> tuple[float, int] | None:
        """Return the gain per unit of the best step up, and the size it leads to."""
        if not self._grow:
            return None
        here, best = self.value(self.size), None
        for rung in self._rungs[self._at + 1 : self._at + 1 + LOOK]:
            gain = (self.value(rung) - here) / (rung - self.size)
            if gain > 0 and (best is None or gain > best[0]):
                best = gain, rung
        return best

    def down(self) -> tuple[float, int] | None:
        """Return the loss per unit of the cheapest step down, and the size it leads to."""
        if not self._shrink:
            return None
        here, best = self.value(self.size), None
        for rung in reversed(self._rungs[max(0, self._at - LOOK) : self._at]):
            loss = (here - self.value(rung)) / (self.size - rung)
            if best is None or loss < best[0]:
                best = loss, rung
        return best


def divide(bidders: Iterable[Bidder], total: int) -> None:
    """Move the bidders to sizes that together are within `total`; if they cannot shrink that far, to the nearest.

    The units for a growth are free ones, or come from other bidders that together lose less than it gains.
    """
    ordered = sorted(bidders, key=lambda bidder: bidder.name)
    offers = _Offers(ordered)
    free = total - sum(bidder.size for bidder in ordered)
    while free < 0 and (offer := offers.cheapest()) is not None:
        free += offers.give(offer[1])
    ups = [(-step[0], bidder.name, bidder) for bidder in ordered if (step := bidder.up()) is not None]
    heapq.heapify(ups)
    given: set[str] = set()
    while ups:
        negative, name, bidder = heapq.heappop(ups)
        step = bidder.up() if name not in given else None
        if step is None:
            continue
        if -step[0] > negative:  # it gave units up since it was queued: its turn comes later
            heapq.heappush(ups, (-step[0], name, bidder))
            continue
        need = step[1] - bidder.size
        paid = offers.pay(need - free, below=step[0] * need, to=bidder)
        if paid is None:
            continue
        given.update(paid)
        free += sum(paid.values()) - need
        bidder.move(step[1])
        bidder.gain = step[0]
        offers.keep(bidder)
        if (again := bidder.up()) is not None:
            heapq.heappush(ups, (-again[0], name, bidder))


class _Offers:
    """The units that the bidders would give up, the cheapest unit first.

    A bidder that has grown gives nothing up again.
    """

    def __init__(self, bidders: Iterable[Bidder]) -> None:
        self._heap: list[tuple[float, str, int, Bidder]] = []
        self._kept: set[str] = set()
        for bidder in bidders:
            self._offer(bidder)

    def keep(self, bidder: Bidder) -> None:
        self._kept.add(bidder.name)

    def cheapest(self) -> tuple[float, Bidder] | None:
        """Return the loss per unit of the cheapest step down, and its bidder."""
        while self._heap:
            loss, name, size, bidder = self._heap[0]
            if name not in self._kept and size == bidder.size:
                return loss, bidder
            heapq.heappop(self._heap)
        return None

    def give(self, bidder: Bidder) -> int:
        """Let the bidder take its cheapest step down. Return the number of units that this frees."""
        step, size = bidder.down(), bidder.size
        if step is not None:
            bidder.move(step[1])
            self._offer(bidder)
        return size - bidder.size

    def pay(self, need: int, *, below: float, to: Bidder) -> dict[str, int] | None:
        """Collect `need` units from bidders for a total loss of less than `below`.

        Return the number of units by bidder's name, or None, with nothing changed, if that is impossible.
        """
        paid: dict[str, tuple[Bidder, int]] = {}
        own: list[tuple[float, str, int, Bidder]] = []
        while need > 0 and (offer := self.cheapest()) is not None:
            loss, donor = offer
            if donor is to:
                own.append(heapq.heappop(self._heap))
                continue
            size = donor.size
            need -= self.give(donor)
            below -= loss * (size - donor.size)
            paid.setdefault(donor.name, (donor, size))
            if below <= 0:
                break
        for entry in own:
            heapq.heappush(self._heap, entry)
        if need > 0 or below <= 0:
            for donor, size in paid.values():
                donor.move(size)
                self._offer(donor)
            return None
        return {name: size - donor.size for name, (donor, size) in paid.items()}

    def _offer(self, bidder: Bidder) -> None:
        step = bidder.down()
        if step is not None:
            heapq.heappush(self._heap, (step[0], bidder.name, bidder.size, bidder))
