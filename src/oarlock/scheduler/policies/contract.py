"""What a policy is: it says who comes first, how large each may be, and for whom others may be stopped. Nothing else.

A policy sees the candidates of one pool (or of the whole cluster, where all pools have the same policy) and what there
is to divide among them. It places nothing, and it stops nobody: its wishes are granted one by one, in its order, each
as a whole and only where there is a place for it (`scheduler/granting`); what cannot be granted is refused with its
reason. So a policy may wish for more than there is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

import msgspec

from oarlock.spec import curves, holdings, plans

RESIZING_S = 300.0
"""Whoever was stopped longer ago than that waits like everybody else."""


class Candidate(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A job that waits or runs. `served_s`: device-seconds that it has held up to now, all attempts together."""

    gang: plans.Gang
    running: plans.Running | None = None
    served_s: float = 0.0

    @property
    def size(self) -> plans.Size:
        """What it has: zeros where it waits, or is being stopped."""
        if self.running is None or self.running.stopping:
            return (0,) * len(self.gang.asks)
        return self.running.size

    def had(self, now: float) -> plans.Size:
        """What it has or, for a while after it was stopped for a resize or a move, what it is about to have."""
        gang = self.gang
        fresh = gang.stopped_at is not None and 0 <= now - gang.stopped_at <= RESIZING_S
        if any(self.size) or not gang.destined or not (fresh or self.running is not None):
            return self.size
        size = tuple(sum(claim.role == ask.role for claim in gang.destined) for ask in gang.asks)
        within = all(ask.min <= count <= ask.max for ask, count in zip(gang.asks, size, strict=True))
        return size if within else self.size

    def resumes(self, now: float, rules: plans.Rules) -> bool:
        """Whether it goes on where it was meant to when it was stopped for a resize or a move: it is still stopping, or
        that was a moment ago. A place that has been waiting for long is no place any more.
        """
        gang = self.gang
        if not gang.destined or self.running is not None:
            return bool(gang.destined) and self.running is not None and self.running.stopping
        return gang.stopped_at is not None and now - gang.stopped_at <= max(rules.restart_s, rules.round_s)

    @property
    def asked(self) -> plans.Size:
        """What a policy that leaves sizes to the owner wishes for: what was asked for, or more where it has more."""
        if self.running is None or self.running.stopping:
            return self.gang.wanted
        return tuple(max(had, wanted) for had, wanted in zip(self.running.size, self.gang.wanted, strict=True))

    @property
    def arrival(self) -> tuple[float, str]:
        """Sorts by who came first; the id decides between equals."""
        return self.gang.submitted_at, self.gang.job


class TypeShare(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """The GPUs of one type that there are to divide: `devices` in all, of `memory_bytes` each at least, on nodes of
    which most have `per_node`.
    """

    gpu_type: str
    devices: int
    per_node: int
    memory_bytes: int = 0


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """What there is to divide: the amount within which all wishes together are to stay if they are to be granted, and
    the devices of each node that is ready, most first (how far a gang on one node can grow). And what is known of jobs
    that have `ended`, of all pools, for whoever learns from that what to expect of others.

    `types` has the types of GPU, where there are several, and `type_of` the type of each node by its
    name; of a node with several types that of each device, by `node/index`.
    """

    amount: holdings.Resources
    node_devices: tuple[int, ...] = ()
    ended: tuple[plans.Ended, ...] = ()
    types: tuple[TypeShare, ...] = ()
    type_of: Mapping[str, str] = {}


class Wish(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """`size` zeros: nothing for now. `level`: a running gang may be stopped for one of a strictly lower level.

    `extras_level`: what a running gang has above its least it gives up for one of that level, or a lower one; None:
    that is `level`, too.

    `batch` was decided for just that size: where another one is granted it is left as it is.

    `on`: the type of GPU for which the size was decided; the gang gets that type, or none for now. Empty: any that the
    gang accepts.

    `moves`: while it runs it may be restarted for a better place. `beside`: the job with which it may share a device
    where it finds no place of its own; both ask for one whole device. `yields`: it runs, and is to stop whether or not
    anybody waits for its place.
    """

    job: str
    size: plans.Size
    level: float = 0.0
    extras_level: float | None = None
    reason: str = ""  # one line: why before or after others, with the numbers
    batch: curves.Batch | None = None
    on: str = ""
    moves: bool = False
    beside: str = ""
    yields: bool = False


class Rank(NamedTuple):
    """Where one gang stands, whoever else there is: the least `key` comes first, and no two gangs have the same."""

    key: tuple[float | str, ...]
    level: float = 0.0
    reason: str = ""


Ranking = Callable[[Candidate], Rank]


class Policy(Protocol):
    """Pure: the same candidates in any order give the same wishes, in the same order, one for each candidate.

    A candidate's size is between its gang's `smallest` and `largest`, or zeros. `parameters` are the policy's own, by
    name, where the rules give them; unknown ones raise InvalidInput.

    One that leaves sizes to the owners, and ranks each candidate by what is known of that alone, may have a function
    `ranking(parameters)` as well, that gives the `Ranking` of which its wishes are made (`by_rank`), or None where that
    is not so under these parameters. Then ten thousand gangs that wait are not put in order again for one that comes.
    """

    name: str
    sizing: bool  # whether the sizes of its wishes are decisions; else they are what the owners asked for
    reserves: bool  # whether a place is kept for the first that fits nowhere; else its levels see that nobody starves

    def wishes(
        self,
        candidates: Sequence[Candidate],
        budget: Budget,
        now: float,
        rules: plans.Rules,
        parameters: Mapping[str, float],
    ) -> list[Wish]: ...


def ranking(policy: Policy, parameters: Mapping[str, float]) -> Ranking | None:
    """The policy's ranking under these parameters, if it has one."""
    ranks: Callable[[Mapping[str, float]], Ranking | None] | None = getattr(policy, "ranking", None)
    return None if ranks is None else ranks(parameters)


def by_rank(candidates: Iterable[Candidate], rank: Ranking) -> list[Wish]:
    """The wishes of a policy that has a ranking."""
    ranked = sorted(((rank(one), one) for one in candidates), key=lambda it: it[0].key)
    return [wish(one, standing) for standing, one in ranked]


def wish(one: Candidate, standing: Rank) -> Wish:
    return Wish(job=one.gang.job, size=one.asked, level=standing.level, reason=standing.reason)
