"""The contract of a policy: it orders the gangs, sizes them, and says which running gangs may be stopped for others.

A policy sees the candidates of one pool (or of the whole cluster, if nothing bounds its one pool) and the budget to
divide among them. It places no gang, and it stops none. Its wishes are granted one by one, in its order, each as a
whole and only if there is a place for it (`scheduler/granting`); the others are refused with a reason. So a policy may
wish for more than there is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

import msgspec

from oarlock.spec import curves, holdings, plans

RESIZING_S = 300.0
"""Seconds after which a gang that was stopped for a resize or a move waits like any other gang."""


class Candidate(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A job that waits or runs. `served_s`: device-seconds that it has held up to now, all attempts together."""

    gang: plans.Gang
    running: plans.Running | None = None
    served_s: float = 0.0

    @property
    def size(self) -> plans.Size:
        """The present size: zeros while the gang waits, or is being stopped."""
        if self.running is None or self.running.stopping:
            return (0,) * len(self.gang.asks)
        return self.running.size

    def had(self, now: float) -> plans.Size:
        """Return the present size or, for a while after a stop for a resize or a move, the size that comes next."""
        gang = self.gang
        fresh = gang.stopped_at is not None and 0 <= now - gang.stopped_at <= RESIZING_S
        if any(self.size) or not gang.destined or not (fresh or self.running is not None):
            return self.size
        size = tuple(sum(claim.role == ask.role for claim in gang.destined) for ask in gang.asks)
        within = all(ask.min <= count <= ask.max for ask, count in zip(gang.asks, size, strict=True))
        return size if within else self.size

    def resumes(self, now: float, rules: plans.Rules) -> bool:
        """Return whether the gang goes on in the place for which it was stopped (a resize or a move).

        It is still stopping, or it stopped a moment ago. A place is not kept for long.
        """
        gang = self.gang
        if not gang.destined or self.running is not None:
            return bool(gang.destined) and self.running is not None and self.running.stopping
        return gang.stopped_at is not None and now - gang.stopped_at <= max(rules.restart_s, rules.round_s)

    @property
    def asked(self) -> plans.Size:
        """The size that a policy wishes if it leaves sizes to the owner: as asked for, or the present one if larger."""
        if self.running is None or self.running.stopping:
            return self.gang.wanted
        return tuple(max(had, wanted) for had, wanted in zip(self.running.size, self.gang.wanted, strict=True))

    @property
    def arrival(self) -> tuple[float, str]:
        """A key that sorts by the time of submission, and then by the id."""
        return self.gang.submitted_at, self.gang.job


def waiting(gang: plans.Gang) -> Candidate:
    return Candidate(gang=gang, served_s=gang.served_s)


class TypeShare(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """The GPUs of one type in a budget: `devices` in all, each with at least `memory_bytes`.

    `per_node` is the number of them on most nodes that have any.
    """

    gpu_type: str
    devices: int
    per_node: int
    memory_bytes: int = 0


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """The resources that a policy divides: all wishes together can be granted only within `amount`.

    `node_devices` has the number of devices of each ready node, largest first: the limit for a gang on one node.
    `ended` has the jobs of all pools that have ended, for policies that learn from them. `types` has the types of GPU,
    if there are several. `type_of` has the type of each node by its name; for a node with several types, the type of
    each device by `node/index`.
    """

    amount: holdings.Resources
    node_devices: tuple[int, ...] = ()
    ended: tuple[plans.Ended, ...] = ()
    types: tuple[TypeShare, ...] = ()
    type_of: Mapping[str, str] = {}


class Wish(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """The wish of a policy for one gang. A `size` of zeros: nothing for now.

    `level`: a running gang may be stopped for a gang of a strictly lower level. `extras_level`: a running gang shrinks
    to its smallest size for a gang of that level, or a lower one; None: the same as `level`.

    `batch` was decided for that size alone. At another size the batch size stays as it is.

    `on`: the type of GPU for which the size was decided. The gang waits for that type, unless no node of the type could
    hold it. Empty: any type that the gang accepts.

    `moves`: the running gang may be restarted for a better place. `beside`: the job with which the gang may share a
    device, if it finds no place of its own; both ask for one whole device. `yields`: the running gang is to stop even
    if no gang waits for its place.
    """

    job: str
    size: plans.Size
    level: float = 0.0
    extras_level: float | None = None
    reason: str = ""  # one line: the reason for its place in the order, with the numbers
    batch: curves.Batch | None = None
    on: str = ""
    moves: bool = False
    beside: str = ""
    yields: bool = False


class Rank(NamedTuple):
    """The rank of one gang, whatever other gangs there are: the least `key` comes first. No two gangs share a key."""

    key: tuple[float | str, ...]
    level: float = 0.0
    reason: str = ""


Ranking = Callable[[Candidate], Rank]


class Policy(Protocol):
    """A pure function: the same candidates in any order give the same wishes in the same order, one for each candidate.

    The size of a wish is between the gang's `smallest` and `largest`, or zeros. `parameters` are the policy's own, as
    the rules give them by name; unknown ones raise InvalidInput.

    A policy that leaves sizes to the owners, and ranks each candidate by facts about that candidate alone, may also
    have a function `ranking(parameters)`. It returns the `Ranking` from which the wishes are made (`by_rank`), or None
    where there is none under these parameters. Then ten thousand waiting gangs are not sorted again for a new one.
    """

    name: str
    sizing: bool  # whether the policy decides sizes; otherwise the owners do
    reserves: (
        bool  # whether a place is kept for the first gang that fits nowhere; otherwise its levels prevent starvation
    )

    def wishes(
        self,
        candidates: Sequence[Candidate],
        budget: Budget,
        now: float,
        rules: plans.Rules,
        parameters: Mapping[str, float],
    ) -> list[Wish]: ...


def ranking(policy: Policy, parameters: Mapping[str, float]) -> Ranking | None:
    """Return the policy's ranking under these parameters; None where it has none."""
    ranks: Callable[[Mapping[str, float]], Ranking | None] | None = getattr(policy, "ranking", None)
    return None if ranks is None else ranks(parameters)


def by_rank(candidates: Iterable[Candidate], rank: Ranking) -> list[Wish]:
    """Return the wishes of a policy that has a ranking."""
    ranked = sorted(((rank(one), one) for one in candidates), key=lambda it: it[0].key)
    return [wish(one, standing) for standing, one in ranked]


def wish(one: Candidate, standing: Rank) -> Wish:
    return Wish(job=one.gang.job, size=one.asked, level=standing.level, reason=standing.reason)
