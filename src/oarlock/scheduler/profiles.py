"""What never changes of a gang, or of what runs, as long as it is the same object: worked out once, and kept.

A plan of ten thousand gangs is made again at every change of one of them. All that hangs on a gang alone (sums, sizes,
which gangs are alike) is looked up here by the gang's identity; so it is the same with and without a memory of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from oarlock.spec import holdings, plans, refusals

T = TypeVar("T")

Amount = tuple[int, int, int]
"""Thousandths of a device, thousandths of a core, bytes: whole numbers, so that sums are exact in any order."""

NOTHING: Amount = (0, 0, 0)


def amount(of: holdings.Resources) -> Amount:
    return of.gpus * 1000 + of.gpu_milli, of.cpus_milli, of.memory_bytes


def plus(one: Amount, other: Amount) -> Amount:
    return one[0] + other[0], one[1] + other[1], one[2] + other[2]


def steps(least: plans.Size, most: plans.Size) -> int:
    """How many steps lead from the one size to the other."""
    return max((above - below for below, above in zip(least, most, strict=True)), default=0)


def step(least: plans.Size, most: plans.Size, number: int) -> plans.Size:
    """The size after so many steps: every role grows in proportion."""
    whole = steps(least, most)
    if number >= whole:
        return most
    return tuple(below + (above - below) * number // whole for below, above in zip(least, most, strict=True))


class Profile:
    """One gang. `shape` is equal for gangs of which one fits exactly where the other does, at the same size; `kin` for
    those that moreover ask the same of the same pool, `claim` for those whose least is as much of the same pool; `kind`
    says which devices they wait for. `plain`: nothing was found for it, or is to be waited for, before its turn.
    """

    __slots__ = (
        "_amounts",
        "claim",
        "gang",
        "impossible",
        "kin",
        "kind",
        "least",
        "most",
        "plain",
        "shape",
        "smallest",
        "wanted",
    )

    def __init__(self, gang: plans.Gang, shape: int, kin: int, claim: int) -> None:
        refusal = gang.refusal
        self.gang = gang
        self.shape = shape
        self.kin = kin
        self.claim = claim
        promised = refusal is not None and refusal.code is refusals.Code.STOPPING and refusal.kept
        self.plain = not (gang.destined or gang.not_before is not None or promised)
        self.smallest = gang.smallest
        self.wanted = gang.wanted
        self.kind = tuple(sorted({ask.gpu_types for ask in gang.asks if ask.amount.gpus or ask.amount.gpu_milli}))
        self.impossible = refusal is not None and refusal.code in refusals.NEVER
        self._amounts: dict[plans.Size, Amount] = {}
        self.least = self.amount(self.smallest)
        self.most = self.amount(gang.largest)

    def amount(self, size: plans.Size) -> Amount:
        """What it holds at `size`."""
        known = self._amounts.get(size)
        if known is None:
            known = NOTHING
            for ask, count in zip(self.gang.asks, size, strict=True):
                one = amount(ask.amount)
                known = known[0] + one[0] * count, known[1] + one[1] * count, known[2] + one[2] * count
            self._amounts[size] = known
        return known


class Held:
    """One running gang: what it holds, in sum and as a weight (devices; cores where it has no device), and where."""

    __slots__ = ("amount", "nodes", "running", "size", "weight")

    def __init__(self, running: plans.Running) -> None:
        self.running = running
        self.amount = NOTHING
        for claim in running.holdings:
            self.amount = plus(self.amount, amount(claim.amount))
        self.size = running.size
        self.nodes = tuple(dict.fromkeys(claim.node for claim in running.holdings))
        self.weight = weight(self.amount)


def weight(of: Amount) -> float:
    """Devices; cores where there is no device."""
    return (of[0] or of[1]) / 1000


class Profiles:
    """All that were met, by identity."""

    def __init__(self) -> None:
        self._gangs: dict[int, Profile] = {}
        self._held: dict[int, Held] = {}
        self._numbers: dict[object, int] = {}
        self._numbered = 0

    def of(self, gang: plans.Gang) -> Profile:
        known = self._gangs.get(id(gang))
        if known is None:
            shape = self._number((*_needs(gang), gang.placement))
            kin = self._number((shape, gang.pool, gang.preemptible, gang.smallest, gang.wanted))
            claim = self._number((gang.pool, gang.preemptible, amount(gang.amount(gang.smallest))))
            known = self._gangs[id(gang)] = Profile(gang, shape, kin, claim)
        return known

    def held(self, running: plans.Running) -> Held:
        known = self._held.get(id(running))
        if known is None:
            known = self._held[id(running)] = Held(running)
        return known

    def follow(self, snapshot: plans.Snapshot) -> None:
        """Forget those that are no more, when they have become many."""
        if len(self._gangs) > 2 * (len(snapshot.waiting) + len(snapshot.running)) + 1000:
            self._gangs = _kept(self._gangs, [*snapshot.waiting, *(job.gang for job in snapshot.running)])
            alive = {
                number for profile in self._gangs.values() for number in (profile.shape, profile.kin, profile.claim)
            }
            self._numbers = {likeness: number for likeness, number in self._numbers.items() if number in alive}
        if len(self._held) > 2 * len(snapshot.running) + 1000:
            self._held = _kept(self._held, snapshot.running)

    def _number(self, likeness: object) -> int:
        number = self._numbers.get(likeness)
        if number is None:
            number = self._numbers[likeness] = self._numbered
            self._numbered += 1
        return number


def _needs(gang: plans.Gang) -> tuple[object, ...]:
    asks = tuple((ask.role, ask.amount, ask.ports, frozenset(ask.gpu_types), ask.gpu_memory_bytes) for ask in gang.asks)
    return asks, gang.topology, gang.mixed, gang.beside


def _kept(known: dict[int, T], alive: Iterable[object]) -> dict[int, T]:
    return {id(one): known[id(one)] for one in alive if id(one) in known}
