"""Dividing devices among gangs that could use more or fewer of them, by what the next one is worth to each.

Water-filling: the next devices go where they bring most for each of them. It starts from what everybody has, not from
nothing, and whoever is changed pays for it (`Bidder.value` says less at other sizes than the present one). So most of
the time nothing moves, and the work is that of what does.

Values need not be concave: two nodes may be slower than one and four faster, so a bidder looks several rungs ahead, and
what counts is the gain for each device on the way there.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence

LOOK = 3
"""Rungs that a bidder looks ahead, up and down."""


class Bidder:
    """Somebody who takes one of `rungs` (units, ascending). `size` is what it has now, one of them.

    `value(units)` is in whatever unit all bidders share. Who may not `grow` or `shrink` does not.
    """

    def __init__(
        self, name: str, rungs: Sequence[int], size: int, value: Callable[[int], float], *, grow: bool, shrink: bool
    ) -> None:
        self.name = name
        self.size = size
        self.gain = 0.0  # for each unit, of the last growth
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
        """The gain for each unit of the best step up, and where it leads."""
        if not self._grow:
            return None
        here, best = self.value(self.size), None
        for rung in self._rungs[self._at + 1 : self._at + 1 + LOOK]:
            gain = (self.value(rung) - here) / (rung - self.size)
            if gain > 0 and (best is None or gain > best[0]):
                best = gain, rung
        return best

    def down(self) -> tuple[float, int] | None:
        """The loss for each unit of the cheapest step down, and where it leads."""
        if not self._shrink:
            return None
        here, best = self.value(self.size), None
        for rung in reversed(self._rungs[max(0, self._at - LOOK) : self._at]):
            loss = (here - self.value(rung)) / (self.size - rung)
            if best is None or loss < best[0]:
                best = loss, rung
        return best


def divide(bidders: Iterable[Bidder], total: int) -> None:
    """Moves the bidders to sizes that together are within `total`, as far as they may shrink; else as near as they can.

    A growth is paid out of what is free, or by others whose loss together is less than its gain.
    """
    everybody = sorted(bidders, key=lambda bidder: bidder.name)
    offers = _Offers(everybody)
    free = total - sum(bidder.size for bidder in everybody)
    while free < 0 and (offer := offers.cheapest()) is not None:
        free += offers.give(offer[1])
    ups = [(-step[0], bidder.name, bidder) for bidder in everybody if (step := bidder.up()) is not None]
    heapq.heapify(ups)
    given: set[str] = set()
    while ups:
        negative, name, bidder = heapq.heappop(ups)
        step = bidder.up() if name not in given else None
        if step is None:
            continue
        if -step[0] > negative:  # it gave something up since: its turn comes later
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
    """What everybody would give up, the cheapest unit first. Who has grown gives nothing up again."""

    def __init__(self, bidders: Iterable[Bidder]) -> None:
        self._heap: list[tuple[float, str, int, Bidder]] = []
        self._kept: set[str] = set()
        for bidder in bidders:
            self._offer(bidder)

    def keep(self, bidder: Bidder) -> None:
        self._kept.add(bidder.name)

    def cheapest(self) -> tuple[float, Bidder] | None:
        """The loss for each unit, and who takes it."""
        while self._heap:
            loss, name, size, bidder = self._heap[0]
            if name not in self._kept and size == bidder.size:
                return loss, bidder
            heapq.heappop(self._heap)
        return None

    def give(self, bidder: Bidder) -> int:
        """It takes its cheapest step down: so many units."""
        step, size = bidder.down(), bidder.size
        if step is not None:
            bidder.move(step[1])
            self._offer(bidder)
        return size - bidder.size

    def pay(self, need: int, *, below: float, to: Bidder) -> dict[str, int] | None:
        """Who gives how many units so that it is `need` in all, for a loss of less than `below`. None, and nothing has
        changed, where that cannot be.
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
