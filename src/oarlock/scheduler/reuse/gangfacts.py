"""Facts that do not change as long as a gang is the same object: worked out once, and kept.

A plan of ten thousand gangs is made again at every change of one of them. Facts that depend on one gang alone (sums,
sizes, which gangs are alike) are looked up here by the identity of the gang.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Self, TypeVar

import msgspec

from oarlock.scheduler import amounts
from oarlock.spec import plans, refusals

T = TypeVar("T")


class GangFacts(msgspec.Struct, gc=False):
    """One gang. `kin` is equal for gangs that ask the same of the same pool; where one of them fits, the other does.

    `claim` is equal for gangs that take the same amount of the same pool at their smallest size. `kind` names the types
    of devices that the gang waits for, and the constraints on their nodes. `plain`: no earlier plan found a place for
    it, and it may start at once.
    """

    gang: plans.Gang
    kin: int
    claim: int
    kind: tuple[object, ...]
    plain: bool
    impossible: bool
    smallest: plans.Size
    wanted: plans.Size
    least: amounts.Amount
    most: amounts.Amount

    @classmethod
    def new(cls, gang: plans.Gang, kin: int, claim: int) -> Self:
        refusal, smallest = gang.refusal, gang.smallest
        promised = refusal is not None and refusal.code is refusals.Code.STOPPING and refusal.kept
        return cls(
            gang=gang,
            kin=kin,
            claim=claim,
            kind=_kind(gang),
            plain=not (gang.destined or gang.not_before is not None or promised),
            impossible=refusal is not None and refusal.code in refusals.NEVER,
            smallest=smallest,
            wanted=gang.wanted,
            least=_sum(gang, smallest),
            most=_sum(gang, gang.largest),
        )

    def amount(self, size: plans.Size) -> amounts.Amount:
        """Return the amount that the gang holds at `size`."""
        return self.least if size == self.smallest else _sum(self.gang, size)


class RunningFacts(msgspec.Struct, gc=False):
    """One running gang: the sum that it holds, its size, its nodes and its weight (devices; cores without a device)."""

    running: plans.Running
    amount: amounts.Amount
    size: plans.Size
    nodes: tuple[str, ...]
    weight: float

    @classmethod
    def new(cls, running: plans.Running) -> Self:
        together = amounts.of_claims(running.holdings)
        nodes = tuple(dict.fromkeys(claim.node for claim in running.holdings))
        return cls(running, together, running.size, nodes, amounts.weight(together))


class Facts:
    """The facts about all known gangs, by the identity of the gang."""

    def __init__(self) -> None:
        self._gangs: dict[int, GangFacts] = {}
        self._held: dict[int, RunningFacts] = {}
        self._numbers: dict[object, int] = {}
        self._numbered = 0

    def of(self, gang: plans.Gang) -> GangFacts:
        known = self._gangs.get(id(gang))
        if known is None:
            size = gang.smallest, gang.wanted
            kin = self._number((*_needs(gang), gang.placement, gang.pool, gang.preemptible, size))
            claim = self._number((gang.pool, gang.preemptible, amounts.amount(gang.amount(gang.smallest))))
            known = self._gangs[id(gang)] = GangFacts.new(gang, kin, claim)
        return known

    def held(self, running: plans.Running) -> RunningFacts:
        known = self._held.get(id(running))
        if known is None:
            known = self._held[id(running)] = RunningFacts.new(running)
        return known

    def follow(self, snapshot: plans.Snapshot) -> None:
        """Forget gangs that are gone, once there are many of them."""
        if len(self._gangs) > 2 * (len(snapshot.waiting) + len(snapshot.running)) + 1000:
            self._gangs = _kept(self._gangs, [*snapshot.waiting, *(job.gang for job in snapshot.running)])
            alive = {number for one in self._gangs.values() for number in (one.kin, one.claim)}
            self._numbers = {likeness: number for likeness, number in self._numbers.items() if number in alive}
        if len(self._held) > 2 * len(snapshot.running) + 1000:
            self._held = _kept(self._held, snapshot.running)

    def _number(self, likeness: object) -> int:
        number = self._numbers.get(likeness)
        if number is None:
            number = self._numbers[likeness] = self._numbered
            self._numbered += 1
        return number


def _sum(gang: plans.Gang, size: plans.Size) -> amounts.Amount:
    known = amounts.NOTHING
    for ask, count in zip(gang.asks, size, strict=True):
        one = amounts.amount(ask.amount)
        known = known[0] + one[0] * count, known[1] + one[1] * count, known[2] + one[2] * count
    return known


def _kind(gang: plans.Gang) -> tuple[object, ...]:
    types = sorted({ask.gpu_types for ask in gang.asks if ask.amount.gpus or ask.amount.gpu_milli})
    return (*types, gang.constraints) if gang.constraints is not None else tuple(types)


def _needs(gang: plans.Gang) -> tuple[object, ...]:
    asks = tuple((ask.role, ask.amount, ask.ports, frozenset(ask.gpu_types), ask.gpu_memory_bytes) for ask in gang.asks)
    return asks, gang.constraints, gang.topology, gang.mixed, gang.beside


def _kept(known: dict[int, T], alive: Iterable[object]) -> dict[int, T]:
    return {id(one): known[id(one)] for one in alive if id(one) in known}
